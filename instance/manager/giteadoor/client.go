package giteadoor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/servercall"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// maxAnswer bounds an answer of the server, in bytes. A task has its workflow, the event and all secrets.
	maxAnswer = 16 << 20
	// maxErrorText bounds the text of an error of the server, in bytes.
	maxErrorText = 300
	// callTimeout bounds a call, but for fetch: a task whose answer is given up is lost.
	callTimeout, fetchTimeout = 30 * time.Second, 2 * time.Minute
)

// Client calls the service of a server for runners: Connect's unary calls with JSON. It is safe for concurrent use, but
// for Fetch.
type Client struct {
	root string // the URL of the server, without a slash at its end
	http *servercall.Client
	uuid string // of the runner; empty before it is registered
	key  string // its token
	ask  string // names the next question for a task
}

// NewClient returns a client of the server at a URL.
func NewClient(root string) *Client {
	return &Client{root: strings.TrimRight(root, "/"), http: servercall.New(nil)}
}

// As returns a client that calls as a runner that is registered.
func (c *Client) As(r Registration) *Client {
	own := *c
	own.uuid, own.key, own.ask = r.UUID, r.Token, rand.Text()
	return &own
}

// Close closes connections that no call uses.
func (c *Client) Close() { c.http.Close() }

// CallError is an error that the server has answered.
type CallError struct {
	Method string
	Status int    // of HTTP
	Code   string // of Connect, in lower case
	Text   string
}

func (e *CallError) Error() string {
	return fmt.Sprintf("%s: the server answers %d %s: %s", e.Method, e.Status, e.Code, e.Text)
}

// The codes of Connect that have a meaning here.
const (
	codeUnauthenticated = "unauthenticated"
	codeNotFound        = "not_found"
	codeDenied          = "permission_denied"
	codeExists          = "already_exists"
)

// isCode reports whether the server has answered with one of these codes.
func isCode(err error, codes ...string) bool {
	e, ok := errors.AsType[*CallError](err)
	if !ok {
		return false
	}
	for _, code := range codes {
		if e.Code == code {
			return true
		}
	}
	return false
}

// call makes a unary call. headers are names and values in turns.
func (c *Client) call(
	ctx context.Context, timeout time.Duration, method string, in, out any, headers ...string,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	header := http.Header{"Content-Type": {"application/json"}, "Connect-Protocol-Version": {"1"}}
	if c.uuid != "" {
		header.Set("X-Runner-Uuid", c.uuid)
		header.Set("X-Runner-Token", c.key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	got, err := c.http.Do(ctx, servercall.Request{
		Method: http.MethodPost, URL: c.root + "/api/actions/" + method, Header: header, Body: body, Max: maxAnswer,
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", method, err)
	case got.Status != http.StatusOK:
		return errorOf(method, got.Status, got.Text)
	}
	if err := json.Unmarshal(got.Text, out); err != nil {
		return fmt.Errorf("%s: the answer is not JSON of this service, is the URL that of a Gitea or Forgejo? %.100q", method,
			got.Text)
	}
	return nil
}

// errorOf returns the error of an answer. Forgejo sends the code of Connect; Gitea sends "unknown", and the code of
// gRPC in the text.
func errorOf(method string, status int, text []byte) error {
	e := &CallError{Method: method, Status: status, Code: "unknown"}
	var told struct{ Code, Message string }
	if json.Unmarshal(text, &told) == nil && told.Code != "" {
		e.Code, e.Text = told.Code, told.Message
		if code, rest, ok := strings.Cut(strings.TrimPrefix(told.Message, "rpc error: code = "), " desc = "); ok {
			e.Code, e.Text = snake(code), rest
		}
	} else if e.Text = string(text); status < http.StatusInternalServerError { // not of a proxy before it
		e.Text = "no answer of this service, is the URL that of a Gitea or Forgejo? " + e.Text
	}
	if e.Code == "unknown" && status == http.StatusUnauthorized {
		e.Code = codeUnauthenticated
	}
	e.Code, e.Text = termtext.Cut(termtext.Line(e.Code), 40), termtext.Cut(termtext.Line(e.Text), maxErrorText)
	return e
}

// snake returns the code of Connect for that of gRPC, such as not_found for NotFound.
func snake(code string) string {
	var b strings.Builder
	for i, c := range code {
		if c >= 'A' && c <= 'Z' && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(c)
	}
	return strings.ToLower(b.String())
}

// Commit returns the commit of a revision of a repository, which is OWNER/NAME. token is that of a task.
func (c *Client) Commit(ctx context.Context, token, repository, revision string) (string, error) {
	var out struct{ SHA string }
	text, err := c.get(ctx, token, repository,
		"git/commits/"+url.PathEscape(revision)+"?stat=false&verification=false&files=false")
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	return out.SHA, err
}

// File returns a file of a repository.
func (c *Client) File(ctx context.Context, token, repository, revision, path string) ([]byte, error) {
	return c.get(ctx, token, repository, "raw/"+(&url.URL{Path: path}).EscapedPath()+"?ref="+url.QueryEscape(revision))
}

// maxFile bounds a workflow, in bytes.
const maxFile = 1 << 20

// get reads a part of a repository by the API for users.
func (c *Client) get(ctx context.Context, token, repository, part string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	what := "read " + repository
	got, err := c.http.Do(ctx, servercall.Request{
		Method: http.MethodGet, URL: c.root + "/api/v1/repos/" + (&url.URL{Path: repository}).EscapedPath() + "/" + part,
		Header: http.Header{"Authorization": {"token " + token}}, Max: maxFile,
	})
	if errors.Is(err, servercall.ErrTooLarge) {
		return nil, &CallError{what, http.StatusRequestEntityTooLarge, "unknown", "the file has more than 1 MiB"}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if got.Status != http.StatusOK {
		text := termtext.Cut(termtext.Line(servercall.Message(got.Text)), maxErrorText)
		return nil, &CallError{what, got.Status, "unknown", text}
	}
	return got.Text, nil
}

const service = "runner.v1.RunnerService/"

// Ping asks whether a server is there that has runners.
func (c *Client) Ping(ctx context.Context) error {
	var out struct{ Data string }
	return c.call(ctx, callTimeout, "ping.v1.PingService/Ping", map[string]string{"data": "stepmux"}, &out)
}

// Registration is a runner that a server knows.
type Registration struct {
	UUID  string `json:"uuid"`
	Token string `json:"token"`
	Name  string `json:"name"`
	// Ephemeral says that the server forgets the runner after its first task. Asked says that it was asked to do so.
	Ephemeral bool `json:"ephemeral,omitempty"`
	Asked     bool `json:"asked,omitempty"`
}

// Register makes a runner known to the server by a registration token, with labels. A server that has no ephemeral
// runners ignores that.
func (c *Client) Register(
	ctx context.Context, name, token, version string, labels []string, ephemeral bool,
) (Registration, error) {
	in := map[string]any{"name": name, "token": token, "version": version, "labels": labels}
	if ephemeral {
		in["ephemeral"] = true
	}
	var out struct{ Runner Registration }
	if err := c.call(ctx, callTimeout, service+"Register", in, &out); err != nil {
		return Registration{}, err
	}
	if out.Runner.UUID == "" || out.Runner.Token == "" {
		return Registration{}, errors.New("register: the server answers without a runner")
	}
	out.Runner.Asked = ephemeral
	return out.Runner, nil
}

// Declare tells the server the labels of the runner.
func (c *Client) Declare(ctx context.Context, version string, labels []string) error {
	var out struct{}
	return c.call(ctx, callTimeout, service+"Declare", map[string]any{"version": version, "labels": labels}, &out)
}

// Task is a job that the server has given to this runner.
type Task struct {
	ID int64 `json:"id,string"`
	// Workflow is the text of a workflow that has this job alone.
	Workflow []byte `json:"workflowPayload"`
	// Context is GitHub's context, with the event and the tokens.
	Context map[string]any    `json:"context"`
	Secrets map[string]string `json:"secrets"`
	Vars    map[string]string `json:"vars"`
	// Needs are the outcomes of the jobs that this one needs.
	Needs map[string]Need `json:"needs"`
}

// Need is the outcome of a job.
type Need struct {
	Outputs map[string]string `json:"outputs"`
	Result  string            `json:"result"`
}

// text returns a text of the context.
func (t *Task) text(name string) string {
	switch v := t.Context[name].(type) {
	case string:
		return v
	case float64:
		return fmt.Sprintf("%.0f", v)
	default:
		return ""
	}
}

// Fetch asks for so many tasks; the answer may be empty, and Gitea gives at most one. version is that of the last
// answer; 0 makes the server look in any case. One goroutine calls it at a time. After a call whose answer is lost, a
// Forgejo gives the same tasks again, by the key of the question; Gitea knows no key.
func (c *Client) Fetch(ctx context.Context, version int64, count int) (tasks []*Task, now int64, err error) {
	var out struct {
		TasksVersion    int64   `json:"tasksVersion,string"`
		Task            *Task   `json:"task"`
		AdditionalTasks []*Task `json:"additionalTasks"`
	}
	in := struct {
		TasksVersion int64 `json:"tasksVersion,string"`
		TaskCapacity int   `json:"taskCapacity,omitempty"` // Forgejo's
	}{TasksVersion: version}
	if count > 1 {
		in.TaskCapacity = count
	}
	err = c.call(ctx, fetchTimeout, service+"FetchTask", in, &out, "X-Runner-Request-Key", c.ask)
	if err != nil {
		return nil, 0, err
	}
	c.ask = rand.Text()
	for _, task := range append([]*Task{out.Task}, out.AdditionalTasks...) {
		if task != nil {
			tasks = append(tasks, task)
		}
	}
	return tasks, out.TasksVersion, nil
}

// Row is a line of a log.
type Row struct {
	Time    time.Time `json:"time"`
	Content string    `json:"content"`
}

// UpdateLog sends rows of the log from an index, and returns how many the server has. last says that there are no more.
func (c *Client) UpdateLog(ctx context.Context, task, index int64, rows []Row, last bool) (have int64, err error) {
	if rows == nil {
		rows = []Row{}
	}
	in := struct {
		TaskID int64 `json:"taskId,string"`
		Index  int64 `json:"index,string"`
		Rows   []Row `json:"rows"`
		NoMore bool  `json:"noMore,omitempty"`
	}{task, index, rows, last}
	var out struct {
		AckIndex int64 `json:"ackIndex,string"`
	}
	err = c.call(ctx, callTimeout, service+"UpdateLog", in, &out)
	return out.AckIndex, err
}

// The results of a task and of a step. A server takes any other word for one that is still running.
const (
	resultNone      = "RESULT_UNSPECIFIED"
	resultSuccess   = "RESULT_SUCCESS"
	resultFailure   = "RESULT_FAILURE"
	resultCancelled = "RESULT_CANCELLED"
	resultSkipped   = "RESULT_SKIPPED"
)

// Step is a step of a task.
type Step struct {
	ID        int64      `json:"id,string"`
	Result    string     `json:"result,omitempty"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	StoppedAt *time.Time `json:"stoppedAt,omitempty"`
	LogIndex  int64      `json:"logIndex,string"`
	LogLength int64      `json:"logLength,string"`
}

// State is how a task stands.
type State struct {
	ID        int64      `json:"id,string"`
	Result    string     `json:"result,omitempty"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	StoppedAt *time.Time `json:"stoppedAt,omitempty"`
	Steps     []Step     `json:"steps,omitempty"`
}

// UpdateTask tells the server how a task stands, and returns the result that the server has for it. The first call with
// a result is the last that counts.
func (c *Client) UpdateTask(ctx context.Context, state *State, outputs map[string]string) (result string, err error) {
	if outputs == nil {
		outputs = map[string]string{}
	}
	in := struct {
		State   *State            `json:"state"`
		Outputs map[string]string `json:"outputs"`
	}{state, outputs}
	var out struct{ State State }
	err = c.call(ctx, callTimeout, service+"UpdateTask", in, &out)
	return out.State.Result, err
}
