package proc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/cgroup"
)

// Left is a process of a dead server that could not be killed.
type Left struct {
	PID  int
	Name string // its program; untrusted text
}

// String names the process for a message.
func (l Left) String() string { return fmt.Sprintf("process %d (%q)", l.PID, l.Name) }

// KillOrphans kills the processes of dead servers. It finds them by the marker in their environment. It continues the
// stopped inits of dead servers, which then end by themselves. Processes of living servers, and processes without a
// marker, are not touched. It returns the processes that are left after 5 s, or when ctx ends.
func KillOrphans(ctx context.Context) (left []Left) {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	_ = pause.Until(ctx, func() (bool, error) {
		left = killOrphansOnce()
		return len(left) == 0, nil
	})
	return left
}

// RemoveOrphanGroups removes the cgroups of dead servers, with the processes in them. It returns when ctx ends or after
// some seconds for each. The error names the cgroups that are left.
func RemoveOrphanGroups(ctx context.Context) error { return cgroup.Sweep(ctx, isOrphan) }

// killOrphansOnce kills the present orphans, and returns them. It also returns killed processes that have not ended
// yet.
func killOrphansOnce() (found []Left) {
	if self().pid == 0 {
		return nil // without an identity no server can be called dead
	}
	all, err := List()
	if err != nil {
		return nil
	}
	dead := map[identity]bool{} // by server, because a server has many processes
	for _, p := range all {
		if p.PID == self().pid || p.Ended {
			continue
		}
		id, isInit := serverOf(p.PID)
		if id.pid == 0 {
			continue
		}
		if _, known := dead[id]; !known {
			dead[id] = id.dead()
		}
		switch {
		case !dead[id]:
		case !isInit:
			if signalIf(p.PID, unix.SIGKILL, id) {
				found = append(found, Left{p.PID, p.Name})
			}
		case p.Stopped:
			signalIf(p.PID, unix.SIGCONT, id)
		}
	}
	return found
}

// signalIf sends sig to process pid if its server is still the same, and reports whether it did. With pidfd_open(2) the
// kernel makes sure that the number cannot become that of another process in between.
func signalIf(pid int, sig unix.Signal, server identity) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer func() { _ = p.Release() }()
	if now, _ := serverOf(pid); now != server {
		return false
	}
	return p.Signal(sig) == nil
}

// serverOf returns the server of a process that has a readable marker, or of an init. It is zero for other processes.
// The marker is read first: an init has no marker, and any other process can imitate the arguments of an init.
func serverOf(pid int) (id identity, isInit bool) {
	if marker := lookup(pid, markerVar); marker != "" {
		id, _ = parseIdentity(marker)
		return id, false
	}
	line, err := readFile(pid, "cmdline")
	if err != nil {
		return identity{}, false
	}
	defer line.release()
	begin := []byte(strings.Join(initArgs, "\x00") + "\x00")
	text, ok := bytes.CutPrefix(bytes.TrimSuffix(line.data, []byte{0}), begin)
	if !ok || bytes.IndexByte(text, 0) >= 0 {
		return identity{}, false
	}
	id, _ = parseIdentity(string(text))
	return id, true
}
