package engine

import "time"

// stop says why a job was stopped. It does not change.
type stop struct {
	message  string
	timedOut bool
	killAt   time.Time // when the rest of the step is killed
}

// Stop ends the job. The process group of the running step gets SIGTERM and, after grace, SIGKILL with all its
// descendants. Of the later steps only those run that always run. message says why.
//
// Stop does not wait; Run returns when all is done. It may be called at any time, and again: a later call can only
// shorten the time until SIGKILL. To cut short the steps that always run, end Run's ctx.
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
		shorter := *r.stopped
		shorter.killAt = s.killAt
		r.stopped = &shorter
	}
	if r.current != nil {
		r.current(r.stopped)
	}
}

// stopping returns why the job was stopped, or nil.
func (r *Runner) stopping() *stop {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopped
}

// attach lets Stop end the present work of the step, its process or its fetch, by end. It does nothing if the step runs
// although the job was stopped. If Stop came before, attach calls end at once.
func (r *Runner) attach(end func(*stop)) {
	if r.after != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = end
	if r.stopped != nil {
		end(r.stopped)
	}
}

// release undoes attach. If a stop ended the step, it returns that.
func (r *Runner) release() *stop {
	r.mu.Lock()
	defer r.mu.Unlock()
	attached := r.current != nil
	r.current = nil
	if !attached {
		return nil
	}
	return r.stopped
}
