// Package giteatest has servers of Gitea for tests: [Fake], which answers as a Gitea 1.26.0 was seen to answer, and
// [Real], which starts a Gitea that make prove WHAT=gitea has built.
package giteatest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// RegistrationToken is the registration token of a Fake.
const RegistrationToken = "registration-token"

// Fake stands for a server where no real one is built. It knows the calls of runners alone, and refuses the same calls
// as Gitea. It is safe for concurrent use.
type Fake struct {
	*httptest.Server

	mu      sync.Mutex // guards the following
	runners map[string]*fakeRunner
	version int64
	silent  bool
	next    int64
	waiting []*FakeTask
	tasks   map[int64]*FakeTask
	calls   map[string]int
	files   map[string]string                                      // of repositories, by OWNER/NAME/PATH@REVISION
	refuse  func(method string) (status int, code, message string) // may be nil
}

type fakeRunner struct {
	id     int
	name   string
	token  string
	labels []string
	// ephemeral says that the runner is gone with its task.
	ephemeral, used bool
}

// answer returns the runner as the server tells of it.
func (r *fakeRunner) answer(uuid, version string) map[string]any {
	told := map[string]any{
		"id": strconv.Itoa(r.id), "uuid": uuid, "name": r.name, "version": version, "labels": r.labels,
	}
	if r.ephemeral {
		told["ephemeral"] = true
	}
	return told
}

// FakeTask is a job on a Fake.
type FakeTask struct {
	ID       int64
	Workflow string
	RunsOn   []string
	Context  map[string]any
	Secrets  map[string]string
	Vars     map[string]string
	Needs    map[string]any

	// The following was reported by a runner.

	Runner  string // uuid; empty while nobody has it
	Taken   int    // how often it was handed out
	Rows    []string
	Closed  bool // there are no more rows
	Result  string
	Final   int // how often a result was reported
	Steps   []FakeStep
	Outputs map[string]string

	cancel bool
}

// FakeStep is a step that a runner has reported.
type FakeStep struct {
	ID                  int64 `json:"id,string"`
	Result              string
	StartedAt           *time.Time
	StoppedAt           *time.Time
	LogIndex, LogLength int64 `json:",string"`
}

// NewFake starts a Fake, which ends with the test.
func NewFake(t testing.TB) *Fake {
	t.Helper()
	f := &Fake{runners: map[string]*fakeRunner{}, tasks: map[int64]*FakeTask{}, calls: map[string]int{}, version: 1}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// Add lets a job wait, and returns its ID.
func (f *Fake) Add(task FakeTask) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	if !f.silent {
		f.version++
	}
	task.ID = f.next
	f.tasks[task.ID] = &task
	f.waiting = append(f.waiting, &task)
	return task.ID
}

// Task returns a job as it is now.
func (f *Fake) Task(id int64) FakeTask {
	f.mu.Lock()
	defer f.mu.Unlock()
	task := *f.tasks[id]
	task.Rows = slices.Clone(task.Rows)
	return task
}

// Cancel cancels a job: the next answer about it says so.
func (f *Fake) Cancel(id int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tasks[id].cancel = true
}

// Forget makes the server not know its runners any more.
func (f *Fake) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.runners)
}

// StaysSilent makes the version of the tasks stay the same when a job waits.
func (f *Fake) StaysSilent() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = true
}

// Labels returns the labels of all runners.
func (f *Fake) Labels() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.runners {
		all = append(all, r.labels...)
	}
	return all
}

// Runners returns how many runners the server knows.
func (f *Fake) Runners() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.runners)
}

// Calls returns how often a method was called.
func (f *Fake) Calls(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

// Refuse makes calls fail for which refuse returns a status other than 0. If it is nil, all succeed.
func (f *Fake) Refuse(refuse func(method string) (status int, code, message string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = refuse
}

// AddFile adds a file of a repository, which is OWNER/NAME, at a commit. The revision main is that commit, too.
func (f *Fake) AddFile(repository, commit, path, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.files == nil {
		f.files = map[string]string{}
	}
	f.files[repository+"/raw/"+path+"@"+commit] = text
	f.files[repository+"/git/commits/main@"] = fmt.Sprintf(`{"sha": %q}`, commit)
}

// serveFile answers a question about a repository.
func (f *Fake) serveFile(w http.ResponseWriter, req *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, known := f.files[strings.TrimPrefix(req.URL.Path, reposPath)+"@"+req.URL.Query().Get("ref")]
	if !known || !strings.HasPrefix(req.Header.Get("Authorization"), "token ") {
		w.WriteHeader(http.StatusNotFound)
		text = `{"message": "The target couldn't be found."}`
	}
	_, _ = io.WriteString(w, text)
}

// reposPath begins the paths of questions about repositories.
const reposPath = "/api/v1/repos/"

// ServeHTTP implements http.Handler.
func (f *Fake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/api/v1/version" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"version": "1.26.0"}`)
		return
	}
	if strings.HasPrefix(req.URL.Path, reposPath) {
		f.serveFile(w, req)
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	method := req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]
	f.calls[method]++
	if f.refuse != nil {
		if status, code, message := f.refuse(method); status != 0 {
			fail(w, status, code, message)
			return
		}
	}
	uuid := req.Header.Get("X-Runner-Uuid")
	if method != "Register" && method != "Ping" {
		if r := f.runners[uuid]; r == nil || r.token != req.Header.Get("X-Runner-Token") {
			fail(w, http.StatusInternalServerError, "unknown", "rpc error: code = Unauthenticated desc = unregistered runner")
			return
		}
	}
	answer, code, message := f.answer(method, uuid, body)
	if code != "" {
		if code != "Unknown" {
			message = "rpc error: code = " + code + " desc = " + message
		}
		fail(w, http.StatusInternalServerError, "unknown", message)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"code": code, "message": message})
}

// request has the fields of all requests.
type request struct {
	Data, Name, Token, Version string
	Labels                     []string
	Ephemeral                  bool
	TasksVersion               int64 `json:",string"`
	TaskID                     int64 `json:"taskId,string"`
	Index                      int64 `json:",string"`
	Rows                       []struct{ Content string }
	NoMore                     bool
	State                      struct {
		ID     int64 `json:"id,string"`
		Result string
		Steps  []FakeStep
	}
	Outputs map[string]string
}

func (f *Fake) answer(method, uuid string, body []byte) (answer any, code, message string) {
	var in request
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, "InvalidArgument", err.Error()
	}
	switch method {
	case "Ping":
		return map[string]string{"data": "Hello, " + in.Data + "!"}, "", ""
	case "Register":
		if in.Token != RegistrationToken {
			return nil, "Unknown", "runner registration token not found"
		}
		uuid = fmt.Sprintf("uuid-%d", f.calls["Register"])
		r := &fakeRunner{
			id: len(f.runners) + 1, name: in.Name, token: "token-of-" + uuid, labels: in.Labels, ephemeral: in.Ephemeral,
		}
		f.runners[uuid] = r
		answer := r.answer(uuid, in.Version)
		answer["token"] = r.token
		return map[string]any{"runner": answer}, "", ""
	case "Declare":
		r := f.runners[uuid]
		r.labels = in.Labels
		return map[string]any{"runner": r.answer(uuid, in.Version)}, "", ""
	case "FetchTask":
		return f.fetch(uuid, in.TasksVersion), "", ""
	case "UpdateLog":
		return f.updateLog(uuid, in)
	case "UpdateTask":
		return f.updateTask(uuid, in)
	}
	return nil, "Unimplemented", method
}

func (f *Fake) fetch(uuid string, version int64) map[string]any {
	answer := map[string]any{"tasksVersion": strconv.FormatInt(f.version, 10)}
	if version == f.version || f.runners[uuid].used { // it does not look
		return answer
	}
	has := f.runners[uuid].labels
	i := slices.IndexFunc(f.waiting, func(t *FakeTask) bool {
		return !slices.ContainsFunc(t.RunsOn, func(label string) bool { return !slices.Contains(has, label) })
	})
	if i < 0 {
		return answer
	}
	t := f.waiting[i]
	f.waiting = slices.Delete(f.waiting, i, i+1)
	t.Runner = uuid
	t.Taken++
	f.runners[uuid].used = f.runners[uuid].ephemeral
	task := map[string]any{"id": strconv.FormatInt(t.ID, 10), "workflowPayload": []byte(t.Workflow), "context": t.Context}
	if len(t.Secrets) > 0 { // it leaves out empty fields
		task["secrets"] = t.Secrets
	}
	if len(t.Vars) > 0 {
		task["vars"] = t.Vars
	}
	if len(t.Needs) > 0 {
		task["needs"] = t.Needs
	}
	answer["task"] = task
	return answer
}

// of returns the task of a runner, for a call that is named so in an error.
func (f *Fake) of(uuid string, id int64, call, missing string) (t *FakeTask, code, message string) {
	switch t = f.tasks[id]; {
	case t == nil || t.Runner == "":
		return nil, "Internal", call + missing + "resource does not exist"
	case t.Runner != uuid:
		return nil, "Internal", call + "invalid runner for task"
	}
	return t, "", ""
}

func (f *Fake) updateLog(uuid string, in request) (answer any, code, message string) {
	t, code, message := f.of(uuid, in.TaskID, "get task: ", fmt.Sprintf("task with id %d: ", in.TaskID))
	if t == nil {
		return nil, code, message
	}
	have := int64(len(t.Rows))
	if from := have - in.Index; len(in.Rows) > 0 && from >= 0 && from < int64(len(in.Rows)) {
		if t.Closed {
			return nil, "AlreadyExists", "log file has been archived"
		}
		for _, row := range in.Rows[from:] {
			t.Rows = append(t.Rows, row.Content)
		}
		t.Closed = in.NoMore
	}
	if len(t.Rows) == 0 {
		return map[string]string{}, "", ""
	}
	return map[string]string{"ackIndex": strconv.Itoa(len(t.Rows))}, "", ""
}

func (f *Fake) updateTask(uuid string, in request) (answer any, code, message string) {
	t, code, message := f.of(uuid, in.State.ID, "update task: ", "")
	if t == nil {
		return nil, code, message
	}
	known := []string{"RESULT_SUCCESS", "RESULT_FAILURE", "RESULT_CANCELLED", "RESULT_SKIPPED"}
	final := slices.Contains(known, in.State.Result)
	if final {
		t.Final++
	}
	if t.Result == "" { // else nothing of it counts any more
		t.Steps = in.State.Steps
		for key, value := range in.Outputs {
			if _, has := t.Outputs[key]; !has && len(key) <= 255 {
				if t.Outputs == nil {
					t.Outputs = map[string]string{}
				}
				t.Outputs[key] = value
			}
		}
		if final {
			t.Result = in.State.Result
			if f.runners[uuid].ephemeral {
				delete(f.runners, uuid)
			}
		}
	}
	result := t.Result
	if result == "" && t.cancel {
		result = "RESULT_CANCELLED"
	}
	state := map[string]any{"id": strconv.FormatInt(t.ID, 10)}
	if result != "" {
		state["result"] = result
	}
	told := map[string]any{"state": state}
	if len(t.Outputs) > 0 {
		told["sentOutputs"] = slices.Sorted(maps.Keys(t.Outputs))
	}
	return told, "", ""
}

// Sign returns the signature of a webhook.
func Sign(secret, body string) string {
	made := hmac.New(sha256.New, []byte(secret))
	made.Write([]byte(body))
	return hex.EncodeToString(made.Sum(nil))
}
