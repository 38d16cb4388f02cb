package connector

import (
	"context"
	"sync"
)

// maxNative is how many streamlocal bridges a VM's connection has at once where a relay can take the rest:
// sshd's work for each byte grows with the number of open channels.
const maxNative = 64

// VM remembers what was found out about one VM, for all its builds. The zero value knows nothing
// yet. It is safe for concurrent use.
type VM struct {
	mu          sync.Mutex // guards the following
	relay       verdict
	streamlocal verdict
	probing     chan struct{} // not nil while a build finds out about streamlocal; closed when it is through
	search      *search       // for the step runner: under way, or what it found; nil before the first
	skewTold    bool
	serves      ahead
	proxies     ahead
	native      int // streamlocal bridges that are open
}

// verdict is what is known of a route.
type verdict struct {
	known, works bool
	reason       string
}

// judgeRelay remembers whether a relay runs on the VM. That none runs now, after one did, is news too.
func (v *VM) judgeRelay(works bool, reason string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.relay = verdict{true, works, reason}
}

// forgetRelay forgets what is known of the relay, which may be that of another program.
func (v *VM) forgetRelay() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.relay = verdict{}
}

// relayVerdict returns what is known of the relay.
func (v *VM) relayVerdict() verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.relay
}

// streamlocalVerdict returns what is known of streamlocal. While nobody knows it asks one caller to find
// out: then found is not nil and must be called, with the zero verdict if nothing was learned. The others
// wait for that, bounded by ctx, or, if they would rather not, get the zero verdict.
func (v *VM) streamlocalVerdict(ctx context.Context, wait bool) (known verdict, found func(verdict), err error) {
	for {
		v.mu.Lock()
		if v.streamlocal.known {
			defer v.mu.Unlock()
			return v.streamlocal, nil, nil
		}
		if v.probing == nil {
			defer v.mu.Unlock()
			v.probing = make(chan struct{})
			return verdict{}, once(v.found), nil
		}
		probing := v.probing
		v.mu.Unlock()
		if !wait {
			return verdict{}, nil, nil
		}
		select {
		case <-probing:
		case <-ctx.Done():
			return verdict{}, nil, ctx.Err()
		}
	}
}

// once returns fn cut down to its first call.
func once(fn func(verdict)) func(verdict) {
	var o sync.Once
	return func(what verdict) { o.Do(func() { fn(what) }) }
}

// found ends a probe.
func (v *VM) found(what verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.streamlocal = what
	close(v.probing)
	v.probing = nil
}

// judgeStreamlocal replaces what was known: a route that worked does no more.
func (v *VM) judgeStreamlocal(works bool, reason string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.streamlocal = verdict{true, works, reason}
}

// takeNative counts one streamlocal bridge more if there is room for it, and else returns false.
func (v *VM) takeNative() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.native >= maxNative {
		return false
	}
	v.native++
	return true
}

// giveNative undoes takeNative.
func (v *VM) giveNative() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.native--
}

// Choice returns the routes that builds take on the VM when the choice is theirs; what is not known yet is
// empty.
func (v *VM) Choice() Choice {
	v.mu.Lock()
	defer v.mu.Unlock()
	var c Choice
	switch {
	case v.relay.known && v.relay.works:
		c.Start, c.StartReason = Relay, v.relay.reason
	case v.relay.known:
		c.Start, c.StartReason = Session, v.relay.reason
	}
	switch {
	case v.streamlocal.known && v.streamlocal.works:
		c.Bridge, c.BridgeReason = Streamlocal, v.streamlocal.reason
	case v.streamlocal.known && c.Start != "":
		c.Bridge, c.BridgeReason = c.Start, v.streamlocal.reason
	}
	return c
}
