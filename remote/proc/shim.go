package proc

import (
	"math"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// controlFD is where the shim finds its end of the channel.
	controlFD = 3

	// killTimeout is how long the shim tries to kill what is left before it gives up.
	killTimeout = 5 * time.Second
)

// shimArgs are the arguments that make this program a shim. They are what ps shows.
var shimArgs = []string{"stepmux", "__shim"}

// isReady says that Main was called.
var isReady atomic.Bool

// Main says that this program may be executed again as a shim, and Start panics without it. It must be
// the first line of main, and of every TestMain whose tests start processes. In a shim it is never
// reached: there this package has taken over before.
func Main() { isReady.Store(true) }

// A shim does not wait for main. It is started with every command, and in a program with gRPC and a
// command line the packages that are initialised after this one are a third of what that costs.
func init() {
	if slices.Equal(os.Args, shimArgs) {
		unix.Exit(runShim()) // os.Exit of a program with the race detector would sleep for a second
	}
}

// runShim is the life of a shim: one command, and then all that is left of it.
func runShim() int {
	// The command dies with the thread that started it. This goroutine keeps its thread to the end without
	// being told to, as it never leaves init: the runtime holds all of that on the first thread.
	if _, err := unix.GetsockoptInt(controlFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		_, _ = os.Stderr.WriteString("stepmux: __shim is started by stepmux itself, and does nothing by hand\n")
		return 2
	}
	control := &channel{os.NewFile(controlFD, "control")}
	setUpErr := setUp()
	// Here a shim waits that was started ahead. The server may change its mind, or die.
	output, err := control.receiveFiles()
	if err != nil {
		return 0
	}
	kind, payload, err := control.receive(maxCommand)
	if err != nil || kind != frameCommand {
		return 0
	}
	o, err := decodeCommand(payload)
	if err != nil {
		return 1
	}
	if setUpErr == nil {
		setUpErr = takeOutput(output)
	}
	orphan, leader, failed := prepare(o, setUpErr)
	if failed != nil {
		_ = control.send(frameFailed, failed.encode())
		return 0
	}
	letGo()
	_ = control.send(frameStarted, encodeNumbers(uint64(leader)))
	f := newFamily(leader)
	go f.reap(func(status syscall.WaitStatus, usage *syscall.Rusage) {
		_ = control.send(frameExited, encodeExited(status, usage))
	})
	withstandSignals()
	closed := obey(control, f)
	if left := f.end(killTimeout); left > 0 {
		_ = control.send(frameLeft, encodeNumbers(uint64(left)))
	}
	if !closed {
		orphan.remove()
	}
	return 0
}

// prepare opens the orphan directory of o and starts its command.
func prepare(o *order, setUpErr error) (*orphanDir, int, *failure) {
	if setUpErr != nil {
		return nil, 0, fail(stageShim, setUpErr)
	}
	orphan, failed := openOrphan(o.orphanDir)
	if failed != nil {
		return nil, 0, failed
	}
	leader, failed := execute(o)
	return orphan, leader, failed
}

// setUp makes this process a shim.
func setUp() error {
	if err := closeOnExec(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	// Jobs run as our user. None may attach a debugger to make us let go of what we hold.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	inheritNoIgnored()
	return nil
}

// inheritNoIgnored makes the command start with no signal ignored, whatever the server was started with.
// Those are the two which Go leaves ignored, and nohup and background jobs of shells ignore them. A signal
// that is caught is not in the command.
func inheritNoIgnored() {
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// withstandSignals makes this process survive what is sent to all processes of a user: what it holds
// would get away. A signal that is ignored is in the command too, so the command is started before; if the
// shim ends in that moment, so does the command. (Catching them instead takes the runtime ten times as long.)
func withstandSignals() {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE)
}

// closeOnExec keeps everything but stdio from the command: the control channel, and whatever the server
// was started with.
func closeOnExec() error {
	err := unix.CloseRange(controlFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err != nil { // before Linux 5.11
		err = closeOnExecEach()
	}
	return err
}

// closeOnExecEach is closeOnExec by looking for what is open.
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

// takeOutput makes fds the stdout and stderr that the command gets.
func takeOutput(fds []int) error {
	for i, fd := range fds {
		if err := unix.Dup3(fd, 1+i, 0); err != nil {
			return err
		}
		_ = unix.Close(fd)
	}
	return nil
}

// letGo gives up what the shim had only to pass it on: the output, which must end with the command, and
// the working directory.
func letGo() {
	_ = unix.Dup3(0, 1, 0)
	_ = unix.Dup3(0, 2, 0)
	_ = unix.Chdir("/")
}

// obey does what the server says, and returns once it said close, or is gone without.
func obey(control *channel, f *family) (closed bool) {
	for {
		kind, _, err := control.receive(0)
		switch {
		case err != nil: // io.EOF, or what it sent is nonsense
			return false
		case kind == frameTerm:
			f.term()
		case kind == frameKill:
			f.kill()
		case kind == frameClose:
			return true
		}
	}
}
