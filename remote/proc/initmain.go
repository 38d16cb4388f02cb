package proc

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

const (
	// controlFD is the descriptor of the init's end of the channel.
	controlFD = 3

	// killTimeout bounds the wait for killed processes: the kernel may be unable to end one.
	killTimeout = 5 * time.Second
	// initTimeout bounds the time in which an init must do what a message asks. After it, the init is killed. It is
	// longer than the init's own killTimeout.
	initTimeout = 10 * time.Second
)

// initProcs is for the goroutine that waits for messages and the one that waits for the end of children, killProcs also
// for one of those that kill. Each keeps a processor of the Go runtime while it waits, see timerslack.Calm.
const initProcs, killProcs = 2, 3

// initArgs are the arguments that make this program an init. The identity of its server follows them. ps shows them.
var initArgs = []string{"stepmux", "__init"}

// isReady says that Main was called.
var isReady atomic.Bool

// Main allows this program to be executed again as an init. Start panics without it. It must be the first line of main,
// and of every TestMain whose tests start processes. An init never reaches main.
func Main() { isReady.Store(true) }

// keeper is the state of an init.
type keeper struct {
	*reaper
	control io.Writer
	room    *isolate.Room
	orphan  orphanDir
	// isolated says that this process is the first one of a PID namespace, in which all other processes are the
	// build's.
	isolated bool

	commands map[uint32]*held // guarded by the reaper's mu; nil while a command is being started
}

// held is a command from its start to its messageClose.
type held struct {
	id     uint32
	leader *Child
}

// runInit is the main function of an init. It returns the exit status.
func runInit() int {
	if _, err := unix.GetsockoptInt(controlFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		_, _ = os.Stderr.WriteString("stepmux: __init is started by stepmux itself, and does nothing by hand\n")
		return 2
	}
	if slack := atoi(os.Getenv(slackVar)); slack > 0 { // a command gets that of this thread, which starts it
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0)
	}
	// Of a program that its user cannot read, the kernel gives the files in /proc to root. The server must map our user
	// by one of them. setUp hides this process again; until then it knows no secret.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) // if it fails, so does isolate.MapUser
	// Commands die with the thread that started them, and inherit its capabilities. So everything here runs on the
	// first thread, which belongs to the init function alone.
	k := &keeper{reaper: newReaper(), control: channel(controlFD), commands: map[uint32]*held{}}
	k.childless = k.forgetAllLocked
	m, err := receive(controlFD)
	if err != nil || m.kind != messageRoom {
		return 0 // the server is gone
	}
	if failed := k.setUp(m.text); failed != nil {
		failed.report(0).send(k.control)
		return 0
	}
	k.sendReady()
	runtime.GOMAXPROCS(initProcs)
	k.obey()
	return 0
}

// setUp makes this process an init, by the text of messageRoom.
func (k *keeper) setUp(text []byte) *failure {
	room, orphan, err := decodeRoom(text)
	if err != nil {
		return fail(stageInit, err)
	}
	k.isolated = room.Level != vmconfig.Off && os.Getpid() == 1
	ignoreSignals()
	err = errors.Join(
		closeOnExec(),
		unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0),
		// Jobs run as our user. They must not attach a debugger to the init to free their processes.
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0),
		unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}),
	)
	if err != nil {
		return fail(stageInit, err)
	}
	var failed *failure
	if k.orphan, failed = openOrphan(orphan); failed != nil {
		return failed
	}
	if k.room, err = isolate.Enter(room); err != nil {
		return fail(stageRoom, err)
	}
	if err = k.room.Guard(); err != nil {
		return fail(stageGuard, err)
	}
	return nil
}

// ignoreSignals keeps signals to all processes of a user from ending the init: its commands would escape. The Go
// runtime does not know that these signals are ignored now. So it sets them to their default in a command, as it does
// with those that it handles. os/signal would have a thread to wait for signals.
func ignoreSignals() {
	ignore := [8]uintptr{1} // a struct sigaction with SIG_IGN and nothing else
	for _, s := range []unix.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE,
	} {
		if signal.Ignored(s) { // already at our start, which the runtime knows
			signal.Notify(make(chan os.Signal, 1), s)
			continue
		}
		const maskSize = 8
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&ignore)), 0, maskSize, 0, 0)
	}
}

// closeOnExec makes child processes inherit no file but stdio, not even files that this process was started with.
func closeOnExec() error {
	err := unix.CloseRange(controlFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err != nil { // before Linux 5.11
		err = closeOnExecEach()
	}
	return err
}

// closeOnExecEach does the same as closeOnExec, file by file.
func closeOnExecEach() error {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if fd := atoi(name); fd >= controlFD {
			unix.CloseOnExec(fd)
		}
	}
	return err
}

// obey handles the server's messages until the server closes the init or is gone. Then it ends all processes.
func (k *keeper) obey() {
	closed := false
	for !closed {
		m, err := receive(controlFD)
		if err != nil {
			break
		}
		closed = m.kind == messageClose && m.id == 0
		if !closed && !k.take(m) {
			break
		}
	}
	if k.isolated {
		_ = unix.Kill(-1, unix.SIGKILL) // all but us, at once: a process that forks cannot escape
	}
	left := k.KillAll()
	closedReport(0, left).send(k.control)
	if !closed {
		ctx, cancel := context.WithTimeout(context.Background(), removalTimeout)
		defer cancel()
		k.room.Leave() // a mount point cannot be renamed
		removeOrphan(ctx, k.orphan)
	}
}

// take handles a message other than the last one. It returns false if the message breaks the protocol.
func (k *keeper) take(m received) bool {
	switch m.kind {
	case messageCommand:
		return k.start(m)
	case messageShow:
		r := report{Kind: reportShown, ID: m.id}
		if err := k.room.Show(string(m.text)); err != nil {
			r = fail(stageVisible, err).report(m.id)
		}
		r.send(k.control)
		return true
	}
	k.mu.Lock()
	h := k.commands[m.id]
	k.mu.Unlock()
	if h == nil {
		return true // its start failed, and the server has not read that report yet
	}
	switch m.kind {
	case messageInt:
		k.Signal(h.leader, unix.SIGINT)
	case messageTerm:
		k.Signal(h.leader, unix.SIGTERM)
	case messageKill:
		beside(func() { k.killAll(nil, k.descends(h)) }) // ends with the last of them; this process may end first
	case messageGroup:
		r := report{Kind: reportGroup, ID: h.id}
		if !errors.Is(unix.Kill(-h.leader.pid, 0), unix.ESRCH) {
			r.Left = 1
		}
		r.send(k.control)
	case messageClose:
		if k.killOnce(k.descends(h)) == 0 {
			k.forget(h, 0)
		} else {
			beside(func() { k.close(h) })
		}
	default:
		return false
	}
	return true
}

// beside does work that waits while messages are handled. Builds seldom need it, so its processor is taken only then.
func beside(work func()) {
	runtime.GOMAXPROCS(killProcs)
	go work()
}

// start starts a command and reports the result. It returns false if the message breaks the protocol.
func (k *keeper) start(m received) bool {
	c, err := decodeCommand(m.text)
	if err != nil || len(m.files) != 3 {
		return false
	}
	k.mu.Lock()
	k.commands[m.id] = nil // from now on no other command is the only one, which has all processes for its own
	k.mu.Unlock()
	leader, failed := k.execute(c, m.files)
	for _, fd := range m.files {
		_ = unix.Close(fd)
	}
	if failed != nil {
		k.mu.Lock()
		delete(k.commands, m.id)
		k.mu.Unlock()
		failed.report(m.id).send(k.control)
		return true
	}
	report{Kind: reportStarted, ID: m.id, PID: int32(leader.pid)}.send(k.control)
	k.mu.Lock()
	k.commands[m.id] = &held{m.id, leader}
	leader.tell = func() { exited(m.id, leader.status, &leader.usage).send(k.control) }
	if leader.Ended() && pause.Done(leader.exited) {
		leader.tell()
		k.collectLocked()
	}
	k.mu.Unlock()
	k.reapAll()
	return true
}

// execute starts c as the leader of a session of its own.
func (k *keeper) execute(c *Command, files []int) (*Child, *failure) {
	if c.Visible != "" {
		if err := k.room.Show(c.Visible); err != nil {
			return nil, fail(stageVisible, err)
		}
	}
	if err := checkDir(c.Dir); err != nil {
		return nil, fail(stageDir, err)
	}
	program, err := find(c.Argv[0], c.Dir, c.Env)
	if err != nil {
		return nil, fail(stagePath, err)
	}
	attr := &syscall.ProcAttr{
		Dir: c.Dir, Env: c.Env, Files: []uintptr{uintptr(files[0]), uintptr(files[1]), uintptr(files[2])},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	leader, err := k.reaper.start(func() (int, error) { return syscall.ForkExec(program, c.Argv, attr) })
	if err != nil {
		return nil, fail(stageExec, err)
	}
	return leader, nil
}

// checkDir returns the error of entering the directory. A fork does not distinguish that error from one of the program.
func checkDir(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_ = unix.Close(fd)
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

// close kills all descendants of a command. The last command's close also kills the processes that belong to no
// command.
func (k *keeper) close(h *held) {
	timer := time.NewTimer(killTimeout)
	defer timer.Stop()
	k.forget(h, k.killAll(timer.C, k.descends(h)))
}

// forget ends a command. left is the number of its processes that could not be killed.
func (k *keeper) forget(h *held, left int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgetLocked(h, left)
}

func (k *keeper) forgetLocked(h *held, left int) {
	if k.commands[h.id] != h {
		return // it was forgotten already
	}
	h.leader.tell = nil // its end is not reported any more
	delete(k.commands, h.id)
	closedReport(h.id, left).send(k.control)
}

// forgetAllLocked ends all commands, because no process is left. So a command that left no process is closed with its
// exit, without a message of the server.
func (k *keeper) forgetAllLocked() {
	for _, h := range k.commands {
		if h != nil {
			k.forgetLocked(h, 0)
		}
	}
}

// descends returns a function that reports whether a child of the init descends from the command: by its process group,
// by the marker in its environment, or because there is no other command. The function is called with the reaper's mu
// held.
func (k *keeper) descends(h *held) func(pid int) bool {
	number := strconv.FormatUint(uint64(h.id), 10)
	return func(pid int) bool {
		if k.commands[h.id] != h {
			return false // it was forgotten while it was being killed, and a later command may be the only one now
		}
		if pid == h.leader.pid || len(k.commands) == 1 {
			return true
		}
		if k.running[pid] != nil {
			return false // the leader of another command
		}
		group, err := unix.Getpgid(pid)
		if err == nil && group == h.leader.pid {
			return true
		}
		return lookup(pid, commandVar) == number
	}
}
