package faults

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/instance"
)

// between returns the point of a range that size, 0 to 1, chooses.
func between(least, most time.Duration, size float64) time.Duration {
	return least + time.Duration(size*float64(most-least))
}

// later calls undo after a while, or when all builds have ended.
func (r *rig) later(d time.Duration, undo func()) {
	done := make(chan struct{})
	go func() { // heal waits for it
		defer close(done)
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.over:
		}
		undo()
	}()
	r.heal(func() { <-done })
}

// throughout is for a fault that lasts the whole round.
func (r *rig) throughout(injection) { r.done() }

func (r *rig) endConn(f injection) {
	m := r.vmOf(f)
	r.harm(m)
	met := r.awaitConn(m)
	m.proxy.End()
	r.counted(met)
}

// victimDeadline is how long a fault waits for its victim.
const victimDeadline = 300 * time.Millisecond

// awaitConn reports whether there is a connection to the VM, or is one soon.
func (r *rig) awaitConn(m *machine) bool {
	return await(victimDeadline, func() bool { return m.proxy.Conns() > 0 || pause.Done(r.over) }) && m.proxy.Conns() > 0
}

func (r *rig) resetConn(f injection) {
	m := r.vmOf(f)
	r.harm(m)
	met := r.awaitConn(m)
	m.proxy.Cut()
	r.counted(met)
}

func (r *rig) stall(f injection) {
	m := r.vmOf(f)
	m.proxy.Stall()
	r.later(between(50*time.Millisecond, harmlessPause, f.Size), m.proxy.Resume)
	r.done()
}

// freeze stalls the connection until it has been given up, and a while longer.
func (r *rig) freeze(f injection) {
	m := r.vmOf(f)
	r.harm(m)
	m.proxy.Stall()
	r.later(between(keepaliveInterval+keepaliveTimeout, 2*(keepaliveInterval+keepaliveTimeout), f.Size), func() {
		m.proxy.Cut() // who has been given up is not heard of again
		m.proxy.Resume()
	})
	r.done()
}

// sendAway ends the connection and lets no packets through for a while.
func (r *rig) sendAway(f injection) {
	m := r.vmOf(f)
	met := r.awaitConn(m)
	m.proxy.Cut()
	m.proxy.Stall()
	r.later(between(leastAway, mostAway, f.Size), func() {
		m.proxy.Cut()
		m.proxy.Resume()
	})
	r.counted(met)
}

// mostAway is the longest time for which this round's links and managers are away.
func (r *rig) mostAway() time.Duration { return cmp.Or(r.spec.away, mostAway) }

// unplugAWhile drops all packets for a while that is shorter than the linger.
func (r *rig) unplugAWhile(f injection) {
	r.unplugFor(r.vmOf(f), between(leastAway, r.mostAway(), f.Size))
}

// unplugFor drops all packets for so long.
func (r *rig) unplugFor(m *machine, away time.Duration) {
	set := func(up bool, at func() time.Time) bool {
		err := m.link(context.Background(), up)
		if err != nil {
			r.find(Finding{What: Broken, Text: err.Error()})
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.plugged = at()
		return err == nil
	}
	if !set(false, func() time.Time { return time.Time{} }) {
		return
	}
	r.later(away, func() { set(true, time.Now) })
	r.done()
}

func (r *rig) delay(f injection) {
	r.vmOf(f).proxy.Reshape(between(5*time.Millisecond, 200*time.Millisecond, f.Size), 0)
	r.done()
}

func (r *rig) narrow(f injection) {
	m := r.vmOf(f)
	m.proxy.Reshape(0, 64<<10+int(f.Size*float64(1<<20)))
	r.later(time.Second, func() { m.proxy.Reshape(0, 0) })
	r.done()
}

// unplug drops all packets until the connection has been given up.
func (r *rig) unplug(f injection) {
	m := r.vmOf(f)
	r.harm(m)
	r.unplugFor(m, between(keepaliveInterval+keepaliveTimeout, 3*(keepaliveInterval+keepaliveTimeout), f.Size))
}

// collapse reduces the network's bandwidth to very little for a while.
func (r *rig) collapse(f injection) {
	m := r.vmOf(f)
	qdisc := []string{
		"-n", m.netns, "qdisc", "replace", "dev", "f" + m.id[2:], "root",
		"tbf", "burst", "8kb", "latency", "50ms", "rate", fmt.Sprintf("%dkbit", 256+int(f.Size*4096)),
	}
	if err := command(context.Background(), "tc", qdisc...); err != nil {
		r.find(Finding{What: Broken, Text: err.Error()})
		return
	}
	r.later(time.Second, func() {
		// It fails where another fault has deleted it before.
		_ = command(context.Background(), "tc", "-n", m.netns, "qdisc", "del", "dev", "f"+m.id[2:], "root")
	})
	r.done()
}

// jump sets this machine's clock forward or back, and resets it a moment later. If the rig is killed in between, the
// clock stays wrong.
func (r *rig) jump(f injection) {
	by := between(-72*time.Hour, 72*time.Hour, f.Size).Truncate(time.Microsecond)
	if err := stepClock(by); err != nil {
		r.find(Finding{What: Broken, Text: fmt.Sprintf("set the clock: %v", err)})
		return
	}
	r.later(between(50*time.Millisecond, time.Second, f.Size), func() {
		if err := stepClock(-by); err != nil {
			r.find(Finding{What: Broken, Text: fmt.Sprintf("set the clock back by %v: %v", by, err)})
		}
	})
	r.done()
}

// stepClock adds to the clock, which other rounds may do at the same time.
func stepClock(by time.Duration) error {
	t := unix.NsecToTimeval(by.Nanoseconds()) // the second part is not negative
	t.Usec *= 1000                            // for it is nanoseconds with ADJ_NANO
	_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_SETOFFSET | unix.ADJ_NANO, Time: t})
	return err
}

// restartSSHD replaces the sshd that listens.
func (r *rig) restartSSHD(f injection) {
	m := r.vmOf(f)
	if err := m.restart(false); err != nil {
		r.find(Finding{What: Broken, Text: err.Error()})
	}
	r.done()
}

// killSSHD kills sshd and its connections, as at a shutdown of the machine.
func (r *rig) killSSHD(f injection) {
	m := r.vmOf(f)
	r.harm(m)
	if err := m.restart(true); err != nil {
		r.find(Finding{What: Broken, Text: err.Error()})
	}
	r.done()
}

func (r *rig) killSession(f injection) {
	m := r.vmOf(f)
	r.harm(m)
	sessions := m.sessions()
	signalAll(sessions, syscall.SIGKILL)
	r.counted(len(sessions) > 0)
}

func (r *rig) counted(met bool) {
	if met {
		r.done()
	} else {
		r.missed()
	}
}

// victim waits for a process of the VM's end (of the build, if there is one) and returns it with its build.
func (r *rig) victim(f injection, part string) (m *machine, p process, build string, ok bool) {
	m = r.vmOf(f)
	own := r.builds[f.Build].ID
	await(victimDeadline, func() bool {
		var found []process
		all := m.owned(processes())
		for _, p := range all {
			// What an init or a relay is about to execute looks like another one until it is.
			fork := slices.ContainsFunc(all, func(q process) bool { return q.pid == p.parent && q.is(part) })
			if p.is(part) && p.state != "Z" && !fork {
				found = append(found, p)
			}
		}
		if len(found) == 0 {
			return pause.Done(r.over)
		}
		p, ok = found[int(f.Size*float64(len(found)))], true
		for _, q := range found {
			if m.buildOf(q) == own {
				p = q
			}
		}
		return true
	})
	return m, p, m.buildOf(p), ok
}

// toOne is a fault of a process of the VM's end, which do reports done.
func toOne(part string, do func(r *rig, f injection, m *machine, p process, build string) bool) func(*rig, injection) {
	return func(r *rig, f injection) {
		m, p, build, ok := r.victim(f, part)
		r.counted(ok && do(r, f, m, p, build))
	}
}

// killOne kills a process of the VM's end.
func killOne(part string) func(*rig, injection) {
	return toOne(part, func(r *rig, _ injection, m *machine, p process, build string) bool {
		if part != "proxy" {
			r.harmPart(m, part, build)
		}
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // an error means that it has ended
		return true
	})
}

// harmPart notes that builds which depend on this process of the VM's end may be lost.
func (r *rig) harmPart(m *machine, part, id string) {
	if part == "relay" {
		id = ""
	}
	r.harmBuild(m, id)
}

// pauseOne stops a process of the VM's end for a moment.
func pauseOne(part string) func(*rig, injection) {
	return toOne(part, func(r *rig, f injection, _ *machine, p process, _ string) bool {
		_ = syscall.Kill(p.pid, syscall.SIGSTOP) // as above
		r.later(between(20*time.Millisecond, harmlessPause, f.Size), func() { _ = syscall.Kill(p.pid, syscall.SIGCONT) })
		return true
	})
}

// hangOne stops a process of the VM's end for good. If it belongs to a build, the build is cancelled a while later.
func hangOne(part string) func(*rig, injection) {
	return toOne(part, func(r *rig, f injection, m *machine, p process, build string) bool {
		r.harmPart(m, part, build)
		_ = syscall.Kill(p.pid, syscall.SIGSTOP) // as above
		r.heal(func() { _ = syscall.Kill(p.pid, syscall.SIGCONT) })
		if part == "serve" {
			r.later(between(time.Second, 4*time.Second, f.Size), func() { r.cancelBuild(build) })
		}
		return true
	})
}

func (r *rig) cancelBuild(id string) {
	b := r.build(id)
	if b == nil {
		return
	}
	b.mu.Lock()
	b.canceled = true
	cancel := b.cancel
	b.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// fewFiles is enough for a shell to start and to run a script, which inherits the limit of a starved program.
const fewFiles = 16

// starve limits a process to the files that it has open now.
func (r *rig) starve(pid int) bool {
	r.starving.Lock()
	defer r.starving.Unlock()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false
	}
	var was unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was) != nil {
		return false
	}
	limit := unix.Rlimit{Cur: uint64(max(len(open), fewFiles)), Max: was.Max}
	if unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil) != nil {
		return false
	}
	r.heal(func() { _ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil) }) // it may have ended
	return true
}

func starveOne(part string) func(*rig, injection) {
	return toOne(part, func(r *rig, _ injection, m *machine, p process, build string) bool {
		r.harmPart(m, part, build)
		return r.starve(p.pid)
	})
}

func (r *rig) starveSession(f injection) {
	m := r.vmOf(f)
	r.harm(m)
	met := false
	for _, p := range m.sessions() {
		met = r.starve(p.pid) || met
	}
	r.counted(met)
}

// fillTmp leaves no room in the VM's directory for temporary files.
func (r *rig) fillTmp(f injection) {
	m := r.vmOf(f)
	r.harm(m)
	path := filepath.Join(m.tmp, "filler")
	file, err := os.Create(path)
	if err != nil {
		r.missed()
		return
	}
	defer file.Close()
	for chunk := make([]byte, 1<<20); len(chunk) > 0; {
		if _, err := file.Write(chunk); err != nil {
			chunk = chunk[:len(chunk)/2]
		}
	}
	r.later(between(100*time.Millisecond, 2*time.Second, f.Size), func() { _ = os.Remove(path) })
	r.done()
}

// lockTmp makes the VM's directory for temporary files read-only. The kernel does so only while nothing in it is open
// for writing.
func (r *rig) lockTmp(f injection) {
	m := r.vmOf(f)
	r.harm(m)
	remount := func(flags uintptr) bool { return unix.Mount("", m.tmp, "", unix.MS_REMOUNT|flags, "") == nil }
	if !await(victimDeadline, func() bool { return remount(unix.MS_RDONLY) }) {
		r.missed()
		return
	}
	r.later(between(100*time.Millisecond, time.Second, f.Size), func() {
		if !remount(0) {
			r.find(Finding{What: Broken, Text: "the directory stays read-only"})
		}
	})
	r.done()
}

func (r *rig) cancelOne(f injection) {
	r.cancelBuild(r.builds[f.Build].ID)
	r.done()
}

func (r *rig) cancelAll(injection) {
	for _, b := range r.builds {
		r.cancelBuild(b.ID)
	}
	r.done()
}

// flood makes a VM write as fast as it can while nothing reads: a command's output and, for a while, a build's log.
func (r *rig) flood(f injection) {
	m := r.vmOf(f)
	r.later(between(100*time.Millisecond, 2*time.Second, f.Size), r.builds[f.Build].sink.block())
	ctx, cancel := context.WithTimeout(context.Background(), buildBound)
	defer cancel()
	e := r.provider.Executor(instance.Build{ID: "flood-" + m.id + "-" + strings.ReplaceAll(f.After.String(), "µ", "u")})
	err := e.Prepare(ctx)
	var client *instance.Client
	if err == nil {
		client, err = e.Client(ctx)
	}
	if err == nil {
		_, err = client.DialRun(ctx, "yes")
	}
	if err != nil {
		r.find(Finding{What: NeedlessLoss, Build: "flood", Text: err.Error()})
	}
	r.heal(func() {
		if err := e.Cleanup(context.Background()); err != nil {
			r.find(Finding{What: NeedlessLoss, Build: "flood", Text: "clean up: " + err.Error()})
		}
	})
	r.done()
}
