package scaler

import (
	"context"
	"errors"
	"time"

	"github.com/stepmux/stepmux/instance/elastic/source"
)

// Host is the manager, for one group. One goroutine calls it.
type Host interface {
	// Use makes these the VMs of the group. New ones take builds once they were reached. Those that are missing take no
	// more. An error says that the set cannot be right, as with a VM of another group; then nothing has changed.
	Use(ctx context.Context, vms []source.VM) error
	// Drain lets exactly these VMs of the group take no new builds.
	Drain(ids map[string]bool)
	// Look returns how the VMs are used, and how many builds wait for them.
	Look(ctx context.Context) (Look, error)
	// Busy returns the VMs that have a build or a lease by the state, also those that no manager has resumed yet.
	Busy(ctx context.Context) (map[string]bool, error)
	// Claim returns whether this manager scales the group, and the record of the group, which is nil at first.
	Claim(ctx context.Context) (record []byte, mine bool, err error)
	// Keep keeps the record, and returns when it is on disk. ErrLost says that another manager scales the group now.
	Keep(ctx context.Context, record []byte) error
	// KeptVMs returns the VMs that are kept, by their IDs. KeepVM keeps one, and ForgetVM removes one.
	KeptVMs(ctx context.Context) (map[string][]byte, error)
	KeepVM(ctx context.Context, id string, text []byte) error
	ForgetVM(ctx context.Context, id string) error
	// Note tells that something was done with a VM, or with some that have no ID yet: then id is empty.
	Note(action, id, why string)
}

// ErrLost says that another manager scales the group.
var ErrLost = errors.New("another manager scales the group")

// Look is how a group is used at a time.
type Look struct {
	// VMs are those that a manager has.
	VMs map[string]Usage
	// Waiting is how many builds and leases wait for a slot that a VM of the group would do for.
	Waiting int
}

// Usage is how a VM is used.
type Usage struct {
	// Used is how many builds, leases and logins it has, and Uses how many it has had.
	Used, Uses int
	// Ready says that it was reached, and Alive that it has a connection.
	Ready, Alive bool
	// Drained says that Host.Drain has taken effect, and Closed that it takes no builds for another reason.
	Drained, Closed bool
	// Ill is since when it gets no builds because of its health. Zero: it is well.
	Ill time.Time
}

// Status is how a group stands.
type Status struct {
	Name, Source string
	// At is the time of the last decision.
	At time.Time
	// Scales says that this manager scales the group. Otherwise most of the following is empty.
	Scales bool
	// Ready, Making, Leaving and Other count the VMs: those that take builds, those that are being made, those that are
	// drained or deleted, and the others. Max bounds them all.
	Ready, Making, Leaving, Other, Max int
	// Demand and Supply are slots, see elastic.Decision, and Waiting is that of Look.
	Demand, Supply, Waiting int
	// Room is how many more builds may be asked for.
	Room int
	// Missing says why less VMs are made than are needed. Err is the last error of the source, and Failures counts its
	// errors in all. Notes say why each VM is there, or leaves.
	Missing, Err string
	Failures     int
	Notes        map[string]string
}
