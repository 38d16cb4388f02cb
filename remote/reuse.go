package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/linger"
	"github.com/stepmux/stepmux/remote/pipe"
)

const (
	// maxBuilds and maxAge bound the use of one process.
	maxBuilds = 64
	maxAge    = 10 * time.Minute
)

// reuseBounds decide whether a process is used again. Tests on slow machines widen them.
var reuseBounds = struct {
	// growth is how much memory the process may have more than before its first build, in bytes. After small builds it
	// has a tenth of that more.
	growth int64
	// end bounds the end of the build. It is shorter than the time after which a manager runs `steps end`, which would
	// take the next build for the one that does not end.
	end time.Duration
	// settle bounds the wait for goroutines that are about to end.
	settle time.Duration
}{growth: 32 << 20, end: time.Second, settle: time.Second}

// reuse decides whether this process serves another build, for the relay that has started it. A nil reuse says no.
//
// The process is used again only after a build whose jobs ran behind the walls of their isolation, ended by themselves
// and left nothing, and if it is as it was before its first build. After anything else it ends.
type reuse struct {
	control   *pipe.Control
	began     time.Time
	builds    int
	continued chan os.Signal // gets SIGCONT: this process was stopped
	fresh     state          // before the first build
	clean     bool           // the build has ended as said above
}

// newReuse returns the reuse of a serve with this configuration.
func newReuse(cfg *ServeConfig) (*reuse, error) {
	control, err := pipe.OpenControl()
	if err != nil {
		return nil, err
	}
	r := &reuse{control: control, began: time.Now(), continued: make(chan os.Signal, 1)}
	signal.Notify(r.continued, unix.SIGCONT)
	// No wall holds a build of root, and the process of a build user stays that user's.
	if os.Geteuid() == 0 || cfg.OtherUser() || cfg.Limits != (vmconfig.Limits{}) {
		r.builds = maxBuilds
	} else if r.fresh, err = readState(); err != nil {
		r.builds = maxBuilds
	}
	return r, nil
}

// close frees the resources of r.
func (r *reuse) close() {
	if r != nil {
		signal.Stop(r.continued)
		r.control.Close()
	}
}

// ended records how a build ended: life is that of its hold, whose end was at the time since. stopped says that the
// server's callers have let go by themselves.
func (r *reuse) ended(life context.Context, since time.Time, jobs *jobRunner, stopped bool) {
	if r != nil {
		inTime := time.Since(since) < reuseBounds.end
		cause := context.Cause(life)
		wanted := errors.Is(cause, pipe.ErrLeash) || errors.Is(cause, linger.ErrEnded)
		r.clean = wanted && stopped && inTime && jobs.clean()
	}
}

// next waits for the next build, whose standard files are then those of this process. It returns false if there is none
// and this process should end.
func (r *reuse) next(ctx context.Context) bool {
	if r == nil || !r.clean || ctx.Err() != nil {
		return false
	}
	r.clean = false
	r.builds++
	if r.builds >= maxBuilds || time.Since(r.began) > maxAge || r.check(ctx) != nil {
		return false
	}
	return r.control.Await(ctx, debug.FreeOSMemory) == nil
}

// check returns an error unless this process is as it was before its first build.
func (r *reuse) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reuseBounds.settle)
	defer cancel()
	settled := func() (bool, error) { return runtime.NumGoroutine() <= r.fresh.goroutines, nil }
	if pause.Until(ctx, settled) != nil {
		return fmt.Errorf("%d goroutines, and %d before the first build", runtime.NumGoroutine(), r.fresh.goroutines)
	}
	flags := unix.WEXITED | unix.WNOHANG | unix.WNOWAIT
	if err := unix.Waitid(unix.P_ALL, 0, nil, flags, nil); !errors.Is(err, unix.ECHILD) {
		return errors.New("processes are left")
	}
	if traced() {
		return errors.New("a debugger is attached")
	}
	now, err := readState()
	if err != nil {
		return err
	}
	if len(r.continued) > 0 {
		return errors.New("the process was stopped")
	}
	return now.differs(&r.fresh)
}

// state is a process as far as a build could have changed it.
type state struct {
	goroutines int
	files      int
	heap       int64 // its own memory, in bytes
	dir        string
	environ    []string
	kernel     [][]byte // texts of the kernel about it
}

// differs returns an error if a process in the state s must not be used instead of a fresh one.
func (s *state) differs(fresh *state) error {
	switch {
	case s.files != fresh.files:
		return fmt.Errorf("%d open files, and %d before the first build", s.files, fresh.files)
	case s.heap > fresh.heap+reuseBounds.growth:
		return fmt.Errorf("%d bytes of memory, and %d before the first build", s.heap, fresh.heap)
	case s.dir != fresh.dir:
		return fmt.Errorf("the working directory is %q, and was %q", s.dir, fresh.dir)
	case !slices.Equal(s.environ, fresh.environ):
		return errors.New("the environment has changed")
	}
	for i, text := range s.kernel {
		if !bytes.Equal(text, fresh.kernel[i]) {
			return fmt.Errorf("the kernel says %q, and said %q", text, fresh.kernel[i])
		}
	}
	return nil
}

// traced reports whether a debugger is attached to a thread of this process, or that cannot be told.
func traced() bool {
	tasks, err := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		status, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if !bytes.Contains(status, []byte("\nTracerPid:\t0\n")) && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return err != nil
}

// kernelLines begin the lines of /proc/self/status that count: the mode of new files, rights, signals and processors.
var kernelLines = []string{
	"Umask:", "Uid:", "Gid:", "Groups:", "SigIgn:", "SigCgt:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:",
	"CapAmb:", "NoNewPrivs:", "Seccomp:", "Cpus_allowed:",
}

// readState returns the state of this process.
func readState() (s state, err error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return s, err
	}
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte("\t"))
		switch {
		case slices.Contains(kernelLines, string(name)):
			s.kernel = append(s.kernel, line)
		case string(name) == "RssAnon:":
			kibi, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" kB"))), 10, 64)
			if err != nil {
				return s, fmt.Errorf("read the size of the memory: %w", err)
			}
			s.heap = kibi << 10
		}
	}
	for _, file := range []string{"/proc/self/limits", "/proc/self/cgroup"} {
		text, err := os.ReadFile(file)
		if err != nil {
			return s, err
		}
		s.kernel = append(s.kernel, text)
	}
	fds, err := os.Open("/proc/self/fd")
	if err != nil {
		return s, err
	}
	defer fds.Close()
	names, err := fds.Readdirnames(-1)
	if err != nil {
		return s, err
	}
	s.files, s.goroutines, s.environ = len(names), runtime.NumGoroutine(), os.Environ()
	s.dir, err = unix.Getwd()
	return s, err
}
