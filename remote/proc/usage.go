package proc

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/cgroup"
)

// Usage is the time and memory of the commands of an [Init] and of all their descendants.
type Usage struct {
	// CPU is the processor time, user and system. Without Limits it counts only processes that have ended.
	CPU time.Duration
	// PeakMemory is the largest amount of memory that they used together, in bytes. It is 0 if it is not known, for
	// example without a limit of memory.
	PeakMemory int64
	// LargestProcess is the largest resident memory of one process that has ended, in bytes.
	LargestProcess int64
}

func (u Usage) plus(v Usage) Usage {
	return Usage{u.CPU + v.CPU, max(u.PeakMemory, v.PeakMemory), max(u.LargestProcess, v.LargestProcess)}
}

// Usage returns the usage of the commands so far. Of commands that are not closed yet it has only a part.
func (in *Init) Usage() Usage {
	in.mu.Lock()
	defer in.mu.Unlock()
	u := in.before
	if m := in.latest; m != nil && pause.Done(m.done) && m.link != nil {
		u = u.plus(m.link.usage())
	}
	if in.group != nil {
		told := in.group.Usage()
		u.CPU, u.PeakMemory = told.CPU, told.Peak
	}
	return u
}

func (l *link) usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// groups numbers the groups of this program.
var groups atomic.Int64

// group is a *cgroup.Group.
type group interface {
	Attributes(sys *syscall.SysProcAttr)
	Remove() error
	Usage() cgroup.Usage
	Events() cgroup.Events
	Since(before cgroup.Events) string
}

// newGroup makes a cgroup whose name has the identity of this program, so that it is found when the program is dead.
// owner is that of cgroup.Make. It is a variable for tests, because a machine may have no controllers.
var newGroup = func(limits vmconfig.Limits, owner int) (group, error) {
	id := self()
	name := id.String()
	if id.pid == 0 { // then no sweep can find out whether this program lives
		name = strconv.FormatUint(rand.Uint64(), 36)
	}
	g, err := cgroup.Make(fmt.Sprintf("%s+%d", name, groups.Add(1)), limits, owner)
	if err != nil {
		return nil, err
	}
	return g, nil
}

// isOrphan reports whether the cgroup of that name belongs to a dead program.
func isOrphan(name string) bool {
	name, _, _ = strings.Cut(name, "+")
	id, ok := parseIdentity(name)
	return ok && id.dead()
}
