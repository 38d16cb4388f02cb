package engine

import (
	"context"
	"errors"
	"time"
)

// stop is why a job was stopped.
type stop struct {
	message  string
	timedOut bool
	killAt   time.Time // what is left of the step then is killed
}

// Stop ends the job: the process group of the step that runs gets SIGTERM and, after grace, SIGKILL
// with all its descendants; of the steps after it only those run that always do. message says why.
// Stop does not wait; Run returns when all is done. It may be called at any time, again too: a later
// call can only shorten the time until SIGKILL. To cut short the steps that always run, end Run's ctx.
func (r *Runner) Stop(message string, grace time.Duration) {
	r.stop(&stop{message: message}, grace)
}

func (r *Runner) stop(s *stop, grace time.Duration) {
	s.killAt = time.Now().Add(grace)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped == nil {
		r.stopped = s
	} else if s.killAt.Before(r.stopped.killAt) {
		r.stopped.killAt = s.killAt
	}
	if r.current != nil {
		r.current.Stop(grace)
	}
	if r.fetching != nil {
		r.fetching(errors.New(r.stopped.message))
	}
}

// stopping returns why the job was stopped, or nil.
func (r *Runner) stopping() *stop {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped == nil {
		return nil
	}
	s := *r.stopped
	return &s
}

// attachFetch lets Stop end the current fetch by cancel, unless the step runs because the job was stopped. If Stop
// came before, attachFetch cancels at once. release undoes it.
func (r *Runner) attachFetch(cancel context.CancelCauseFunc) (release func()) {
	if r.after != nil {
		return func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetching = cancel
	if r.stopped != nil {
		cancel(errors.New(r.stopped.message))
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.fetching = nil
	}
}
