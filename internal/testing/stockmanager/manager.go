package stockmanager

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

const (
	// probeTimeout bounds the command that prints the version.
	probeTimeout = 60 * time.Second
	// version is the manager's.
	version = "19.4.0"
	// dialTimeout bounds one attempt to log in.
	dialTimeout = 30 * time.Second
	// maxRedial is the longest pause between two attempts.
	maxRedial = time.Second
)

// Manager runs jobs on a VM.
type Manager struct {
	Addr string            // host:port of the VM's sshd
	SSH  *ssh.ClientConfig // how to log in
	// Runner is the runner's command on the VM. If empty, "gitlab-runner".
	Runner string
	// Temp is where the shell makes the sockets' directories. If empty, /tmp, as for the real manager.
	Temp string
}

// Job is one job.
type Job struct {
	ID        string
	BuildDir  string // absolute, or relative to the login directory
	Run       string // the list of steps, in JSON
	Variables []*runnerproto.Variable
	// Caches, Dependencies and Artifacts are transferred by scripts before and after the steps. Dependencies are the
	// numbers of the jobs whose artifacts this job needs.
	Caches       []Cache
	Dependencies []string
	Artifacts    []Artifact
	Server       Server // for dependencies and artifacts
	// Log gets the job's log, with the output of serve in it. It is not used after Execute.
	Log io.Writer
	// Cancel, when it is closed, cancels the job's steps, which then end by themselves. May be nil.
	Cancel <-chan struct{}
	// Serving is called with the socket's path before the job is sent. May be nil.
	Serving func(socket string)
}

// Result is the end of a job.
type Result struct {
	State    runnerproto.Status_State
	Message  string // if a script failed, STAGE: exit status N
	ExitCode int    // the N of "exit status N" at the end of the message, otherwise 0
}

// Execute runs the job and returns when its status is final. The error says why there is no status.
func (m *Manager) Execute(ctx context.Context, job Job) (Result, error) {
	log := &buildLog{w: cmp.Or[io.Writer](job.Log, io.Discard)}
	defer log.detach()
	client, err := m.dial(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("log in: %w", err)
	}
	var serve *serving
	defer func() {
		client.Close() // the real manager does not wait for the shell either
		if serve != nil {
			<-serve.ended
		}
	}()
	result, err := m.runStages(ctx, client, job, m.before(job), log)
	if err == nil && result.State == runnerproto.Status_success {
		if serve, err = m.connect(ctx, client, log); err == nil {
			result, err = m.steps(ctx, client, serve, job, log)
		}
	}
	if err != nil {
		return Result{}, err
	}
	succeeded := result.State == runnerproto.Status_success
	after, err := m.runStages(ctx, client, job, m.after(job, succeeded), log)
	if succeeded {
		result = after
	}
	return result, err
}

// connect looks for the runner's program and starts serve.
func (m *Manager) connect(ctx context.Context, client *ssh.Client, log io.Writer) (*serving, error) {
	if err := m.verify(ctx, client, log); err != nil {
		return nil, err
	}
	serve, err := m.serve(ctx, client, log)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return serve, nil
}

// steps runs the job's steps. Then it ends serve, but does not wait for its end.
func (m *Manager) steps(
	ctx context.Context, client *ssh.Client, serve *serving, job Job, log io.Writer,
) (Result, error) {
	defer serve.stop()
	defer context.AfterFunc(ctx, serve.stop)()
	if job.Serving != nil {
		job.Serving(serve.socket)
	}
	return m.run(ctx, client, serve, job, log)
}

// dial logs in. A stock sshd refuses some of many simultaneous logins (MaxStartups), so dial tries until ctx ends. If
// the server answers a login with a refusal, that is final.
func (m *Manager) dial(ctx context.Context) (*ssh.Client, error) {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, maxRedial) {
		client, err := m.dialOnce(ctx)
		if err == nil || strings.Contains(err.Error(), "unable to authenticate") {
			return client, err
		}
		if ended := pause.For(ctx, wait/2+rand.N(wait)); ended != nil {
			return nil, fmt.Errorf("%w: %w", ended, err)
		}
	}
}

func (m *Manager) dialOnce(ctx context.Context) (*ssh.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", m.Addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	conn, channels, requests, err := ssh.NewClientConn(nc, m.Addr, m.SSH)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return ssh.NewClient(conn, channels, requests), nil
}

// verify asks the runner's program for its version.
func (m *Manager) verify(ctx context.Context, client *ssh.Client, log io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var out bytes.Buffer
	runner := cmp.Or(m.Runner, "gitlab-runner")
	if err := runSession(ctx, client, quote(runner)+" --version", "", &out, io.Discard); err != nil {
		return fmt.Errorf("native steps require gitlab-runner on the instance, but %q could not be run: %w", runner, err)
	}
	there, platform := "", ""
	for line := range strings.Lines(out.String()) {
		if v, ok := strings.CutPrefix(line, "Version:"); ok {
			there = strings.TrimSpace(v)
		}
		if v, ok := strings.CutPrefix(line, "OS/Arch:"); ok {
			platform = strings.TrimSpace(v)
		}
	}
	if strings.HasPrefix(platform, "windows/") {
		return errors.New("native steps are not supported on windows instances")
	}
	if there != "" && there != version {
		fmt.Fprintf(log, "WARNING: The gitlab-runner version on the instance (%s) differs from the manager version (%s)\n",
			there, version)
	}
	return nil
}

// quote quotes a word for the login shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// buildLog lets several goroutines write to a log until it is detached.
type buildLog struct {
	mu sync.Mutex // guards the following
	w  io.Writer
}

func (l *buildLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// detach ends the use of the writer.
func (l *buildLog) detach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w = io.Discard
}
