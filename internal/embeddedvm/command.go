package embeddedvm

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/timerslack"
)

// feedGrace is how long a process may take to read the last input after the connection has ended.
const feedGrace = time.Second

// unknownExit is the exit status if the real one is not known.
const unknownExit = 255

// process is a command, the leader of a session and so of a process group, and our ends of its pipes.
type process struct {
	cmd                   *exec.Cmd
	stdin, stdout, stderr *os.File
	exited                chan struct{} // closed when the process has been waited for

	mu     sync.Mutex // guards the following
	reaped bool       // the process ID may belong to another process
}

// startProcess starts command as sshd does. The caller must wait for it.
func startProcess(config Config, env []string, command string) (*process, error) {
	p := &process{exited: make(chan struct{})}
	p.cmd = exec.Command(config.Shell, "-c", command)
	p.cmd.Args[0] = filepath.Base(config.Shell)
	p.cmd.Dir = config.Dir
	p.cmd.Env = append(env, config.Env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	pipes, err := openPipes(3)
	if err != nil {
		return nil, err
	}
	theirs := []*os.File{pipes[0].r, pipes[1].w, pipes[2].w}
	p.stdin, p.stdout, p.stderr = pipes[0].w, pipes[1].r, pipes[2].r
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	err = timerslack.Plain(p.cmd.Start)
	for _, f := range theirs {
		_ = f.Close() // the process has its own
	}
	if err != nil {
		_ = p.stdin.Close() // never used
		p.closeOutput()
		return nil, fmt.Errorf("start command: %w", err)
	}
	return p, nil
}

type pipe struct{ r, w *os.File }

// openPipes opens n pipes, or fails and leaves no pipe open.
func openPipes(n int) ([]pipe, error) {
	pipes := make([]pipe, 0, n)
	for range n {
		r, w, err := os.Pipe()
		if err != nil {
			for _, p := range pipes {
				_, _ = p.r.Close(), p.w.Close() // never used
			}
			return nil, fmt.Errorf("open pipe: %w", err)
		}
		pipes = append(pipes, pipe{r, w})
	}
	return pipes, nil
}

// feed copies the client's data to the process's stdin and closes that at the end. If the process stops reading, the
// rest is dropped. conn ends with the connection.
func (p *process) feed(conn context.Context, client io.Reader) {
	defer context.AfterFunc(conn, func() {
		_ = p.stdin.SetWriteDeadline(time.Now().Add(feedGrace)) // an error means it is closed
	})()
	if copyBytes(p.stdin, client) != nil {
		_ = copyBytes(io.Discard, client) // keep the channel's window open
	}
	_ = p.stdin.Close() // an error means the process exited first
}

// forward copies output to the client. It closes output at its end, or when the client is gone: a process that still
// writes gets SIGPIPE.
func (p *process) forward(client io.Writer, output *os.File) {
	_ = copyBytes(client, output) // however it ends
	_ = output.Close()            // an error means closeOutput was first
}

// closeOutput ends the output of a process whose client is gone. Idempotent.
func (p *process) closeOutput() {
	_, _ = p.stdout.Close(), p.stderr.Close() // an error means they are closed
}

// wait waits until the process has exited and returns the request that reports it (RFC 4254, section 6.10).
func (p *process) wait() (name string, payload []byte) {
	_ = p.cmd.Wait() // the process's state says more
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	_ = p.stdin.Close() // wakes feed if a background process holds the other end
	close(p.exited)

	state := p.cmd.ProcessState
	if state == nil { // another part of this program waited for it
		return exitStatus(unknownExit)
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return "exit-signal", ssh.Marshal(struct {
			Signal     string
			CoreDumped bool
			Error      string
			Lang       string
		}{Signal: signalName(status.Signal()), CoreDumped: status.CoreDump()})
	}
	return exitStatus(uint32(state.ExitCode()))
}

func exitStatus(code uint32) (name string, payload []byte) {
	return "exit-status", ssh.Marshal(struct{ Status uint32 }{code})
}

// kill signals the process's group and reports whether that worked.
func (p *process) kill(sig syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.reaped && syscall.Kill(-p.cmd.Process.Pid, sig) == nil
}
