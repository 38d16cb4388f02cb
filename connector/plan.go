package connector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// Route is a way to start a process on the VM, or to reach a build's socket there.
type Route string

const (
	// Auto uses the best routes that work on the VM.
	Auto Route = "auto"
	// Session uses SSH sessions: one for serve, another for `steps proxy` as the bridge.
	Session Route = "session"
	// Streamlocal uses a session for serve and a direct-streamlocal channel, which needs no session, as the bridge.
	Streamlocal Route = "streamlocal"
	// Relay uses `steps relay` for both: one session for all builds of the VM.
	Relay Route = "relay"
)

// ParseRoute returns the route named s.
func ParseRoute(s string) (Route, error) {
	switch r := Route(s); r {
	case Auto, Session, Streamlocal, Relay:
		return r, nil
	default:
		return "", fmt.Errorf("unknown route %q: use %s, %s, %s or %s", s, Auto, Session, Streamlocal, Relay)
	}
}

// Choice is the routes of a build, with the reason for each.
type Choice struct {
	Start        Route  `json:"start"` // for its steps serve: Session or Relay; empty until chosen
	StartReason  string `json:"start_reason"`
	Bridge       Route  `json:"bridge"` // to its socket: Session, Streamlocal or Relay; empty until chosen
	BridgeReason string `json:"bridge_reason"`
}

// forced is the reason for a route that the configuration names.
const forced = "forced"

// plan is how a build's serve is started and its socket reached.
type plan struct {
	Choice              // Bridge is empty if this build is to probe streamlocal
	relay  *relay.Relay // starts serve; nil if Start is Session
	// report ends the probe of streamlocal, with its result and how long that is valid. Only the first call counts.
	// report is nil if this build does not probe.
	report func(capability, time.Duration)
	// native is true if the build counts in VM.native.
	native bool
}

// plan returns the plan for a build with this runner. It starts the VM's relay if the plan uses one. While another
// build probes streamlocal, a build that is started by session waits for the result, bounded by ctx.
func (v *VM) plan(ctx context.Context, cfg *Config, conn Conn, runner []string) (p plan, err error) {
	p.relay, p.StartReason, err = v.startRelay(ctx, cfg, conn, runner)
	if err != nil {
		return plan{}, err
	}
	if p.Start = Session; p.relay != nil {
		p.Start = Relay
	}
	if cfg.Route != Auto {
		p.Bridge, p.BridgeReason = cfg.Route, forced
		return p, nil
	}
	streamlocal, known, report, err := v.probe(ctx, p.relay == nil)
	switch {
	case err != nil:
		return plan{}, err
	case report != nil:
		p.report = report
	case !known:
		p.Bridge, p.BridgeReason = Relay, "another build is finding out about streamlocal forwarding"
	case !streamlocal.works:
		p.Bridge, p.BridgeReason = p.Start, streamlocal.reason
	case p.relay != nil && !v.takeNative():
		p.Bridge = Relay
		p.BridgeReason = fmt.Sprintf("the connection has %d streamlocal channels: more would slow all of them", maxNative)
	default:
		p.Bridge, p.BridgeReason, p.native = Streamlocal, streamlocal.reason, p.relay != nil
	}
	return p, nil
}

// startRelay returns the relay that starts processes, and starts it if it does not run yet. The text is the reason
// for using the relay or, without a relay, for using sessions.
func (v *VM) startRelay(ctx context.Context, cfg *Config, conn Conn, runner []string) (*relay.Relay, string, error) {
	if cfg.Route == Session || cfg.Route == Streamlocal {
		return nil, forced, nil
	}
	before, known := v.relay.Kept()
	if cfg.Route == Auto && known && !before.works {
		return nil, before.reason, nil
	}
	search, start := cfg.search(conn), time.Now()
	relay, err := search.StartRelay(ctx, runner)
	switch {
	case err == nil && cfg.Route == Relay:
		return relay, forced, nil
	case err == nil:
		const reason = "a relay runs on this VM: one session for all builds"
		if !before.works {
			v.relay.Set(capability{true, reason}, forever)
			cfg.Logger.Info("start route found", "route", Relay, "reason", reason)
		}
		return relay, reason, nil
	case ctx.Err() != nil:
		return nil, "", gaveUp(ctx, err)
	case cfg.Route == Relay || !program.HasNoRelay(err):
		return nil, "", err
	}
	v.noRelay(program.Refusal{Reason: err.Error(), Lasts: program.Lasts(err)}, time.Since(start))
	cfg.Logger.Info("start route found", "route", Session, "reason", err.Error())
	return nil, err.Error(), nil
}

// StartRelay returns the VM's relay, for package script, and starts it if it does not run yet. It returns nil without
// an error if sessions are to be used instead. The relay belongs to the connection. StartRelay uses these fields of
// cfg: Lease, which stays the caller's, VM, Runner, TempDir, Route and Logger. ctx bounds the wait for the relay.
func StartRelay(ctx context.Context, cfg Config) (*relay.Relay, error) {
	if cfg.Lease == nil || cfg.VM == nil {
		return nil, errors.New("connector: Config.Lease or Config.VM is nil")
	}
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	runner := cfg.runner()
	if found := cfg.VM.Program(); found.Kind == program.Stepmux { // it may be an uploaded one
		runner = found.Argv()
	}
	relay, _, err := cfg.VM.startRelay(ctx, &cfg, cfg.Lease.Conn(), runner)
	return relay, err
}

// Equip finds the VM's stepmux, uploads it if it is missing and Bootstrap has it, and starts its relay, which
// StartRelay then returns. The program for artifacts and caches is also there when Equip returns. Builds of one
// connection share the work. It uses the fields of cfg that StartRelay uses, and Bootstrap, Version and ReadyTimeout.
// missing is why the relay cannot be used, so that commands use sessions without the stepmux's help; else it is "".
// The error is ctx's, or reports that the connection was lost or that the login runs no commands (program.ErrNotRun).
func Equip(ctx context.Context, cfg Config) (missing string, err error) {
	if cfg.Lease == nil || cfg.VM == nil {
		return "", errors.New("connector: Config.Lease or Config.VM is nil")
	}
	if err := cfg.setDefaults(); err != nil {
		return "", err
	}
	conn := cfg.Lease.Conn()
	found, err := cfg.VM.findProgram(ctx, &cfg, conn)
	if err == nil && found.Kind != program.Stepmux {
		return fmt.Sprintf("the step runner there is %s, and no stepmux", found), nil
	}
	if err == nil {
		relay, reason, err := cfg.VM.startRelay(ctx, &cfg, conn, found.Argv())
		if relay == nil {
			return reason, err
		}
		cfg.VM.complete(ctx, &cfg, found, relay)
		return "", err
	}
	if mux.IsLost(err) || ctx.Err() != nil || errors.Is(err, program.ErrNotRun) {
		return "", err
	}
	return err.Error(), nil
}
