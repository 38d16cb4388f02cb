package manager

import (
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
)

// maxUnkept bounds the events that are not in the store yet.
const maxUnkept = 1000

// events are the events of VMs.
type events struct {
	unkept chan state.Event

	mu   sync.Mutex // guards the following
	seen map[string]uint64
}

// tell says that something happened to a VM. It returns at once.
func (m *Manager) tell(e state.Event) {
	m.events.mu.Lock()
	m.events.seen[e.Kind]++
	m.events.mu.Unlock()
	select {
	case m.events.unkept <- e:
	default:
		m.cfg.Logger.Warn("an event is not kept: the store is slow", "kind", e.Kind, "instance", e.Instance, "note", e.Note)
	}
}

// tellHealth is called by the group of instances.
func (m *Manager) tellHealth(id string, why error) {
	e := state.Event{Kind: "well", Instance: id}
	if why != nil {
		e.Kind, e.Note = "ill", why.Error()
	}
	m.tell(e)
}

// keepEvents keeps the events, as long as builds are taken.
func (m *Manager) keepEvents() {
	m.cfg.Group.OnHealth(m.tellHealth)
	defer m.cfg.Group.OnHealth(nil)
	for {
		select {
		case e := <-m.events.unkept:
			if e.Group == "" {
				e.Group = m.groups.groupOf(e.Instance)
			}
			if err := m.store.KeepEvent(m.takes, e); err != nil && m.takes.Err() == nil {
				m.cfg.Logger.Warn("an event is not kept", "kind", e.Kind, "instance", e.Instance, "note", e.Note, "error", err)
			}
		case <-m.takes.Done():
			return
		}
	}
}

// groupOf returns the group whose VMs come and go that a VM belongs to, or "".
func (e *elasticGroups) groupOf(id string) string {
	for _, g := range e.all {
		if _, has := g.scaler.Status().Notes[id]; has {
			return g.cfg.Name
		}
	}
	return ""
}

// counts returns how many events there were of each kind.
func (e *events) counts() map[string]uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.seen)
}

// Events implements pb.ManagerServer.
func (s *service) Events(req *pb.EventsRequest, to grpc.ServerStreamingServer[pb.Event]) error {
	ctx := to.Context()
	since := time.Time{}
	if req.GetSince() != nil {
		since = req.GetSince().AsTime()
	}
	err := s.m.store.Events(ctx, req.GetFollow(), func(e *pb.Event) error {
		about := req.GetAbout()
		if e.GetAt().AsTime().Before(since) ||
			len(about) > 0 && !slices.Contains(about, e.GetInstance()) && !slices.Contains(about, e.GetGroup()) {
			return nil
		}
		return to.Send(e)
	})
	if err != nil {
		return s.m.failed(ctx, err)
	}
	return nil
}
