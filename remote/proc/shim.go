package proc

import (
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

// shimArgs are the arguments that make this program a shim. ps shows them.
var shimArgs = []string{"stepmux", "__shim"}

// isReady says that Main was called.
var isReady atomic.Bool

// Main says that this program may be executed again as a shim. Start panics without it. It must be the first line of
// main, and of every TestMain whose tests start processes. A shim never reaches main.
func Main() { isReady.Store(true) }

// A shim does not wait for main. One is started with every command, and in a program with gRPC and a command line the
// packages that are initialised after this one take a third of the time of its start.
func init() {
	if slices.Equal(os.Args, shimArgs) {
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
	control := &channel{os.NewFile(controlFD, "control")}
	setUpErr := setUp()
	// A prestarted shim waits here. The server may close the channel without a command, or die.
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
	orphan, f, failed := prepare(o, setUpErr)
	if failed != nil {
		_ = control.send(frameFailed, failed.encode())
		return 0
	}
	letGo()
	_ = control.send(frameStarted, encodeNumbers(uint64(f.leader.pid)))
	f.exited = func(c *Child) { _ = control.send(frameExited, encodeExited(c.status, &c.usage)) }
	go f.reap()
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
func prepare(o *order, setUpErr error) (*orphanDir, *family, *failure) {
	if setUpErr != nil {
		return nil, nil, fail(stageShim, setUpErr)
	}
	orphan, failed := openOrphan(o.orphanDir)
	if failed != nil {
		return nil, nil, failed
	}
	f, failed := execute(o)
	return orphan, f, failed
}

// setUp makes this process a shim.
func setUp() error {
	if err := closeOnExec(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	// Jobs run as our user. No job may attach a debugger to free its processes from the shim.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	catchIgnored(make(chan os.Signal, 1))
	return nil
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
func obey(control *channel, f *family) (closed bool) {
	for {
		kind, _, err := control.receive(0)
		switch {
		case err != nil: // io.EOF, or a malformed message
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
