package sshtest

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// startTimeout bounds the start of a daemon. Only a broken one takes so long.
	startTimeout = 30 * time.Second
	// logGrace is how long a dead daemon's log may be held open by a process that escaped stop.
	logGrace = 5 * time.Second
)

// daemon is a running sshd.
type daemon struct {
	cmd    *exec.Cmd
	log    *daemonLog
	exited chan struct{} // closed when the daemon and the processes that share its log have exited
	once   sync.Once
}

// startDaemon starts sshd with a configuration and waits until it listens. It returns nil, nil if
// another process has the port.
func startDaemon(config string) (*daemon, error) {
	d := &daemon{
		log:    &daemonLog{listening: make(chan struct{})},
		exited: make(chan struct{}),
	}
	d.cmd = exec.Command(sshdPath, "-D", "-e", "-f", config)
	d.cmd.Stderr = d.log
	d.cmd.WaitDelay = logGrace
	d.cmd.SysProcAttr = dieWithParent()
	started := make(chan error, 1)
	go func() { // stop waits for it
		defer close(d.exited)
		runtime.LockOSThread() // the parent of dieWithParent is a thread, so it must live as long
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		started <- err
		if err == nil {
			_ = d.cmd.Wait() // its log says more
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start sshd: %w", err)
	}
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case <-d.log.listening:
		return d, nil
	case <-d.exited:
		if d.log.count("Address already in use") > 0 {
			return nil, nil
		}
		return nil, fmt.Errorf("start sshd: it exited at once:\n%s", d.log)
	case <-timeout.C:
		d.stop()
		return nil, fmt.Errorf("start sshd: it does not listen after %v:\n%s", startTimeout, d.log)
	}
}

// stop kills the daemon, the processes of its connections, which are in sessions of their own, and
// their commands, and waits for them. Idempotent.
func (d *daemon) stop() {
	d.once.Do(func() {
		pid := d.cmd.Process.Pid
		// First stop all: a stopped process cannot fork, and its children are not adopted by init before they are found.
		_ = d.cmd.Process.Signal(syscall.SIGSTOP) // an error means it has exited
		stopped := make(map[int]bool)
		for more := true; more; {
			more = false
			for _, child := range descendants(pid) {
				if !stopped[child] {
					stopped[child], more = true, true
					_ = syscall.Kill(child, syscall.SIGSTOP) // an error means it has exited
				}
			}
		}
		for child := range stopped {
			_ = syscall.Kill(child, syscall.SIGKILL) // as above
		}
		_ = d.cmd.Process.Kill() // as above
	})
	<-d.exited
}

// daemonLog holds a daemon's standard error.
type daemonLog struct {
	Log
	listening chan struct{} // closed when the daemon has said that it listens
	once      sync.Once
}

// Write implements io.Writer.
func (l *daemonLog) Write(p []byte) (int, error) {
	_, _ = l.Log.Write(p) // never fails
	if l.count("Server listening on ") > 0 {
		l.once.Do(func() { close(l.listening) })
	}
	return len(p), nil
}

// count returns how often text is in the log.
func (l *daemonLog) count(something string) int {
	return strings.Count(l.String(), something)
}
