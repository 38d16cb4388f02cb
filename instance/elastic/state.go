package elastic

import "time"

// Phase is how far a VM is.
type Phase int

// The phases.
const (
	// Creating: it is being made, or was not reached yet.
	Creating Phase = iota
	// Running: it was reached, and takes builds.
	Running
	// Deleting: its end has begun.
	Deleting
	// Stopped: it is switched off. The policy neither counts on it nor deletes it.
	Stopped
)

// VM is a VM of the group.
type VM struct {
	// ID is unique in a State.
	ID    string
	Phase Phase
	// Created is when it was made. Its age counts from then.
	Created time.Time
	// IdleSince is since when nothing uses it, or, for one that nothing has used yet, since when it is Running.
	IdleSince time.Time
	// Capacity is how many builds it takes at once. If zero, that of the Config.
	Capacity int
	// Used is how many builds, leases and logins it has. A reservation of a slot, as a door has one while it asks its
	// server for a job, does not count: on a VM that is drained it becomes no build.
	Used int
	// Held says that something else needs it: it is not deleted.
	Held bool
	// Uses is how many builds it has had, with those that it has.
	Uses int
	// Failures is how often it did not become ready in time.
	Failures int
	// Draining says that a Decision drained it, and that it takes no new builds since.
	Draining bool
	// Closed says that it takes no new builds for a reason that is not the policy's, such as a quarantine or a drain by
	// an operator. It is not deleted, unless it is Ill for too long.
	Closed bool
	// Ill is since when it gets no builds because of its health. Zero: it is well.
	Ill time.Time
	// Protected says that it must not be drained or deleted.
	Protected bool
}

// State is all that the policy knows.
type State struct {
	VMs []VM
	// Making is how many VMs were asked for that VMs does not have yet.
	Making int
	// Waiting is how many builds wait for a slot here.
	Waiting int
	// RetryAt is when the source of VMs may be asked for VMs again, after a failure. Zero: now.
	RetryAt time.Time
	// Throttle is that of the Decision before. The zero value is for the first one.
	Throttle Throttle
}

// Throttle is how many VMs may be made at a time: a token bucket.
type Throttle struct {
	Tokens float64
	At     time.Time
}

// Decision has the actions for a time. An action that was not carried out is in the next Decision again.
type Decision struct {
	// Create is how many VMs to make.
	Create int
	// Drain are VMs that take no new builds from now on, and Undrain those that do so again.
	Drain, Undrain []string
	// Delete are the VMs to delete.
	Delete []string

	// Demand is how many slots there should be, and Supply how many there are, with those of VMs that are being made,
	// before the actions.
	Demand, Supply int
	// Room is how many more builds may be asked for.
	Room int
	// Missing says why less VMs are made than the demand asks for. Empty if all are made.
	Missing string
	// Notes say why each VM is there or leaves, by its ID.
	Notes map[string]string
	// Wake is when the passing of time alone may lead to another decision. Zero: never.
	Wake     time.Time
	Throttle Throttle
}
