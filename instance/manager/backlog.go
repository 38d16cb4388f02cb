package manager

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/internal/labels"
)

const (
	// maxLookedAt bounds the builds of the queue whose labels are read for a Backlog, and maxWaits the labels in it.
	maxLookedAt, maxWaits = 1000, 50
	// otherLabels stands for the labels over maxWaits, and otherFiles for the files in the state directory itself.
	otherLabels, otherFiles = "other", "other"
	// backlogTime is how long an answer is used again, and sizeTime how long the size of the state directory is.
	backlogTime, sizeTime = time.Second, time.Minute
)

// backlog is the last answer of Manager.Backlog.
type backlog struct {
	mu     sync.Mutex // held while it is made; guards the following
	last   control.Backlog
	at     time.Time
	size   map[string]int64
	sizeAt time.Time
}

// Backlog returns the work that waits for the Manager, or for all managers of its cluster, and the size of the state.
// It reads the labels of the first 1,000 builds of the queue.
func (m *Manager) Backlog(ctx context.Context) (control.Backlog, error) {
	m.backlog.mu.Lock()
	defer m.backlog.mu.Unlock()
	if time.Since(m.backlog.at) < backlogTime {
		return m.backlog.last, nil
	}
	b, err := m.makeBacklog(ctx)
	if err == nil {
		m.backlog.last, m.backlog.at = b, time.Now()
	}
	return b, err
}

// makeBacklog is Backlog. backlog.mu is held.
func (m *Manager) makeBacklog(ctx context.Context) (b control.Backlog, err error) {
	s, list, err := m.statusAndQueue(ctx, maxLookedAt)
	if err != nil {
		return b, err
	}
	b.Waiting, b.Servers, b.Groups = map[control.Wait]int{}, s.Servers, s.Groups
	b.Events = m.events.counts()
	known := map[string]bool{}
	for i, build := range list.GetBuilds() {
		if i == 0 {
			b.Oldest = max(time.Since(build.GetSubmitted().AsTime()), 0)
		}
		cause, _ := s.WhyWaits(build.GetLabels())
		text := labels.Text(build.GetLabels())
		if known[text] = known[text] || len(known) < maxWaits; !known[text] {
			delete(known, text)
			text = otherLabels
		}
		b.Waiting[control.Wait{Labels: text, Cause: cause}]++
	}
	queued := int(list.GetQueued()) // there are not that many
	if deep := queued - len(list.GetBuilds()); deep > 0 {
		b.Waiting[control.Wait{Cause: control.CauseDeep}] = deep
	}
	if leases := s.Waiting - queued; leases > 0 {
		b.Waiting[control.Wait{Cause: control.CauseLease}] = leases
	}
	if b.LogBytes, b.LogsRemoved, err = m.store.LogSize(ctx); err != nil {
		return b, err
	}
	if time.Since(m.backlog.sizeAt) >= sizeTime {
		m.backlog.size, m.backlog.sizeAt = sizeOf(m.cfg.Dir), time.Now()
	}
	b.State = m.backlog.size
	return b, nil
}

// sizeOf returns the bytes of the files in a state directory, by its directories.
func sizeOf(dir string) map[string]int64 {
	sizes := map[string]int64{}
	// A file that has just been removed is left out.
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // see above
		}
		part := otherFiles
		if name, err := filepath.Rel(dir, path); err == nil {
			if first, _, in := strings.Cut(name, string(filepath.Separator)); in {
				part = first
			}
		}
		if info, err := d.Info(); err == nil {
			sizes[part] += info.Size()
		}
		return nil
	})
	return sizes
}
