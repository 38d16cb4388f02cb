package servercall

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
)

const (
	maxBackoff = time.Minute
	// maxWait bounds a wait that a server asks for.
	maxWait = 5 * time.Minute
)

// Retry says how often a call is repeated, and when.
type Retry struct {
	// Times is how often a failed call is repeated.
	Times int
	// First is the pause after the first call. It doubles after each further one, up to a minute, with a random part of
	// up to a half.
	First time.Duration
	// Check returns whether the same call may succeed later, and how long the server asks to wait; negative without such
	// a wish. Required.
	Check func(error) (again bool, wait time.Duration)
	// Waits is told of each pause. It may be nil.
	Waits func(err error, n int, wait time.Duration)
}

// GaveUpError is the last error of a call that may still succeed later.
type GaveUpError struct {
	Err   error
	Tries int
}

// Error implements error.
func (e *GaveUpError) Error() string {
	if e.Tries == 1 {
		return e.Err.Error()
	}
	return fmt.Sprintf("%v (tried %d times)", e.Err, e.Tries)
}

// Unwrap returns the error.
func (e *GaveUpError) Unwrap() error { return e.Err }

// Do calls try until it succeeds or fails for good; then it returns its error. After Times repetitions that is a
// [GaveUpError]. The argument n of try counts from 0. A wait that a server asks for is at most 5 minutes long. Do ends
// with ctx.
func (r Retry) Do(ctx context.Context, try func(n int) error) error {
	for n := 0; ; n++ {
		err := try(n)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		again, wait := r.Check(err)
		switch {
		case !again:
			return err
		case n >= r.Times:
			return &GaveUpError{err, n + 1}
		}
		if wait = min(wait, maxWait); wait < 0 {
			wait = min(r.First<<min(n, 16), maxBackoff)
			wait = wait/2 + rand.N(wait/2+1)
		}
		if r.Waits != nil {
			r.Waits(err, n+1, wait)
		}
		if err := pause.For(ctx, wait); err != nil {
			return err
		}
	}
}

// Temporary reports whether the same request may succeed after an answer with this status.
func Temporary(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return status >= 512
}

// Wait returns how long a server asks to wait before the next request, or a negative time. A time that has passed is no
// such wish.
func Wait(h http.Header, now time.Time) time.Duration {
	for _, name := range []string{"RateLimit-ResetTime", "Retry-After"} {
		value := h.Get(name)
		if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
			return time.Duration(seconds) * time.Second
		}
		if at, err := http.ParseTime(value); err == nil && at.After(now) {
			return at.Sub(now)
		}
	}
	return -1
}

// Message returns the explanation in a GitLab's answer that is JSON, or an empty text.
func Message(text []byte) string {
	var said struct {
		Message any    `json:"message"` // a text, or an object
		Error   string `json:"error"`
	}
	if json.Unmarshal(text, &said) != nil {
		return ""
	}
	if text, is := said.Message.(string); is {
		return text
	}
	return said.Error
}
