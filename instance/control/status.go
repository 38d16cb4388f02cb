package control

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/healthcheck"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// Status is the state of a manager. Times are in RFC 3339, durations in seconds.
type Status struct {
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	Since     time.Time `json:"since"`
	Waiting   int       `json:"waiting"`        // builds without a slot
	Held      int       `json:"held,omitempty"` // of those, builds that no VM takes as all that fit are aside
	Slots     Slots     `json:"slots"`
	Inventory string    `json:"inventory_error,omitempty"` // the error in the inventory's newest version
	Instances []VM      `json:"instances"`
	// JumpHosts are the jump hosts that are not instances.
	JumpHosts []JumpHost `json:"jump_hosts"`
	// Servers are those that a manager takes jobs from.
	Servers []JobServer `json:"servers,omitempty"`
	// Groups are those whose VMs come and go.
	Groups []VMGroup `json:"groups,omitempty"`
}

// VMGroup is a group whose VMs come and go. In a cluster one manager scales it; for another one most is empty.
type VMGroup struct {
	Name    string `json:"name"`
	Source  string `json:"source,omitempty"` // as it describes itself
	Scales  bool   `json:"scales"`
	Ready   int    `json:"ready"`   // VMs that take builds
	Making  int    `json:"making"`  // VMs that are being made
	Leaving int    `json:"leaving"` // VMs that are drained, or being deleted
	Other   int    `json:"other"`   // VMs that are stopped, or cannot be reached
	Max     int    `json:"max"`     // bounds all of them
	// Labels are those that each VM of the group has.
	Labels  map[string]string `json:"labels,omitempty"`
	Wanted  int               `json:"wanted_slots"`
	Supply  int               `json:"slots"`   // also those of VMs that are being made
	Waiting int               `json:"waiting"` // builds that a VM of the group would do for
	// Missing says why less VMs are made than are wanted. Error is the last error of the source, and Failures counts its
	// errors.
	Missing  string `json:"missing,omitempty"`
	Error    string `json:"error,omitempty"`
	Failures int    `json:"failures"`
}

// JobServer is a server that a manager takes jobs from.
type JobServer struct {
	Name   string    `json:"name"`
	URL    string    `json:"url"`
	State  string    `json:"state"` // registering, ready or away
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	Jobs   int64     `json:"jobs"`  // of it, now
	Taken  int64     `json:"taken"` // since the manager has started
}

// JumpHost is a machine that instances are reached through.
type JumpHost struct {
	ID   string     `json:"id"`
	Addr string     `json:"address"`
	Conn Connection `json:"connection"`
}

// VM is one instance.
type VM struct {
	ID      string            `json:"id"`
	Addr    string            `json:"address"`
	Labels  map[string]string `json:"labels,omitempty"`
	State   string            `json:"state"`
	Reason  string            `json:"reason,omitempty"`
	RetryAt *time.Time        `json:"retry_at,omitempty"`
	// Ill is since when it is suspect or quarantined, even if it is drained, and Health has the values that the last
	// examination measured.
	Ill               *time.Time           `json:"ill_since,omitempty"`
	Health            *healthcheck.Reading `json:"health,omitempty"`
	Capacity          int                  `json:"capacity"`
	Uses              int                  `json:"uses"`
	MaxUses           int                  `json:"max_uses,omitempty"`
	Conn              Connection           `json:"connection"`
	Route             Route                `json:"route"`
	program.Isolation                      // of the last build that reported it
	Builds            []Build              `json:"builds"`
	// Group is the group whose VMs come and go that it belongs to, and Note says why it is there or leaves.
	Group string `json:"group,omitempty"`
	Note  string `json:"note,omitempty"`
}

// Connection is the connection of an instance or a jump host.
type Connection struct {
	State    string     `json:"state"` // none, dialing, up or leaving
	Made     int        `json:"made"`  // number of connections so far
	Since    *time.Time `json:"since,omitempty"`
	Server   string     `json:"server,omitempty"`
	RTT      float64    `json:"rtt_s,omitempty"` // of the last keepalive
	Streams  int        `json:"streams"`         // open channels other than sessions
	Relayed  int        `json:"relayed"`         // open processes and sockets that go through the relay
	Sessions Sessions   `json:"sessions"`
}

// Sessions is the session budget of a connection.
type Sessions struct {
	Open    int    `json:"open"`
	Waiting int    `json:"waiting"`
	Limit   int    `json:"limit"` // 0 while unknown
	Source  string `json:"limit_source"`
	Refused uint64 `json:"refused"`
}

// Route is how builds are started and reached, with the reasons.
type Route = connector.Choice

// Build is a build that has a slot.
type Build struct {
	ID    string    `json:"id"`
	Since time.Time `json:"since"`
	File  string    `json:"file,omitempty"` // with its steps; only a manager with a queue knows it
}

// StatusOf returns the status of a manager that started at since. Of cfg, only Provider is required.
func StatusOf(cfg Config, since time.Time) Status {
	stat := cfg.Provider.Stat()
	status := Status{Version: cfg.Version, PID: os.Getpid(), Since: since, Waiting: stat.Waiting, Held: stat.Held}
	status.Instances, status.JumpHosts = make([]VM, len(stat.Instances)), make([]JumpHost, len(stat.JumpHosts))
	if cfg.InventoryErr != nil {
		if err := cfg.InventoryErr(); err != nil {
			status.Inventory = err.Error()
		}
	}
	for i, in := range stat.Instances {
		status.Instances[i] = vmOf(in)
	}
	for i, j := range stat.JumpHosts {
		status.JumpHosts[i] = JumpHost{ID: j.ID, Addr: j.Addr, Conn: connOf(j.Connections, j.ConnState, j.Conn)}
	}
	status.Count()
	return status
}

// Response returns the status as a run or a manager answers it.
func (s Status) Response() *pb.StatusResponse {
	text, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("BUG: encode a status: %v", err)) // it has nothing that cannot be encoded
	}
	return &pb.StatusResponse{Json: text}
}

// Ask asks a run or a manager for its status.
func Ask(ctx context.Context, of pb.ManagerClient) (s Status, err error) {
	resp, err := of.Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return s, err
	}
	if err = json.Unmarshal(resp.GetJson(), &s); err != nil {
		err = fmt.Errorf("read the status: the answer is not valid: %w", err)
	}
	return s, err
}

func vmOf(in instance.VMStat) VM {
	vm := VM{
		ID: in.ID, Addr: in.Addr, Labels: in.Labels,
		State: string(in.State), Reason: in.Reason, RetryAt: optional(in.RetryAt),
		Capacity: in.Capacity, Uses: in.Uses, MaxUses: in.MaxUses,
		Ill: optional(in.Ill), Health: in.Health,
		Conn:      connOf(in.Connections, in.ConnState, in.Conn),
		Route:     in.Route,
		Isolation: in.Isolation,
		Builds:    make([]Build, len(in.Builds)),
	}
	for i, b := range in.Builds {
		vm.Builds[i] = Build{ID: b.ID, Since: b.Since}
	}
	return vm
}

func connOf(made int, state pool.State, conn mux.Stat) Connection {
	if state != pool.Up && state != pool.Leaving {
		return Connection{State: string(state), Made: made}
	}
	s := conn.Sessions
	return Connection{
		State: string(state), Made: made, Since: optional(conn.Since),
		Server: conn.ServerVersion, RTT: conn.RTT.Seconds(), Streams: conn.Streams, Relayed: conn.Relayed,
		Sessions: Sessions{s.Open, s.Waiting, s.Limit, s.LimitSource(), s.Refused},
	}
}

// optional returns nil for the zero time.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
