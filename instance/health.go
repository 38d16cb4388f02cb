package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/instance/healthcheck"
	"github.com/stepmux/stepmux/mux"
)

// After n failed attempts in a row to connect to a host, the next attempt waits backoffBase doubled n-1 times, at
// most backoffMax, minus up to half of that at random. After a permanent error the pause is the whole backoffMax,
// because servers ban addresses that keep failing to log in. During the pause every dial fails at once with that error.
const (
	backoffBase = 500 * time.Millisecond
	backoffMax  = 30 * time.Second
	// awaitMax is the longest pause between two attempts as long as builds wait for a host; see Config.ConnectWait.
	awaitMax = time.Second
	// maxAttempts bounds the attempts of one dial.
	maxAttempts = 3
	// maxFaults is how many jobs in a row an instance may fail before it is quarantined, if no other can take its builds.
	maxFaults = 3
	// proof is how long the steps of a job run on a suspect instance before the instance counts as working.
	proof = 10 * time.Second
)

// health records how the latest attempts to connect to a host went. It is the only memory of failures: it paces
// dials, and keeps builds away from an instance. The zero value is a host without failures. Group.mu guards it.
type health struct {
	failures int       // failed attempts since the last success
	since    time.Time // of the first of them; zero without one
	last     error     // the error of the last attempt, nil if it succeeded
	retryAt  time.Time // no attempt begins before this time
	told     bool      // that builds wait for it
	// suspect is why the last dial failed, the last connection died, or a build could not be started. While it is not
	// nil, the instance is quarantined until retryAt, and then gets one build at a time, the probe. It is nil while a dial
	// still retries.
	suspect error
	unfit   bool // suspect is why a build could not be started, though the host is reached
	// unproven means that suspect is why jobs failed, although their step runners had started: so only a job that goes
	// well proves that the instance works again.
	unproven bool
	faults   int // jobs in a row that the instance failed

	lacking error     // what builds need and the last examination did not find: it gets none
	ill     time.Time // since when suspect or lacking is not nil
}

// quarantined reports whether the instance gets no builds for now.
func (h *health) quarantined(now time.Time) bool {
	return h.lacking != nil || h.suspect != nil && now.Before(h.retryAt)
}

// reason returns why the instance is suspect or quarantined, or nil.
func (h *health) reason() error { return cmp.Or(h.lacking, h.suspect) }

// illLocked notes since when an instance is suspect or quarantined, and tells it once.
func (g *Group) illLocked(id string, h *health) {
	if h.ill.IsZero() {
		h.ill = time.Now()
		g.tellLocked(id, h.reason())
	}
}

func (g *Group) tellLocked(id string, why error) {
	if g.tellHealth != nil {
		g.tellHealth(id, why)
	}
}

// wellLocked forgets the failures of an instance, but not the finding of an examination.
func (g *Group) wellLocked(id string, h *health) {
	*h = health{lacking: h.lacking, ill: h.ill}
	if h.lacking == nil && !h.ill.IsZero() {
		h.ill = time.Time{}
		g.tellLocked(id, nil)
	}
}

// recoveredLocked records that an instance was reached, or has started a build.
func (g *Group) recoveredLocked(e *entry) {
	g.wellLocked(e.placement.ID, e.host.health)
	e.probe = nil
}

// examined records the reading of an examination, nil if nothing could be measured, and why the instance gets no
// builds.
func (g *Group) examined(id string, reading *healthcheck.Reading, lacking error) {
	g.mu.Lock()
	defer g.unlock()
	e := g.byID[id]
	if e == nil {
		return
	}
	e.reading = reading
	h := e.host.health
	if h.lacking = lacking; lacking != nil {
		g.illLocked(id, h)
	} else if h.suspect == nil && !h.ill.IsZero() {
		h.ill = time.Time{}
		g.tellLocked(id, nil)
	}
}

// isAwaited reports whether builds may wait for the host because it does not answer; see Config.ConnectWait. Those that
// came later wait longer.
func (h *health) isAwaited(connectWait time.Duration) bool {
	return time.Since(h.since) < 2*connectWait
}

// quarantine keeps builds away from an instance that is reached, but failed a build because of err.
func (h *health) quarantine(err error, now time.Time) {
	if h.unfit && h.quarantined(now) {
		return // builds that were started at once are one failure, and not many in a row
	}
	h.failures++
	h.suspect, h.unfit, h.retryAt = err, true, now.Add(backoff(h.failures))
}

// refused returns the permanent error with which every dial fails for now, or nil.
func (h *health) refused(now time.Time) *dialError {
	failed := (*dialError)(nil)
	if h.quarantined(now) && errors.As(h.suspect, &failed) && failed.permanent {
		return failed
	}
	return nil
}

// firstRefusal reports whether it is called for the first time since a slot's instance was reached.
func (g *Group) firstRefusal(s *slot) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := s.entry.host.health
	first := !h.told
	h.told = true
	return first
}

// attemptFailed records a failed attempt, and returns when the next may begin.
func (g *Group) attemptFailed(h *host, err error, permanent bool) time.Time {
	g.mu.Lock()
	defer g.unlock()
	h.health.failures++
	h.health.last = err
	pause := backoffMax
	if !permanent {
		pause = backoff(h.health.failures)
		if g.awaited[h.id] > 0 {
			pause = min(pause, hasteMax)
		}
		if h.health.since.IsZero() {
			h.health.since = time.Now()
		}
		if h.health.isAwaited(g.connectWait) {
			pause = min(pause, awaitMax)
		}
	}
	h.health.retryAt = time.Now().Add(pause)
	return h.health.retryAt
}

// dialFailed records a failed dial, and returns err.
func (g *Group) dialFailed(h *host, err *dialError) *dialError {
	g.mu.Lock()
	defer g.unlock()
	h.health.suspect = err
	g.illLocked(h.id, h.health)
	return err
}

// awaitTime returns Config.ConnectWait.
func (g *Group) awaitTime() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.connectWait
}

// awaits reports whether builds wait for a host that has refused a dial before, so that the reason is known.
func (g *Group) awaits(id string) bool {
	h, err := g.findHost(id)
	if err != nil {
		return false
	}
	known := g.healthOf(h)
	return known.suspect != nil && known.isAwaited(g.awaitTime())
}

// healthOf returns a snapshot of a host's health.
func (g *Group) healthOf(h *host) health {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *h.health
}

// dialError reports that a host could not be connected to. All callers that waited for the dial get the same error.
type dialError struct {
	host     string
	attempts int
	// permanent means that another dial fails too until the login or the host keys are changed.
	permanent bool
	err       error // of the last attempt
}

func (e *dialError) Error() string {
	text := fmt.Sprintf("connect %s: %v", e.host, e.err)
	if _, names := e.err.(*mux.DialError); names { //nolint:errorlint // another one is of a jump host
		text = e.err.Error() // the machine
	}
	if e.attempts > 1 {
		text += fmt.Sprintf(" (%d attempts)", e.attempts)
	}
	return text
}

func (e *dialError) Unwrap() error { return e.err }

// MayPass reports whether err, of a connection that was not made, may pass by itself: nothing listens on the port yet,
// or the server closes connections because it has too many. A refused login, a wrong host key, an unknown name and a
// server without a common algorithm do not pass.
func MayPass(err error) bool {
	if isPermanent(err) {
		return false
	}
	failed, ok := errors.AsType[*mux.DialError](err)
	for inner := failed; inner != nil; inner, _ = errors.AsType[*mux.DialError](inner.Err) {
		failed = inner // at a jump host
	}
	name, isName := errors.AsType[*net.DNSError](err)
	switch {
	case !ok:
		_, ended := errors.AsType[*mux.ConnError](err) // soon after the login
		return ended
	case failed.Stage == "connect":
		return !isName || !name.IsNotFound
	case failed.Stage == "handshake":
		return slices.ContainsFunc([]error{
			io.EOF, io.ErrClosedPipe, syscall.ECONNRESET, syscall.EPIPE, context.DeadlineExceeded,
		}, func(closed error) bool { return errors.Is(err, closed) })
	}
	return false
}

// isPermanent reports whether err, or an error in its chain, declares itself permanent.
func isPermanent(err error) bool {
	e, ok := errors.AsType[interface {
		error
		Permanent() bool
	}](err)
	return ok && e.Permanent()
}

// backoff returns the pause after the n-th failure in a row, n from 1.
func backoff(n int) time.Duration {
	d := min(backoffBase<<min(n-1, 10), backoffMax)
	return d - rand.N(d/2+1)
}
