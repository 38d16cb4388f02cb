package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/builduser"
	"github.com/stepmux/stepmux/remote/linger"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// defaultKeep is how long jobs that have ended are kept at least.
const defaultKeep = 30 * time.Minute

// keep returns how long a job that has ended is kept. It is at least Linger, because a manager that comes back asks for
// the job's final state.
func (cfg *ServeConfig) keep() time.Duration { return max(defaultKeep, cfg.Linger) }

// checkOptions returns an error if serve cannot have the options, or cannot linger.
func (cfg *ServeConfig) checkOptions() error {
	switch err := cfg.Check(); {
	case err != nil || cfg.Linger == 0:
		return err
	case !cfg.SecretOnStdin || cfg.AllowUnauthenticated:
		return errors.New("to linger it needs a secret (--secret-stdin, without --allow-unauthenticated): " +
			"managers attach with it")
	case cfg.Socket == SocketOnStdin && cfg.Detach == nil: // it is checked when it is known
	case !socketdir.IsBuild(cfg.Socket):
		return fmt.Errorf("to linger it needs the socket of a build, <tmp>/%s/<build id>/%s, not %.160q",
			wire.SocketBase, wire.SocketName, cfg.Socket)
	}
	return nil
}

// hold decides how long a serve lives: as long as its leash, or as its lease.
type hold struct {
	life    context.Context // created and handed on by ServeConfig.hold
	release func()
	notices io.Writer
	lease   *linger.Lease // nil for a leash
}

// hold returns the leash or the lease of this serve.
func (cfg *ServeConfig) hold(ctx context.Context, stdio Stdio) (*hold, error) {
	h := &hold{notices: stdio.Err}
	if cfg.Linger == 0 {
		var err error
		h.life, h.release, err = pipe.Leash(ctx, stdio.In)
		return h, err
	}
	h.lease = linger.New(ctx, cfg.Linger)
	h.life, h.release, h.notices = h.lease.Context(), h.lease.Close, h.lease
	return h, nil
}

func (h *hold) options() []grpc.ServerOption {
	if h.lease == nil {
		return nil
	}
	return h.lease.Options()
}

func (h *hold) register(server *grpc.Server) {
	if h.lease != nil {
		h.lease.Register(server)
	}
}

// detach starts the serve of a build in a session of its own, and waits until it listens. After that the manager's link
// and this process may end; the serve goes on. If a serve of the build listens already, for example because the answer
// to the first start was lost, detach writes its marker instead.
func (cfg *ServeConfig) detach(ctx context.Context, stdio Stdio) error {
	defer pipe.WithstandSIGPIPE()()
	if cfg.findServed(ctx, stdio.Err) {
		return nil
	}
	started, said, err := startDetached(stdio.In, cfg.Detach)
	if err != nil {
		return fmt.Errorf("serve: start it in a session of its own: %w", oserr.Bare(err))
	}
	defer said.Close()
	stop := context.AfterFunc(ctx, func() { _ = started.Signal(unix.SIGTERM) }) // an error means that it has ended
	defer stop()
	err = pipe.Copy(&untilReady{to: stdio.Err, found: stop}, said)
	if errors.Is(err, errReady) {
		return started.Release()
	}
	if err != nil {
		_ = started.Signal(unix.SIGTERM) // no client has received the marker
	}
	state, err := started.Wait()
	switch {
	case err != nil:
		return fmt.Errorf("serve: %w", err)
	case ctx.Err() == nil && cfg.findServed(ctx, stdio.Err): // two starts at once
		return nil
	default:
		return fmt.Errorf("serve: the process in a session of its own ended before it listened: %v", state)
	}
}

// errReady ends the copy of a serve's standard error at the marker. errEnding ends it if this process ends before it
// has passed the marker on.
var (
	errReady  = errors.New("serve listens")
	errEnding = errors.New("this process was to end before serve listened")
)

// untilReady passes on the standard error of a serve up to the ready marker.
type untilReady struct {
	to   io.Writer
	scan wire.MarkerScanner
	// found is called before the marker is passed on: a manager that has seen the marker relies on the serve. It
	// returns false if the serve is already being ended.
	found func() bool
}

func (u *untilReady) Write(p []byte) (int, error) {
	_, _ = u.scan.Write(p) // never fails
	_, ready := u.scan.Path()
	if ready && !u.found() {
		return 0, errEnding
	}
	n, err := u.to.Write(p)
	if ready {
		err = errReady
	}
	return n, err
}

// startDetached runs this program in a session of its own. It inherits the caller's standard input. The caller reads
// its standard error.
func startDetached(in *os.File, args []string) (*os.Process, *os.File, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer null.Close()
	near, far, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer far.Close()
	p, err := os.StartProcess("/proc/self/exe", slices.Concat(os.Args[:1], args), &os.ProcAttr{
		Files: []*os.File{in, null, far}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		near.Close()
		return nil, nil, err
	}
	return p, near, nil
}

// findServed writes the marker of the serve that listens on the build's socket to to. It reports whether there is one.
func (cfg *ServeConfig) findServed(ctx context.Context, to io.Writer) bool {
	base := filepath.Dir(filepath.Dir(cfg.Socket))
	for _, id := range builduser.IDs(cfg.BuildUser) {
		path := base + "-" + strconv.Itoa(id) + cfg.Socket[len(base):] // in the user's own base
		if findServe(ctx, path) != nil {
			_, _ = io.WriteString(to, wire.ReadyLine(path))
			return true
		}
	}
	if findServe(ctx, cfg.Socket) == nil {
		return false
	}
	_, _ = io.WriteString(to, wire.ReadyLine(cfg.Socket))
	return true
}
