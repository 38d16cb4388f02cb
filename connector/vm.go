package connector

import (
	"context"
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

// maxNative is how many streamlocal bridges a VM's connection has at once where a relay can take the rest:
// sshd's work for each byte grows with the number of open channels.
const maxNative = 64

// VM remembers facts about one VM for all its builds. The zero value knows nothing yet. It is safe for concurrent
// use.
type VM struct {
	relay, streamlocal flight.Flight[capability]
	serves, proxies    prestarter
	native             atomic.Int32 // open streamlocal bridges of builds that a relay started
	skewTold           atomic.Bool  // the warning about another version was logged
	logs               vmlog.Limiter
	files              files.VM

	mu     sync.Mutex        // guards the following
	search *search           // of the last build; nil before the first
	level  program.Isolation // of the last build that told it
}

// capability is the knowledge about a route.
type capability struct {
	works  bool
	reason string
}

// forever keeps a capability until it is replaced.
const forever = -1

// relayRetry is how long, at least, builds go by session before a relay that did not start is tried again. Tests change
// it.
var relayRetry = time.Minute

// search looks for the VM's step runner over one connection, and keeps the result.
type search struct {
	conn   Conn
	runner []string // as it is configured
	flight flight.Flight[*program.Program]
	rest   flight.Flight[struct{}] // puts the rest of the program on the VM
}

// findProgram returns the VM's step runner. The first build of a connection searches, the others wait for it and share
// its result. After an error the next build searches again.
func (v *VM) findProgram(ctx context.Context, cfg *Config, conn Conn) (*program.Program, error) {
	v.mu.Lock()
	s := v.search
	if s == nil || s.conn != conn || !slices.Equal(s.runner, cfg.runner()) {
		s = &search{conn: conn, runner: cfg.runner()}
		v.search = s
	}
	v.mu.Unlock()
	return s.flight.Do(ctx, func(ctx context.Context) (*program.Program, time.Duration, error) {
		start := time.Now()
		v.relay.Forget() // another program may have taken the place of the one it was known of
		p, noRelay, err := program.Find(ctx, cfg.search(conn))
		if noRelay.Reason != "" {
			v.noRelay(noRelay, time.Since(start))
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
}

// complete puts the part of the step runner that speaks with the network on the VM, for all builds of the connection:
// one of them puts it there, if it is not there yet. A build whose ctx ends leaves that to the others. After an error
// builds try again when relayRetry has passed.
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

// noRelay keeps why there is no relay, which took so long to find out. Another try costs builds a tenth of their time
// at the most.
func (v *VM) noRelay(no program.Refusal, took time.Duration) {
	keep := max(relayRetry, 10*took)
	if no.Lasts {
		keep = forever
	}
	v.relay.Set(capability{false, no.Reason}, keep)
}

// Program returns the step runner that was found last, the zero value before that.
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

// probe returns the knowledge about streamlocal, if there is any. Else it asks one caller to probe: that caller gets
// report, which it must call. The others wait for the result, bounded by ctx, or without wait get neither.
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

// takeNative counts one more streamlocal bridge if there is room for it, and else returns false.
func (v *VM) takeNative() bool {
	if v.native.Add(1) <= maxNative {
		return true
	}
	v.native.Add(-1)
	return false
}

// Choice returns the routes that builds take on the VM if the configuration leaves the choice. A route that is not
// known yet is empty.
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
