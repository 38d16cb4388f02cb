package relay

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// lingers reports whether a request starts a serve that outlives this relay. If the command is this very program, the
// relay starts that serve itself, and releases it once it listens. Any other command starts the serve in a session of
// its own, and ends when that serve listens.
func lingers(request *wire.RelayStart) bool {
	return request.Ready != "" && slices.ContainsFunc(request.Argv, func(arg string) bool {
		return arg == "--linger" || strings.HasPrefix(arg, "--linger=")
	})
}

// linger marks a serve of this very program as one that outlives this relay. The relay starts it without a process in
// between.
func (c *Command) linger(request *wire.RelayStart) {
	if lingers(request) && socketArgument(c, request) > 0 {
		c.argv, c.lingers = append(slices.Clone(c.argv), "--detached"), true
	}
}

// keepServe keeps the serve that listens on the socket path alive when the relay ends. The serve is p itself or was
// started by p.
//
// p's own word is enough if p is this very program. Of another program the kernel tells the process that listens, so
// that no job can pose as a serve. The relay adopts that serve when p has ended. If the relay is already ending when
// the marker comes, p has been told to end, but the serve that it has started goes on.
func (p *process) keepServe(path string) {
	if p.lingers {
		p.relay.children.Spare(p.child.PID())
		close(p.detached)
		return
	}
	pid, err := socketdir.Listener(context.WithoutCancel(p.relay.life), path) // a connect to a unix socket does not block
	if err != nil {
		p.relay.log.Printf("the step runner on %s will not outlive this relay: %v", path, err)
		return
	}
	info, err := proc.ReadInfo(pid)
	if err == nil && (info.Parent == p.child.PID() || info.Parent == os.Getpid()) { // os.Getpid: p has ended already
		p.relay.children.Spare(pid)
	}
}

// foreignTimeout bounds the wait for processes that were started in the container from outside.
const foreignTimeout = 10 * time.Second

// awaitForeign waits until all processes that were started in this container from outside are gone, such as another
// relay: by one, a manager that comes back asks for the remains of the build. The kernel gives such a process the
// parent 0.
func awaitForeign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, foreignTimeout)
	defer cancel()
	foreign := func(p proc.Info) bool { return p.Parent == 0 && p.PID != os.Getpid() && !p.Ended }
	_ = pause.Until(ctx, func() (bool, error) {
		all, _ := proc.List() // an error means that there is no /proc; then no process is found
		return !slices.ContainsFunc(all, foreign), nil
	})
}
