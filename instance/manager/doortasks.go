package manager

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/instance/manager/state"
)

// doorTexts are the texts that a door keeps: those of this manager, and tasks. One manager of a cluster has a task. It
// is safe for concurrent use, but take is for one goroutine at a time.
type doorTexts struct {
	m *Manager

	mu  sync.Mutex        // guards the following
	has map[string]uint64 // the revisions of tasks that were kept or taken in this term; 0 while one is kept

	others map[string]otherTask // of take: tasks that other managers had
}

// otherTask is a task of another manager, as long as it has this revision.
type otherTask struct {
	revision uint64
	manager  string
}

// own is the key of a text of this manager.
func (t *doorTexts) own(key string) string {
	if id := t.m.fleet.ID(); id != "" {
		return id + "." + key
	}
	return key
}

func (t *doorTexts) keep(ctx context.Context, key string, text []byte) error {
	return t.m.store.KeepText(ctx, t.own(key), text)
}

func (t *doorTexts) kept(ctx context.Context, prefix string) (map[string][]byte, error) {
	found, err := t.m.store.KeptTexts(ctx, t.own(prefix))
	all := map[string][]byte{}
	for key, text := range found {
		all[strings.TrimPrefix(key, t.own(""))] = text
	}
	return all, err
}

func (t *doorTexts) forget(ctx context.Context, key string) error {
	return t.m.store.ForgetText(ctx, t.own(key))
}

// term is jobdoor.Host.Term.
func (t *doorTexts) term(ctx context.Context) (context.Context, context.CancelFunc, error) {
	term, stop, err := t.m.fleet.Term(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.has, t.others = map[string]uint64{}, map[string]otherTask{}
	return term, stop, err
}

// note notes the revision of a task that this manager has.
func (t *doorTexts) note(key string, revision uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.has[key] = revision
}

func (t *doorTexts) revision(key string) (revision uint64, has bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	revision, has = t.has[key]
	return revision, has
}

// keepTask is giteadoor.Host.KeepTask.
func (t *doorTexts) keepTask(ctx context.Context, key string, text []byte) error {
	if revision, has := t.revision(key); has && revision > 0 {
		return jobdoor.ErrKept
	}
	t.note(key, 0)
	now, err := t.m.store.KeepTask(ctx, key, t.m.fleet.ID(), text, 0)
	switch {
	case err == nil:
		t.note(key, now)
	case errors.Is(err, state.ErrTaken):
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.has, key) // take may find it
		return jobdoor.ErrKept
	}
	return err
}

// changeTask is giteadoor.Host.ChangeTask.
func (t *doorTexts) changeTask(ctx context.Context, key string, text []byte) error {
	revision, _ := t.revision(key)
	now, err := t.m.store.KeepTask(ctx, key, t.m.fleet.ID(), text, revision)
	if err == nil {
		t.note(key, now)
	}
	return err
}

// take is jobdoor.Host.Tasks.
func (t *doorTexts) take(ctx context.Context, prefix string, begin func(key string, text []byte)) (failed error) {
	all, err := t.m.store.Tasks(ctx, prefix)
	if err != nil {
		return err
	}
	looked := map[string]bool{} // whether managers keep their tasks; they are asked after the revisions were read
	free := func(manager string) bool {
		if _, known := looked[manager]; !known {
			looked[manager] = t.m.fleet.Free(ctx, manager)
		}
		return looked[manager]
	}
	for key, revision := range all {
		other, known := t.others[key]
		if _, has := t.revision(key); has || known && other.revision == revision && !free(other.manager) {
			continue
		}
		text, now, err := t.m.store.TakeTask(ctx, key, revision, t.m.fleet.ID(), func(of string) bool {
			t.others[key] = otherTask{revision, of}
			return free(of)
		})
		failed = errors.Join(failed, err)
		if text != nil && ctx.Err() == nil {
			t.note(key, now)
			begin(key, text)
		}
	}
	maps.DeleteFunc(t.others, func(key string, _ otherTask) bool { return all[key] == 0 })
	return failed
}

// firstFor returns this manager if it has a slot for a pipeline, which other managers might begin as well, else "".
func (m *Manager) firstFor(pipeline string) string {
	if m.rooms.find(pipeline) == nil {
		return ""
	}
	return m.fleet.ID()
}

// isOthers reports whether a request or call is for another manager first, and that one has it: it has begun with it
// before the queue could hand it out.
func (m *Manager) isOthers(d *state.Delivery, id string) bool {
	first := d.For()
	if first == "" || first == m.fleet.ID() {
		return false
	}
	return slices.ContainsFunc(m.fleet.ask(m.takes, peerQuestion{Has: id}), func(a peerAnswer) bool { return a.Has })
}

// has reports whether this manager has a build, carries a pipeline out, or has a slot for one of these.
func (m *Manager) has(id string) bool {
	return m.find(id) != nil || m.carries(id) || m.rooms.find(id) != nil || m.rooms.find(state.PipelineOf(id)) != nil
}

// carries reports whether this manager carries a pipeline out.
func (m *Manager) carries(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.carried[id] != nil
}
