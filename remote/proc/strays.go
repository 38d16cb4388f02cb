package proc

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A shim that is killed lets go of what its command has left behind. This program is a child subreaper too, so such
// processes then are its children: strays. They are told from its other children by their session, which is not ours,
// and by not being shims.

// shims are the shims of this program that run.
var shims = struct {
	mu   sync.Mutex // held while one is started, and guards the following
	pids map[int]*Process
}{pids: map[int]*Process{}}

// adoptStrays makes this program the parent of what killed shims let go of. Where it cannot, they get away.
var adoptStrays = sync.OnceFunc(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })

// startShim starts the shim of p.
func startShim(p *Process, attr *os.ProcAttr) (err error) {
	adoptStrays()
	shims.mu.Lock()
	defer shims.mu.Unlock()
	if p.shim, err = os.StartProcess("/proc/self/exe", shimArgs, attr); err != nil {
		return err
	}
	shims.pids[p.shim.Pid] = p
	return nil
}

// forgetShim notes that the shim of p has ended, and was waited for: its number may be another's already.
func forgetShim(p *Process) {
	shims.mu.Lock()
	defer shims.mu.Unlock()
	if shims.pids[p.shim.Pid] == p {
		delete(shims.pids, p.shim.Pid)
	}
}

// killStrays kills strays until there are none, and returns how many there still are after the timeout. Killing one
// may orphan others, which then are strays.
func killStrays(timeout time.Duration) (left int) {
	end := time.Now().Add(timeout)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left := killStraysOnce()
		if left == 0 || time.Now().After(end) {
			return left
		}
		<-time.NewTimer(pause).C
	}
}

// killStraysOnce kills and reaps the strays there are, and returns how many. Those that they have let go of meanwhile
// are not among them.
func killStraysOnce() (n int) {
	shims.mu.Lock()
	defer shims.mu.Unlock()
	ours, err := unix.Getsid(0)
	if err != nil {
		return 0
	}
	for _, pid := range children() {
		session, err := unix.Getsid(pid)
		if err != nil || session == ours || shims.pids[pid] != nil {
			continue
		}
		_ = unix.Kill(pid, unix.SIGKILL)               // it may have ended: only we can reap it, so it is still this one
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // or the next time
		n++
	}
	return n
}
