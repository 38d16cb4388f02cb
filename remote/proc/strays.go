package proc

import (
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/timerslack"
)

// Strays are the orphans of a killed init without isolation. This program is a child subreaper too, so they become its
// children. A stray differs from the program's other children: its session is not the program's, and it is not an init.

// inits are the running inits of this program.
var inits = struct {
	mu   sync.Mutex // held during the start of an init, and guards the following
	pids map[int]*link
}{pids: map[int]*link{}}

// adoptStrays makes this program the parent of strays. If the kernel refuses, strays escape.
var adoptStrays = sync.OnceFunc(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })

// initProgram is the program of an init. Tests replace it.
var initProgram = "/proc/self/exe"

// initEnv is for the Go runtime of an init. It only waits: more threads would only wake each other. At its start the
// runtime would make a profile of its own memory.
var initEnv = []string{"GOMAXPROCS=1", "GODEBUG=memprofilerate=0,profstackdepth=0"}

// slackVar is the environment variable of an init with the timer slack that its commands get, in nanoseconds.
const slackVar = "STEPMUX_TIMER_SLACK"

// startInit starts the init of l.
func startInit(l *link, attr *os.ProcAttr) error {
	adoptStrays()
	inits.mu.Lock()
	defer inits.mu.Unlock()
	err := timerslack.Calm(func(slack int) (err error) {
		attr.Env = append(slices.Clone(initEnv), slackVar+"="+strconv.Itoa(slack))
		l.init, err = os.StartProcess(initProgram, append(slices.Clone(initArgs), self().String()), attr)
		return err
	})
	if err == nil {
		inits.pids[l.init.Pid] = l
	}
	return err
}

// forgetInit removes the init of l, which was reaped: its pid may now be that of another process.
func forgetInit(l *link) {
	inits.mu.Lock()
	defer inits.mu.Unlock()
	if inits.pids[l.init.Pid] == l {
		delete(inits.pids, l.init.Pid)
	}
}

// killStrays kills strays until none is left or until the timeout. It returns how many are left. The death of one may
// orphan others, which then become strays.
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

// killStraysOnce kills and reaps the present strays, and returns their number, without the strays that their death
// makes.
func killStraysOnce() (n int) {
	inits.mu.Lock()
	defer inits.mu.Unlock()
	ours, err := unix.Getsid(0)
	if err != nil {
		return 0
	}
	for _, pid := range ListChildren() {
		session, err := unix.Getsid(pid)
		if err != nil || session == ours || inits.pids[pid] != nil {
			continue
		}
		_ = unix.Kill(pid, unix.SIGKILL)               // only we can reap it, so the pid is still its own
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // if it has not ended yet, the next call reaps it
		n++
	}
	return n
}
