package manager

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/instance/manager/state"
)

const (
	// DefaultLinger is how long a build continues without a manager.
	DefaultLinger = 5 * time.Minute
	// DefaultLease is how long the VMs of a manager of a cluster that says nothing stay with it.
	DefaultLease = 30 * time.Second
	// DefaultKeep is how long builds that have ended are kept.
	DefaultKeep = 7 * 24 * time.Hour
	// DefaultLogBytes bounds all logs together.
	DefaultLogBytes = 10 << 30
	// DefaultFileBytes bounds the projects of builds, and their artifacts.
	DefaultFileBytes = 10 << 30
)

// Config is the configuration of a Manager.
type Config struct {
	// Dir is the directory of the state. It is made if it is missing, for this user alone. One manager uses it at a time.
	// Required.
	Dir string
	// KeyFile has the key that seals requests, 32 bytes. It is made if it is missing, and only this user may read it. If
	// empty, the file key in Dir.
	KeyFile string
	// NATS is the cluster in which several managers keep their state. Dir then has the files of this manager alone.
	// KeyFile and the instances are the same for all of them, and each VM is used by one of them at a time. If nil, the
	// state is in Dir.
	NATS *state.NATS
	// Lease is how long a silent manager of a cluster keeps its VMs, the same for all managers, and its builds their
	// places in the queue, at least a second. If zero, DefaultLease.
	Lease time.Duration
	// Provider runs the builds on the instances of Group. The caller closes it after the Manager. Both are required.
	Provider *instance.Provider
	Group    *instance.Group
	// VMGroups are groups of VMs that come and go, beside the instances of Group. Their names are unique. In a cluster all
	// managers have the same.
	VMGroups []VMGroup
	// HealthPeriod is how often each VM is examined; see instance.Provider.Examine. If zero, a minute.
	HealthPeriod time.Duration
	// Linger is how long a build continues without a manager, at most 24h. If zero, DefaultLinger.
	Linger time.Duration
	// Place returns where the job of a build runs: in a container, in a pod (if the group is a cluster), or, if it returns
	// nil, on the instance itself. own is what the job's keys image and services say, or nil. When another manager takes
	// over the build, Place is called again, and must return the same. If nil, jobs with such keys are refused, and the
	// others run on the instance.
	Place func(own *place.Spec) (place.Description, error)
	// Pipelines reads whole pipelines. If nil, they are refused.
	Pipelines Pipelines
	// StrictScripts makes Submit refuse a job whose scripts have warnings, as the commands do with --strict-scripts.
	StrictScripts bool
	// EndBuilds makes Shutdown end the running builds: for instances that end with the manager.
	EndBuilds bool
	// Keep is how long builds that have ended, and logs, are kept, at least a second. If zero, DefaultKeep.
	Keep time.Duration
	// LogBytes bounds all logs together; the oldest pieces go first. If zero, DefaultLogBytes.
	LogBytes int64
	// FileBytes bounds the archives of all projects that builds need, and those of all artifacts. The artifacts of the
	// oldest builds go first. If zero, DefaultFileBytes.
	FileBytes int64
	// Version is the program's version.
	Version string
	// InventoryErr returns the error in the inventory's newest version, if there is one. May be nil.
	InventoryErr func() error
	// OnEnd is called when a build has ended, from many goroutines at once. Times before the end are those of this
	// manager. May be nil.
	OnEnd func(batch.Report)
	// Logger receives messages for an operator. If nil, nothing is logged.
	Logger *slog.Logger
}

// check checks the configuration and sets its defaults.
func (cfg *Config) check() error {
	switch {
	case cfg.Dir == "" || cfg.Provider == nil || cfg.Group == nil:
		return errors.New("manager: Config.Dir, Provider or Group is missing")
	case cfg.HealthPeriod < 0:
		return fmt.Errorf("manager: VMs cannot be examined each %v", cfg.HealthPeriod)
	case cfg.Linger < 0 || cfg.Linger > instance.MaxLinger:
		return fmt.Errorf("manager: linger %v: use at most %v", cfg.Linger, instance.MaxLinger)
	case cfg.Keep != 0 && cfg.Keep < time.Second:
		return fmt.Errorf("manager: builds are kept for a second at least, not %v", cfg.Keep)
	case cfg.Lease != 0 && cfg.Lease < time.Second:
		return fmt.Errorf("manager: a lease lasts for a second at least, not %v", cfg.Lease)
	case cfg.NATS != nil && (len(cfg.NATS.URLs) == 0 || cfg.KeyFile == "" || cfg.EndBuilds):
		return errors.New("manager: NATS without addresses, without a KeyFile, or with EndBuilds")
	case cfg.LogBytes < 0 || cfg.FileBytes < 0:
		return fmt.Errorf("manager: %d bytes of logs, %d of files", cfg.LogBytes, cfg.FileBytes)
	}
	cfg.KeyFile = cmp.Or(cfg.KeyFile, filepath.Join(cfg.Dir, "key"))
	cfg.Lease, cfg.HealthPeriod = cmp.Or(cfg.Lease, DefaultLease), cmp.Or(cfg.HealthPeriod, time.Minute)
	cfg.Linger, cfg.Keep = cmp.Or(cfg.Linger, DefaultLinger), cmp.Or(cfg.Keep, DefaultKeep)
	cfg.LogBytes, cfg.FileBytes = cmp.Or(cfg.LogBytes, DefaultLogBytes), cmp.Or(cfg.FileBytes, DefaultFileBytes)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Place == nil {
		cfg.Place = onInstance
	}
	return nil
}
