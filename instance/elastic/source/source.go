package source

import (
	"context"
	"errors"
	"time"
)

// Source is where the VMs of a group come from. Its calls may take as long as their context.
type Source interface {
	// Info describes the source.
	Info(ctx context.Context) (Info, error)
	// List returns all VMs of the group.
	List(ctx context.Context) ([]VM, error)
	// Create begins to make VMs. A second call with the same Request.ID makes no others. It returns how many are being
	// made, at most Request.Count, and the IDs that are known already.
	Create(ctx context.Context, r Request) (accepted int, ids []string, err error)
	// Delete begins to delete VMs. It returns those that are being deleted or that are gone; the others it did not do.
	Delete(ctx context.Context, ids []string, reason string) (deleted []string, err error)
}

// ErrTryLater says that the source cannot do something now, as for a quota or a limit of requests, but will later.
var ErrTryLater = errors.New("the source asks to try again later")

// Info describes a source.
type Info struct {
	Name, Version string
	// Max bounds the VMs that it can have. If zero, it says no bound.
	Max int
}

// The states of VMs.
const (
	Creating = "creating"
	Running  = "running"
	Deleting = "deleting"
	Stopped  = "stopped"
)

// VM is a VM that a source lists. Only ID and State are required, for a running one Address as well.
type VM struct {
	ID           string            `json:"id"`
	State        string            `json:"state"`
	Address      string            `json:"address,omitempty"` // a host, without a port
	Port         int               `json:"port,omitempty"`
	User         string            `json:"user,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Created      time.Time         `json:"created,omitzero"`
	HostKeys     []string          `json:"host_keys,omitempty"` // as in the server's /etc/ssh/ssh_host_*_key.pub
	IdentityFile string            `json:"identity_file,omitempty"`
	Capacity     int               `json:"capacity,omitempty"`
	Protected    bool              `json:"protected,omitempty"` // not to be drained or deleted
}

// Request asks for VMs.
type Request struct {
	// ID is the identity of the request: the same VMs are made for the same one.
	ID    string
	Count int
	// Labels are those that the group's VMs have, and UserData is for their first start. Both may be empty.
	Labels   map[string]string
	UserData string
}
