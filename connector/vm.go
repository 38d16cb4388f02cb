package connector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/flight"
	"github.com/stepmux/stepmux/internal/vmlog"
)

// maxNative is the largest number of streamlocal bridges on a VM's connection if a relay can carry the others: sshd's
// work for each byte grows with the number of open channels.
const maxNative = 64

// VM remembers facts about one VM for all its builds. The zero value is ready to use. It is safe for concurrent use.
type VM struct {
	relay, streamlocal flight.Flight[capability]
	serves, proxies    prestarter
	native             atomic.Int32 // open streamlocal bridges of builds that a relay started
	skewTold           atomic.Bool  // the warning about a different version was logged
	logs               vmlog.Limiter
	files              files.VM

	mu     sync.Mutex        // guards the following
	search *search           // of the last build; nil before the first
	level  program.Isolation // of the last build that reported it
}

// capability is the knowledge whether a route works.
type capability struct {
	works  bool
	reason string
}

// forever keeps a capability until it is replaced.
const forever = -1

// relayRetry is the minimum time for which builds use sessions before a relay that did not start is tried again.
// Tests change it.
var relayRetry = time.Minute

// search finds the VM's step runner over one connection, and keeps the result.
type search struct {
	conn   Conn
	runner []string // as configured
	flight flight.Flight[*program.Program]
	rest   flight.Flight[struct{}] // uploads the rest of the program
	waited atomic.Pointer[error]   // for which answer of the VM the last caller waited in vain; nil if for none
}

// findProgram returns the VM's step runner. The first build of a connection searches; the others wait and share its
// result. After an error the next build searches again.
func (v *VM) findProgram(ctx context.Context, cfg *Config, conn Conn) (*program.Program, error) {
	v.mu.Lock()
	s := v.search
	if s == nil || s.conn != conn || !slices.Equal(s.runner, cfg.runner()) {
		s = &search{conn: conn, runner: cfg.runner()}
		v.search = s
	}
	v.mu.Unlock()
	p, err := s.flight.Do(ctx, func(ctx context.Context) (*program.Program, time.Duration, error) {
		start := time.Now()
		s.waited.Store(nil)
		v.relay.Forget() // it was known about the previous program
		if c, known := v.streamlocal.Kept(); known && !c.works {
			v.streamlocal.Forget() // it was known about an earlier connection: sshd may be configured differently now
		}
		p, noRelay, err := program.Find(ctx, cfg.search(conn))
		if noRelay.Reason != "" {
			v.noRelay(noRelay, time.Since(start))
		}
		if err != nil && ctx.Err() != nil {
			s.waited.Store(&err)
		}
		if err != nil {
			return nil, 0, err
		}
		cfg.Logger.Info("step runner found", "kind", p.Kind, "version", p.Version, "platform", p.Platform,
			"command", strings.Join(p.Command, " "), "uploaded", p.Uploaded)
		other := p.Version != "" && cfg.Version != "" && p.Version != cfg.Version
		if p.Kind == program.Stepmux && other && !v.skewTold.Swap(true) {
			cfg.Logger.Warn("the step runner on the VM is of another version than this program",
				"there", p.Version, "here", cfg.Version)
		}
		return p, forever, nil
	})
	if waited := s.waited.Load(); err != nil && waited != nil && ctx.Err() != nil {
		err = gaveUp(ctx, *waited)
	}
	return p, err
}

// gaveUp returns the error of a caller whose ctx has ended, which waited for an answer of the VM. One that cancels
// knows why; one whose time has passed does not.
func gaveUp(ctx context.Context, waited error) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) {
		return cause
	}
	return fmt.Errorf("%w (%w)", cause, waited)
}

// complete uploads the part of the step runner that needs the network, unless it is there already. One build does it
// for all builds of the connection; if that build's ctx ends, another takes over. After an error, builds try again
// after relayRetry.
func (v *VM) complete(ctx context.Context, cfg *Config, p *program.Program, start program.Starter) {
	v.mu.Lock()
	s := v.search
	v.mu.Unlock()
	_, _ = s.rest.Do(ctx, func(ctx context.Context) (struct{}, time.Duration, error) {
		err := p.Complete(ctx, start)
		switch {
		case err == nil:
			return struct{}{}, forever, nil
		case ctx.Err() == nil:
			cfg.Logger.Warn("jobs on the VM cannot fetch steps, nor bring artifacts and caches, for now", "error", err)
		}
		return struct{}{}, relayRetry, err
	})
}

// noRelay keeps the reason why there is no relay. took is how long the attempt took: the next attempt waits ten times
// as long, so that builds lose at most a tenth of their time.
func (v *VM) noRelay(no program.Refusal, took time.Duration) {
	keep := max(relayRetry, 10*took)
	if no.Lasts {
		keep = forever
	}
	v.relay.Set(capability{false, no.Reason}, keep)
}

// Program returns the step runner that was found last, or the zero value.
func (v *VM) Program() program.Program {
	v.mu.Lock()
	s := v.search
	v.mu.Unlock()
	if s != nil {
		if p, ok := s.flight.Kept(); ok {
			return *p
		}
	}
	return program.Program{}
}

// probe returns what is known about streamlocal. If nothing is known, it asks one caller to probe: that caller gets
// report and must call it. Other callers wait for the result, bounded by ctx; without wait they get neither.
func (v *VM) probe(
	ctx context.Context, wait bool,
) (c capability, known bool, report func(capability, time.Duration), err error) {
	for {
		if c, known := v.streamlocal.Kept(); known {
			return c, true, nil, nil
		}
		if report := v.streamlocal.Claim(); report != nil || !wait {
			return capability{}, false, report, nil
		}
		if err := v.streamlocal.Wait(ctx); err != nil {
			return capability{}, false, nil, err
		}
	}
}

// takeNative counts one more streamlocal bridge. It returns false if there is no room.
func (v *VM) takeNative() bool {
	if v.native.Add(1) <= maxNative {
		return true
	}
	v.native.Add(-1)
	return false
}

// Choice returns the routes that builds use on the VM with the route Auto. A route that is not known yet is empty.
func (v *VM) Choice() Choice {
	var c Choice
	if relay, known := v.relay.Kept(); known {
		if c.Start, c.StartReason = Session, relay.reason; relay.works {
			c.Start = Relay
		}
	}
	if streamlocal, known := v.streamlocal.Kept(); known && (streamlocal.works || c.Start != "") {
		if c.Bridge, c.BridgeReason = c.Start, streamlocal.reason; streamlocal.works {
			c.Bridge = Streamlocal
		}
	}
	return c
}
