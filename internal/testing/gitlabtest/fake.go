// Package gitlabtest has a [Fake] of a GitLab server, as runners see it: the calls that give out jobs, take their
// traces and results, and store their artifacts.
//
// It is a fake: no GitLab server can be had for the tests. It is written from the published sources of GitLab's API for
// runners (the endpoints, the services behind them, and Workhorse's long poll) and of GitLab Runner 19.4. The module in
// the folder runner makes every call with GitLab Runner's own client (make prove WHAT=gitlab). Each test run holds its
// recorded conversation with the fake again. Where servers differ, a field of [Config] says how this one is.
//
// It is stricter than GitLab 19 in one point: a wrong checksum or size of the trace is answered with 412. Runners know
// that status; the server only logs the mistake.
package gitlabtest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Config says how a Fake answers. The zero value is a server with the defaults of GitLab.
type Config struct {
	// Acknowledges says that the flag allow_runner_job_acknowledgement is on: a runner with two_phase_job_commit has to
	// acknowledge a job.
	Acknowledges bool
	// Acknowledge is how long a runner has time for that. If zero, 2 minutes.
	Acknowledge time.Duration
	// Hold is how long a request for a job is held while nothing changes. If zero, 50 seconds. If negative, it is not.
	Hold time.Duration
	// Interval is the X-GitLab-Trace-Update-Interval, in whole seconds. If zero, 60 seconds: nobody watches the job.
	Interval time.Duration
	// MaxTrace and MaxArtifact bound a trace and a file, in bytes. If zero, 100 MiB.
	MaxTrace, MaxArtifact int64
	// Lenient says that a wrong checksum is taken, as GitLab does, which only logs it.
	Lenient bool
	// Later is how often a final state is answered with 202 before it is taken, as a server does that still moves the
	// trace to its store.
	Later int
	// Store is the URL of a store of objects to which artifacts are redirected. The Fake answers there, too. If empty,
	// the server stores them itself.
	Store string
	// Rate is how many calls a minute are answered. If zero, all.
	Rate int
}

// RunnerToken is the token of the only runner.
const RunnerToken = "glrt-fake-runner-token"

// The states of a Job. Waiting is a job that a runner has to acknowledge; a GitLab calls it pending, too.
const (
	Pending   = "pending"
	Waiting   = "waiting"
	Running   = "running"
	Canceling = "canceling"
	Canceled  = "canceled"
	Success   = "success"
	Failed    = "failed"
)

// Job is a job on a Fake.
type Job struct {
	ID     int64
	Token  string
	Status string
	// Answer has the other fields of the answer with which a runner gets the job.
	Answer map[string]any
	// Retry is the ID of the job that took the place of this one, because no runner acknowledged it.
	Retry int64

	// The following was reported by a runner.

	System    string // its system_id
	Taken     int    // how often it was handed out
	Trace     []byte
	Reason    string // failure_reason
	ExitCode  int
	Final     int               // how often a final state was reported
	Artifacts map[string][]byte // by their artifact_type

	graceful bool // its runner knows canceling
	later    int  // final states that were answered with 202
	expiry   *time.Timer
}

// Call is a call that was answered.
type Call struct {
	At     time.Time
	Method string // of HTTP
	Path   string // after /api/v4/, with the query
	Header http.Header
	Body   []byte // cut after 64 KiB
	Size   int64  // of the whole body
	Status int    // 0 if the answer was lost
	Answer http.Header
	Text   []byte // of the answer
}

// Fault is another answer to a call than the right one.
type Fault struct {
	Status int // if 0, the connection breaks
	Header http.Header
	Text   string
	// Acts says that the call is served all the same, and only its answer is lost.
	Acts bool
}

// Fake is an http.Handler. It is safe for concurrent use. Its times are those of the clock: tests put it into a bubble
// of synctest, with [Fake.Transport], or make them short.
type Fake struct {
	cfg Config

	mu      sync.Mutex // guards the following
	jobs    map[int64]*Job
	queue   []*Job
	next    int64
	update  int           // of the queue
	changed chan struct{} // closed when the queue changes
	revoked bool
	calls   []Call
	fault   func(*http.Request, []byte) *Fault
	window  time.Time // in which the calls are counted
	counted int
}

// New returns a Fake.
func New(cfg Config) *Fake {
	cfg.Acknowledge = cmp.Or(cfg.Acknowledge, 2*time.Minute)
	cfg.Hold = cmp.Or(cfg.Hold, 50*time.Second)
	cfg.Interval = cmp.Or(cfg.Interval, time.Minute)
	cfg.MaxTrace = cmp.Or(cfg.MaxTrace, 100<<20)
	cfg.MaxArtifact = cmp.Or(cfg.MaxArtifact, 100<<20)
	return &Fake{cfg: cfg, jobs: map[int64]*Job{}, update: 1, changed: make(chan struct{})}
}

// Serve serves f on the loopback until the test ends, and returns its URL.
func (f *Fake) Serve(t testing.TB) (address string) {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		f.Close()
	})
	return server.URL
}

// Transport returns a transport whose connections all lead to f, in memory, whatever the host: it works in a bubble of
// synctest. It ends with the test.
func (f *Fake) Transport(t testing.TB) *http.Transport {
	t.Helper()
	listener := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{Handler: f}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // until it is closed
	}()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		here, there := net.Pipe()
		select {
		case listener.conns <- there:
			return here, nil
		case <-listener.done:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		<-ended
		f.Close()
	})
	return transport
}

// pipeListener accepts the connections of a Transport.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "fake", Net: "pipe"} }

// Close stops the timers of jobs that no runner acknowledged.
func (f *Fake) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.jobs {
		if j.expiry != nil {
			j.expiry.Stop()
		}
	}
}

// Script returns the answer for a job with a script, in the shape of GitLab's.
func Script(lines ...string) map[string]any {
	return map[string]any{
		"allow_git_fetch": true,
		"job_info": map[string]any{
			"id": 1, "name": "test", "stage": "test", "project_id": 7, "project_name": "project",
			"project_full_path": "group/project", "pipeline_id": 9, "user_id": 3,
		},
		"git_info": map[string]any{
			"repo_url": "https://gitlab-ci-token:a-token@gitlab.example.com/group/project.git", "ref": "main",
			"sha": "0123456789012345678901234567890123456789", "before_sha": "0000000000000000000000000000000000000000",
			"ref_type": "branch", "refspecs": []string{"+refs/heads/main:refs/remotes/origin/main"}, "depth": 20,
			"repo_object_format": "sha1",
		},
		"runner_info": map[string]any{"timeout": 3600},
		"variables": []map[string]any{
			{"key": "CI", "value": "true", "public": true, "masked": false, "raw": false, "file": false},
			{"key": "SECRET", "value": "a secret value", "public": false, "masked": true, "raw": true, "file": false},
		},
		"steps": []map[string]any{
			{"name": "script", "script": lines, "timeout": 3600, "when": "on_success", "allow_failure": false},
		},
		"artifacts": nil, "cache": []any{}, "credentials": []any{}, "dependencies": []any{}, "services": []any{},
		"image": nil, "hooks": []any{}, "secrets": map[string]any{},
		"features": map[string]any{
			"trace_sections": true, "token_mask_prefixes": []string{"glpat-"},
			"failure_reasons": []string{"unknown_failure", "script_failure", "runner_system_failure", "job_execution_timeout"},
		},
	}
}

// Add lets a job wait, and returns its ID. answer has the fields of the answer with it.
func (f *Fake) Add(answer map[string]any) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addLocked(answer).ID
}

func (f *Fake) addLocked(answer map[string]any) *Job {
	f.next++
	j := &Job{
		ID: f.next, Token: fmt.Sprintf("glcbt-token-of-job-%d", f.next), Status: Pending, Answer: answer,
		Artifacts: map[string][]byte{},
	}
	f.jobs[j.ID] = j
	f.queue = append(f.queue, j)
	f.tickLocked()
	return j
}

// tickLocked says that the queue has changed.
func (f *Fake) tickLocked() {
	f.update++
	close(f.changed)
	f.changed = make(chan struct{})
}

// Job returns a job as it is now.
func (f *Fake) Job(id int64) Job {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := *f.jobs[id]
	j.Trace, j.Artifacts = slices.Clone(j.Trace), maps.Clone(j.Artifacts)
	return j
}

// Size returns the size of the trace of a job.
func (f *Fake) Size(id int64) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.jobs[id].Trace)
}

// Checksum returns the checksum of the trace, as runners report it.
func (j *Job) Checksum() string { return fmt.Sprintf("crc32:%08x", crc32.ChecksumIEEE(j.Trace)) }

// Cancel cancels a job: gracefully if its runner knows that.
func (f *Fake) Cancel(id int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.jobs[id]
	if j.Status == Running && j.graceful {
		j.Status = Canceling
		return
	}
	f.endLocked(j, Canceled)
}

// End gives a job a final state, as the time limit of the server does.
func (f *Fake) End(id int64, status string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked(f.jobs[id], status)
}

func (f *Fake) endLocked(j *Job, status string) {
	j.Status = status
	f.queue = slices.DeleteFunc(f.queue, func(other *Job) bool { return other == j })
	if j.expiry != nil {
		j.expiry.Stop()
	}
}

// Cut cuts the trace of a job, as a server does that has lost its latest part.
func (f *Fake) Cut(id int64, size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.jobs[id].Trace = f.jobs[id].Trace[:size]
}

// Revoke makes the token of the runner invalid.
func (f *Fake) Revoke() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revoked = true
	f.tickLocked()
}

// Renew makes the token valid again.
func (f *Fake) Renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revoked = false
	f.tickLocked()
}

// Fail lets fault see each call before it is served. If it returns nil, the call is served as it should be. It may be
// called several times at once. If fault is nil, all calls are served.
func (f *Fake) Fail(fault func(*http.Request) *Fault) {
	if fault == nil {
		f.FailBody(nil)
		return
	}
	f.FailBody(func(req *http.Request, _ []byte) *Fault { return fault(req) })
}

// FailBody is Fail with the bodies of the calls.
func (f *Fake) FailBody(fault func(req *http.Request, body []byte) *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// Calls returns the calls so far.
func (f *Fake) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// ServeHTTP implements http.Handler.
func (f *Fake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 256<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fault := f.faultOf(req, body)
	a := &answer{}
	if fault == nil || fault.Acts {
		a = f.serve(req, body)
	}
	if fault != nil {
		a = &answer{status: fault.Status, header: fault.Header, text: []byte(fault.Text)}
	}
	f.note(req, body, a)
	if a.status == 0 {
		panic(http.ErrAbortHandler) // the connection is closed
	}
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.text) // the runner may be gone
}

func (f *Fake) faultOf(req *http.Request, body []byte) *Fault {
	f.mu.Lock()
	fault := f.fault
	f.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(req, body)
}

// note keeps a call.
func (f *Fake) note(req *http.Request, body []byte, a *answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, Call{
		At: time.Now(), Method: req.Method, Path: relative(req.URL), Header: req.Header.Clone(),
		Body: slices.Clone(body[:min(len(body), 64<<10)]), Size: int64(len(body)),
		Status: a.status, Answer: a.header.Clone(), Text: slices.Clone(a.text[:min(len(a.text), 64<<10)]),
	})
}

// answer is an answer to a call.
type answer struct {
	status int
	header http.Header
	text   []byte
}

// of returns an answer with values as JSON, or with no body. Names and values of the header follow in turns.
func of(status int, value any, header ...string) *answer {
	a := &answer{status: status, header: http.Header{}}
	for i := 0; i+1 < len(header); i += 2 {
		a.header.Set(header[i], header[i+1])
	}
	if value != nil {
		a.text, _ = json.Marshal(value) // maps of texts
		a.header.Set("Content-Type", "application/json")
	}
	return a
}

// refused returns the answer of a call that is refused. why may be empty.
func refused(status int, why string, header ...string) *answer {
	text := strconv.Itoa(status) + " " + http.StatusText(status)
	if why != "" {
		text += " - " + why
	}
	return of(status, map[string]string{"message": text}, header...)
}
