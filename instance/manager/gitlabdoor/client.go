package gitlabdoor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/servercall"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// maxJob bounds the answer with a job, in bytes. It has all variables, files among them. maxAnswer bounds others.
	maxJob, maxAnswer = 64 << 20, 1 << 20
	// maxErrorText bounds the text of an error of the server, in bytes.
	maxErrorText = 300
	// callTimeout bounds a try of a call. A request for a job is held for 50 seconds, and the job of an answer that is
	// given up is lost; a piece of a trace is up to 1 MiB.
	callTimeout, requestTimeout, traceTimeout = 30 * time.Second, 3 * time.Minute, 2 * time.Minute
	// repeats is how often a call is repeated if the server fails. It is repeated up to waits times if the server says
	// each time when, as one does that is asked too often. Who calls repeats it after that, with longer pauses.
	repeats, waits, firstPause = 1, 4, 250 * time.Millisecond
	// maxInterval bounds the pause that a server asks for between two reports.
	maxInterval = 15 * time.Minute
)

// Config says which server a Client calls, and as which runner.
type Config struct {
	// URL is that of the server, for instance https://gitlab.example.com. Required.
	URL string
	// Token is that of the runner: glrt-... Required.
	Token string
	// System names this manager among those that use the token: s_ or r_, and 12 characters. Required.
	System string
	// Files are those of TLS.
	Files servercall.Files
	// Info describes the runner to the server.
	Info Info
}

// Info describes a runner. The server gives it only jobs whose needs are among the features.
type Info struct {
	Name         string          `json:"name,omitempty"`
	Version      string          `json:"version,omitempty"`
	Platform     string          `json:"platform,omitempty"`
	Architecture string          `json:"architecture,omitempty"`
	Executor     string          `json:"executor,omitempty"`
	Shell        string          `json:"shell,omitempty"`
	Features     map[string]bool `json:"features"`
}

// Client makes the calls of a runner. A call that the server cannot answer now is repeated once, or up to four times
// after times that the server asks for; errors of the network are returned at once. It is safe for concurrent use.
// The owner closes it. A request for a job is not repeated: a slot waits with it.
type Client struct {
	cfg  Config
	http *servercall.Client
	// pieces has room for each piece of a trace that may be on its way at once: that bounds the memory for the traces of
	// all jobs.
	pieces chan struct{}
}

// NewClient returns a Client. It reads the files of TLS, and calls nothing.
func NewClient(cfg Config) (*Client, error) {
	if !strings.HasPrefix(cfg.URL, "https://") && !strings.HasPrefix(cfg.URL, "http://") {
		return nil, fmt.Errorf("the url %.160q: write that of the server, as https://gitlab.example.com", cfg.URL)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if cfg.Files != (servercall.Files{}) {
		security, err := cfg.Files.Config()
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = security
	}
	cfg.URL = strings.TrimRight(cfg.URL, "/")
	c := &Client{cfg: cfg, http: servercall.New(transport), pieces: make(chan struct{}, maxPieces)}
	return c, nil
}

// As returns a Client of another runner at the same server, with the same connections. Closing it closes the Client.
func (c *Client) As(token, system string) *Client {
	other := *c
	other.cfg.Token, other.cfg.System = token, system
	return &other
}

// Close closes connections that no call uses.
func (c *Client) Close() { c.http.Close() }

// CallError is an answer that the call cannot use. The door decides by the Status.
type CallError struct {
	Op     string // what was to be done
	Status int    // of HTTP
	Text   string // the server's explanation, or the hint for an operator
	wait   time.Duration
}

// Error implements error.
func (e *CallError) Error() string {
	text := fmt.Sprintf("%s: the server answers %d %s", e.Op, e.Status, http.StatusText(e.Status))
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// StatusOf returns the status of an answer that a call could not use, or 0.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*CallError](err); ok {
		return e.Status
	}
	return 0
}

// waitOf returns how long the server asks to wait after an error, at most maxInterval, or 0.
func waitOf(err error) time.Duration {
	if e, ok := errors.AsType[*CallError](err); ok {
		return max(0, min(e.wait, maxInterval))
	}
	return 0
}

// callError returns the error of an answer.
func callError(op string, got *servercall.Answer) *CallError {
	now := time.Now()
	if at, err := http.ParseTime(got.Header.Get("Date")); err == nil {
		now = at // times in the answer are by the server's clock
	}
	e := &CallError{Op: op, Status: got.Status, wait: servercall.Wait(got.Header, now)}
	switch {
	case got.Status >= 300 && got.Status < 400:
		e.Text = fmt.Sprintf("it redirects to %q; write that server's URL if it is the right one", got.Header.Get("Location"))
	case isPage(got):
		e.Text = "a page of HTML; is the URL that of a GitLab?"
	default:
		e.Text = servercall.Message(got.Text)
	}
	e.Text = termtext.Short(e.Text, maxErrorText)
	return e
}

// isPage reports whether an answer is a page: a proxy before the server has answered, or another server.
func isPage(got *servercall.Answer) bool {
	return strings.HasPrefix(got.Header.Get("Content-Type"), "text/html")
}

// request is a call.
type request struct {
	op, method, path string
	header           http.Header
	body             []byte
	max              int64
	timeout          time.Duration // of a try
	once             bool          // it is not repeated
}

// do makes a call, and returns an answer that is not temporary.
func (c *Client) do(ctx context.Context, r request) (got *servercall.Answer, err error) {
	r.header.Set("Accept", "application/json")
	tries := 0
	err = servercall.Retry{
		Times: waits, First: firstPause,
		Check: func(err error) (again bool, wait time.Duration) {
			e, ok := errors.AsType[*CallError](err)
			if !ok {
				return false, 0
			}
			return !r.once && (tries <= repeats || e.wait >= 0), e.wait
		},
	}.Do(ctx, func(n int) error {
		tries = n + 1
		trying, cancel := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("no answer within %v", r.timeout))
		defer cancel()
		var err error
		got, err = c.http.Do(trying, servercall.Request{
			Method: r.method, URL: c.cfg.URL + "/api/v4/" + r.path, Header: r.header, Body: r.body, Max: r.max,
		})
		switch {
		case err != nil && trying.Err() != nil:
			return fmt.Errorf("%s: %w", r.op, context.Cause(trying))
		case err != nil:
			return fmt.Errorf("%s: %w", r.op, err)
		case servercall.Temporary(got.Status):
			return callError(r.op, got)
		}
		return nil
	})
	return got, err
}

// runnerRequest is the body of calls of a runner.
type runnerRequest struct {
	Info       *Info  `json:"info"`
	Token      string `json:"token"`
	System     string `json:"system_id"`
	LastUpdate string `json:"last_update,omitempty"`
}

// ask makes a call with the token of the runner.
func (c *Client) ask(
	ctx context.Context, op, path, last string, timeout time.Duration, max int64,
) (*servercall.Answer, error) {
	body, err := json.Marshal(runnerRequest{&c.cfg.Info, c.cfg.Token, c.cfg.System, last})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return c.do(ctx, request{
		op: op, method: http.MethodPost, path: path, body: body, timeout: timeout, max: max, once: path == requestPath,
		header: http.Header{"Content-Type": {"application/json"}, "Runner-Token": {c.cfg.Token}},
	})
}

// Runner is a runner as the server knows it.
type Runner struct {
	ID int64 `json:"id"`
	// Expires is when the token ends; zero if it does not.
	Expires time.Time `json:"token_expires_at"`
}

// Verify asks whether the token is valid. An invalid one has the status 403.
func (c *Client) Verify(ctx context.Context) (runner Runner, err error) {
	const op = "verify the runner"
	got, err := c.ask(ctx, op, "runners/verify", "", callTimeout, maxAnswer)
	if err != nil {
		return runner, err
	}
	if got.Status != http.StatusOK {
		e := callError(op, got)
		if got.Status == http.StatusForbidden && !isPage(got) {
			e.Text = "the token is none of a runner there (" + e.Text + ")"
		}
		return runner, e
	}
	if err := json.Unmarshal(got.Text, &runner); err != nil || runner.ID <= 0 {
		return runner, fmt.Errorf("%s: the answer has no runner, is the URL that of a GitLab? %.100q", op, got.Text)
	}
	return runner, nil
}

// Job is a job that the server has given to this runner.
type Job struct {
	ID    int64  `json:"id"`
	Token string `json:"token"`
	// Answer is the whole answer of the server, as JSON. It has the secrets of the job.
	Answer json.RawMessage `json:"-"`
}

const requestPath = "jobs/request"

// Request asks for a job; without one the job is nil. last is that of the last answer, empty at first: with it the
// server holds a request for up to 50 seconds while nothing changes. A request that was held gives no job: the next
// one does. The status 403 means that the token is not valid, and 409 that another runner was faster: ask again.
func (c *Client) Request(ctx context.Context, last string) (job *Job, now string, err error) {
	const op = "request a job"
	got, err := c.ask(ctx, op, requestPath, last, requestTimeout, maxJob)
	if err != nil {
		return nil, last, err
	}
	if told := got.Header.Get("X-Gitlab-Last-Update"); told != "" && len(told) <= maxErrorText {
		last = told
	}
	switch got.Status {
	case http.StatusNoContent:
		return nil, last, nil
	case http.StatusCreated:
		job = &Job{}
		if err := json.Unmarshal(got.Text, job); err != nil || job.ID <= 0 || job.Token == "" {
			return nil, last, fmt.Errorf("%s: the answer is no job, is the URL that of a GitLab? %d bytes: %.20q", op,
				len(got.Text), got.Text)
		}
		job.Answer = got.Text
		return job, last, nil
	}
	return nil, last, callError(op, got)
}

// number returns a header that is a number from 1 on, or 0.
func number(h http.Header, name string) int64 {
	n, _ := strconv.ParseUint(h.Get(name), 10, 31) // 0 if it is none
	return int64(n)
}
