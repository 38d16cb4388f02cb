package manager

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/instance/manager/state"
)

const (
	// peersSubject is where the managers of a cluster ask each other.
	peersSubject = "stepmux.managers"
	// peersWait bounds the wait for the answers of the others.
	peersWait = time.Second
)

// peerQuestion is a question to all other managers.
type peerQuestion struct {
	Manager string `json:"manager"`          // the one that asks
	Taken   bool   `json:"taken,omitempty"`  // asks for the builds that the others have
	Status  bool   `json:"status,omitempty"` // asks for their VMs
	Has     string `json:"has,omitempty"`    // asks for the one that has this build or pipeline
}

// peerAnswer is the answer of one of them.
type peerAnswer struct {
	Taken   []string     `json:"taken,omitempty"`   // builds with a record
	Running int64        `json:"running,omitempty"` // how many of them run
	VMs     []control.VM `json:"vms,omitempty"`     // those that it has
	Waiting int          `json:"waiting,omitempty"` // leases that wait for one of them
	Has     bool         `json:"has,omitempty"`
}

// answer answers the other managers until the connection is closed.
func (c *shared) answer() error {
	m := c.m
	_, err := m.store.Conn.Subscribe(peersSubject, func(msg *nats.Msg) {
		var q peerQuestion
		if json.Unmarshal(msg.Data, &q) != nil || q.Manager == c.ID() || m.takes.Err() != nil {
			return
		}
		var a peerAnswer
		switch {
		case q.Has != "":
			a.Has = m.has(q.Has)
		case q.Taken:
			a = m.taken()
		case q.Status:
			s := m.ownStatus()
			a.Waiting = s.Waiting
			for _, vm := range s.Instances {
				if vm.State != string(instance.Elsewhere) {
					a.VMs = append(a.VMs, vm)
				}
			}
		}
		if err := msg.Respond(natscall.Encode(a)); err != nil { // it does not wait for long
			m.cfg.Logger.Warn("cannot tell another manager of VMs and builds; is max_payload of the NATS servers 8MB?",
				"error", err)
		}
	})
	return err
}

func (c *shared) ask(ctx context.Context, q peerQuestion) (answers []peerAnswer) {
	others := c.Others()
	if others == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, peersWait)
	defer cancel()
	q.Manager = c.ID()
	inbox := c.m.store.Conn.NewInbox()
	replies, err := c.m.store.Conn.SubscribeSync(inbox)
	if err != nil {
		return nil
	}
	defer func() { _ = replies.Unsubscribe() }()
	if err := c.m.store.Conn.PublishRequest(peersSubject, inbox, natscall.Encode(q)); err != nil {
		return nil
	}
	for range others {
		msg, err := replies.NextMsgWithContext(ctx)
		if err != nil {
			break
		}
		var a peerAnswer
		if json.Unmarshal(msg.Data, &a) == nil {
			answers = append(answers, a)
		}
		if a.Has {
			break // no other one answers
		}
	}
	return answers
}

// sendToRoom gives builds that wait here for a slot back to the queue, as many as other managers have free slots for.
func (c *shared) sendToRoom(ctx context.Context) {
	builds := map[string]*build{}
	for _, b := range c.m.builds() {
		builds[b.attemptID()] = b
	}
	// Without leases, and builds that have ended since.
	waiting := slices.DeleteFunc(c.m.cfg.Group.Waiting(), func(id string) bool { return builds[id] == nil })
	if len(waiting) == 0 {
		return
	}
	var vms []control.VM
	for _, a := range c.ask(ctx, peerQuestion{Status: true}) {
		vms = append(vms, a.VMs...)
	}
	given := map[string]int{} // slots, by VM
	for _, id := range waiting {
		labels := builds[id].asked.GetLabels()
		i := slices.IndexFunc(vms, func(vm control.VM) bool {
			return vm.State == string(instance.Ready) && len(vm.Builds)+given[vm.ID] < vm.Capacity &&
				instance.HasLabels(vm.Labels, labels)
		})
		if i >= 0 && builds[id].waits() {
			given[vms[i].ID]++
			c.m.leaveTo(builds[id])
		}
	}
}

// taken returns the builds with a record that this manager has, and how many of them run.
func (m *Manager) taken() (a peerAnswer) {
	for _, b := range m.builds() {
		if r := b.kept(); r.Phase != "" {
			a.Taken = append(a.Taken, r.ID)
			if r.Phase == state.PhaseRunning {
				a.Running++
			}
		}
	}
	return a
}

// cancelElsewhere cancels a build by its record: another manager has the build, or will take it.
func (c *shared) cancelElsewhere(ctx context.Context, rec *state.Record) error {
	if !rec.Canceled {
		rec.Canceled = true
		if err := c.m.store.Put(ctx, rec); err != nil {
			return err
		}
	}
	return c.TellCancel(ctx, rec.ID)
}

// noteCancel cancels a build of this manager that another one was told to cancel.
func (m *Manager) noteCancel(id string) {
	b := m.find(id)
	if b == nil {
		return
	}
	m.spawn(func() {
		_ = m.cancelLive(b) // fails if another manager has changed the record
		b.cancel(errCanceled)
	})
}
