package relay

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// lingers reports whether a request starts a serve that outlives this relay. If it is one of this very program the
// relay starts that serve itself, and lets it go once it listens. Another process of such a request starts the serve in
// a session of its own and ends when that listens.
func lingers(request *wire.RelayStart) bool {
	return request.Ready != "" && slices.ContainsFunc(request.Argv, func(arg string) bool {
		return arg == "--linger" || strings.HasPrefix(arg, "--linger=")
	})
}

// linger lets a serve of this very program linger in the process that the relay starts.
func (c *Command) linger(request *wire.RelayStart) {
	if lingers(request) && socketArgument(c, request) > 0 {
		c.argv, c.lingers = append(slices.Clone(c.argv), "--detached"), true
	}
}

// spare keeps the serve that listens on the socket path alive when the relay ends, if a process of the relay has
// started it, or is it. A serve that the relay has started tells the marker itself, or has found another one, and ends.
// Of another the kernel tells the process that listens, so no job can pose as one. The relay adopts that serve when p
// has ended. The marker may come when the relay is ending already: a serve that p has started goes on then, too, and p
// itself has been told to end.
func (p *process) spare(path string) {
	if p.lingers {
		p.relay.children.Spare(p.child.PID())
		close(p.free)
		return
	}
	pid, err := socketdir.Listener(context.WithoutCancel(p.relay.life), path) // a connect to a unix socket does not block
	if err != nil {
		p.relay.log.Printf("the step runner on %s will not outlive this relay: %v", path, err)
		return
	}
	info, err := proc.ReadInfo(pid)
	if err == nil && (info.Parent == p.child.PID() || info.Parent == os.Getpid()) { // the latter: p has ended already
		p.relay.children.Spare(pid)
	}
}

const (
	// foreignTimeout bounds the wait for processes that were started in the container from outside.
	foreignTimeout = 10 * time.Second
	foreignPoll    = 50 * time.Millisecond
)

// awaitForeign waits until no process is left that was started in this container from outside, such as another relay: a
// manager that has come back asks by that what is left of the build. The kernel gives such a process the parent 0.
func awaitForeign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, foreignTimeout)
	defer cancel()
	tick := time.NewTicker(foreignPoll)
	defer tick.Stop()
	for {
		all, _ := proc.List() // without /proc nothing is known
		foreign := func(p proc.Info) bool { return p.Parent == 0 && p.PID != os.Getpid() && !p.Ended }
		if !slices.ContainsFunc(all, foreign) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
