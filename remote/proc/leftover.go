package proc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Left is a process of a dead server that could not be killed.
type Left struct {
	PID  int
	Name string // of its program; foreign text
}

// String names it for a message.
func (l Left) String() string { return fmt.Sprintf("process %d (%q)", l.PID, l.Name) }

// KillOrphans kills the processes of servers that are dead, which it finds by the marker in their environment, and
// continues the stopped inits of dead servers, which then end by themselves. It does not touch what belongs to a living
// server, nor what it cannot assign to one. It returns the processes that are left after 5 s, or when ctx ends.
func KillOrphans(ctx context.Context) []Left {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left := killOrphansOnce()
		if len(left) == 0 {
			return nil
		}
		select {
		case <-time.NewTimer(pause).C:
		case <-ctx.Done():
			return left
		}
	}
}

// killOrphansOnce kills the orphans that there are now, and returns them. A process that was killed counts as long as
// it runs.
func killOrphansOnce() (found []Left) {
	if self().pid == 0 {
		return nil // nobody's life can be told here
	}
	all, err := List()
	if err != nil {
		return nil
	}
	dead := map[identity]bool{} // a server has many processes
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

// signalIf sends sig to process pid if its server is still that one, and reports whether it was sent. What has the
// number cannot become another process meanwhile, where the kernel has pidfd_open(2).
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

// serverOf returns the server of a process that has a marker which we can read, or of an init. It is zero if there is
// none. The marker comes first: an init has no marker, but any process can look like one.
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
