package job

import (
	"slices"
	"time"
)

// collect removes jobs when they are due, until the store shuts down.
func (s *Store) collect() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.stopped.Done():
			return
		}
		if next := s.collectDue(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// wakeCollector makes the collector look again for jobs that are due.
func (s *Store) wakeCollector() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// collectDue removes the jobs that are due. next is when it has to be called again, or the zero time if no job waits
// for removal.
func (s *Store) collectDue() (next time.Time) {
	now := time.Now()
	s.mu.Lock()
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
	s.mu.Unlock()
	for _, j := range due {
		j.remove()
	}
	return next
}

// removeLocked removes j, which has ended, from the store, so that its id is free. A later collectDue deletes its
// files: after its last follower has left, or after Linger.
func (s *Store) removeLocked(j *record) {
	delete(s.jobs, j.id)
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
		s.wakeCollector()
	}
}
