package job

import (
	"slices"
	"time"
)

// collect removes the jobs that are due, until the store shuts down, and sets its timer to the time of the next one.
func (s *Store) collect() {
	s.mu.Lock()
	if s.shutdown {
		s.mu.Unlock()
		return
	}
	s.collecting.Add(1)
	defer s.collecting.Done()
	var next time.Time // zero if no job waits for removal
	now := time.Now()
	for s.cfg.KeepBytes > 0 && s.kept > s.cfg.KeepBytes && len(s.finished) > 1 {
		s.removeLocked(s.finished[0])
	}
	for len(s.finished) > 0 {
		j := s.finished[0]
		if at := j.finished.Add(s.cfg.Keep); now.Before(at) {
			next = at
			break
		}
		s.removeLocked(j)
	}
	var due []*record
	s.removed = slices.DeleteFunc(s.removed, func(j *record) bool {
		at := j.goneAt.Add(s.cfg.Linger)
		if j.followers == 0 || !now.Before(at) {
			due = append(due, j)
			return true
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
		return false
	})
	if !next.IsZero() {
		s.collector.Reset(time.Until(next))
	}
	s.mu.Unlock()
	for _, j := range due {
		j.remove()
	}
}

// removeLocked removes j, which has ended, from the store, so that its id is free. A later collect deletes its
// files: after its last follower has left, or after Linger.
func (s *Store) removeLocked(j *record) {
	if s.jobs[j.id] == j { // not a later job with the id of one that was discarded
		delete(s.jobs, j.id)
	}
	s.closing = slices.DeleteFunc(s.closing, func(c *record) bool { return c == j })
	s.kept -= j.size
	s.finished = slices.DeleteFunc(s.finished, func(f *record) bool { return f == j })
	j.gone, j.goneAt = true, time.Now()
	s.removed = append(s.removed, j)
}

// unfollow undoes Follow.
func (s *Store) unfollow(j *record) {
	s.mu.Lock()
	j.followers--
	last := j.gone && j.followers == 0
	s.mu.Unlock()
	if last {
		j.remove()
		s.collector.Reset(0)
	}
}
