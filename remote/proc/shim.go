package proc

import (
	"context"
	"errors"
	"math"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// controlFD is where the shim finds its end of the channel.
	controlFD = 3

	// killTimeout bounds the wait for processes that were killed: some cannot be.
	killTimeout = 5 * time.Second
)

// shimArgs are the arguments that make this program a shim; the identity of its server follows. ps shows them.
var shimArgs = []string{"stepmux", "__shim"}

// isReady says that Main was called.
var isReady atomic.Bool

// Main says that this program may be executed again as a shim. Start panics without it. It must be the first line of
// main, and of every TestMain whose tests start processes. A shim never reaches main.
func Main() { isReady.Store(true) }

// A shim does not wait for main. One is started with every command, and in a program with gRPC and a command line the
// packages that are initialised after this one take a third of the time of its start.
func init() {
	if len(os.Args) > 1 && slices.Equal(os.Args[:2], shimArgs) {
		unix.Exit(runShim()) // os.Exit of a program with the race detector would sleep for a second
	}
}

// runShim is the life of a shim: it runs one command and kills everything that descends from it.
func runShim() int {
	// The command dies with the thread that started it. This goroutine keeps its thread to the end because it never
	// leaves init: the runtime runs init on the first thread.
	if _, err := unix.GetsockoptInt(controlFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		_, _ = os.Stderr.WriteString("stepmux: __shim is started by stepmux itself, and does nothing by hand\n")
		return 2
	}
	control := os.NewFile(controlFD, "control")
	setUpErr := setUp()
	// A prestarted shim waits here. The server may close the channel without a command, or die.
	c, output, err := receiveCommand(control)
	if err != nil {
		return 0
	}
	if setUpErr == nil {
		setUpErr = takeOutput(output)
	}
	orphan, f, failed := prepare(c, setUpErr)
	if failed != nil {
		report{Kind: reportFailed, At: failed.at, Errno: uint32(failed.errno)}.send(control)
		return 0
	}
	letGo()
	report{Kind: reportStarted, PID: int32(f.leader.pid)}.send(control)
	f.exited = func(c *Child) { exited(c.status, &c.usage).send(control) }
	go f.reap()
	withstandSignals()
	closed := obey(control, f)
	if left := f.KillAll(); left > 0 {
		report{Kind: reportLeft, Left: uint32(left)}.send(control)
	}
	if !closed {
		ctx, cancel := context.WithTimeout(context.Background(), removalTimeout)
		defer cancel()
		removeOrphan(ctx, orphan)
	}
	return 0
}

// prepare opens the orphan directory of c and starts c.
func prepare(c *Command, setUpErr error) (*os.File, *family, *failure) {
	if setUpErr != nil {
		return nil, nil, fail(stageShim, setUpErr)
	}
	orphan, failed := openOrphan(c.OrphanDir)
	if failed != nil {
		return nil, nil, failed
	}
	f, failed := execute(c)
	return orphan, f, failed
}

// setUp makes this process a shim.
func setUp() error {
	catchIgnored(make(chan os.Signal, 1))
	return errors.Join(
		closeOnExec(),
		unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0),
		// Jobs run as our user. No job may attach a debugger to free its processes from the shim.
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0),
		unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}),
	)
}

// withstandSignals makes this process survive signals that are sent to all processes of a user: otherwise its processes
// would get away. A command would inherit an ignored signal, so it is started before; if a signal ends the shim between
// the two, the command ends with it. (Catching the signals takes the runtime ten times as long as ignoring them.)
func withstandSignals() {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE)
}

// closeOnExec keeps all files but stdio from the processes that this one starts, also those it was started with.
func closeOnExec() error {
	err := unix.CloseRange(controlFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err != nil { // before Linux 5.11
		err = closeOnExecEach()
	}
	return err
}

// closeOnExecEach is closeOnExec that goes through the list of open files.
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

// letGo closes the output, which must end with the command, and leaves the working directory: the shim had both only to
// pass them on.
func letGo() {
	_ = unix.Dup3(0, 1, 0)
	_ = unix.Dup3(0, 2, 0)
	_ = unix.Chdir("/")
}

// obey does as the server's messages say. It returns true after a close, and false if the server is gone without one.
func obey(control *os.File, f *family) (closed bool) {
	for message := make([]byte, 1); ; {
		if _, err := control.Read(message); err != nil {
			return false
		}
		switch message[0] {
		case messageTerm:
			f.Signal(f.leader, unix.SIGTERM)
		case messageKill:
			go f.killAll(nil) // ends with the last child; the process may end first
		case messageClose:
			return true
		}
	}
}
