package instance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// After n failed attempts in a row to connect to a host, the next begins no sooner than backoffBase doubled n-1 times,
// at most backoffMax, less up to half of that at random. After a permanent error the pause is the whole of backoffMax,
// because servers ban an address that keeps failing to log in; meanwhile every dial fails at once with that error.
const (
	backoffBase = 500 * time.Millisecond
	backoffMax  = 30 * time.Second
	// maxAttempts bounds the attempts of one dial.
	maxAttempts = 3
)

// health says how the latest attempts to connect to a host went. It is the only memory of failures: it paces dials,
// and keeps builds off an instance. The zero value is a host without failures. Group.mu guards it.
type health struct {
	failures int       // attempts that failed since the last that succeeded
	last     error     // the error of the last attempt, nil if it succeeded
	retryAt  time.Time // no attempt begins before
	// suspect is why the last dial failed or the last connection died. While it is not nil, the instance is in
	// quarantine until retryAt, and then gets one build, the probe, at a time. It is nil while a dial still retries.
	suspect error
}

// quarantined reports whether the instance gets no builds.
func (h *health) quarantined(now time.Time) bool { return h.suspect != nil && now.Before(h.retryAt) }

// refused returns the permanent error that every dial fails with, or nil.
func (h *health) refused(now time.Time) *dialError {
	failed := (*dialError)(nil)
	if h.quarantined(now) && errors.As(h.suspect, &failed) && failed.permanent {
		return failed
	}
	return nil
}

// attemptFailed notes that an attempt failed, and returns when the next may begin.
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
	}
	h.health.retryAt = time.Now().Add(pause)
	return h.health.retryAt
}

// dialFailed notes that a dial failed, and returns err.
func (g *Group) dialFailed(h *host, err *dialError) *dialError {
	g.mu.Lock()
	defer g.unlock()
	h.health.suspect = err
	return err
}

// healthOf returns a snapshot of a host's health.
func (g *Group) healthOf(h *host) health {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *h.health
}

// dialError says that a host could not be connected to. All that waited for the dial get the same one.
type dialError struct {
	host     string
	attempts int
	// permanent: another dial fails too until the login or the host keys are changed.
	permanent bool
	err       error // of the last attempt
}

func (e *dialError) Error() string {
	if e.attempts > 1 {
		return fmt.Sprintf("connect %s: %v (%d attempts)", e.host, e.err, e.attempts)
	}
	return fmt.Sprintf("connect %s: %v", e.host, e.err)
}

func (e *dialError) Unwrap() error { return e.err }

// isPermanent reports whether err is, or wraps, an error that says so of itself.
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
