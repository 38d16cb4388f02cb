package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/stepmux/stepmux/internal/limits"
	"github.com/stepmux/stepmux/remote/walls"
)

// startSlots bounds how many commands start at a time. A start only takes processor time: with more at once, all of
// them would be late instead of some.
var startSlots = make(chan struct{}, 8)

// Init starts commands by a process of its own, the init, which lives from the first command, or from Prepare, to
// Close. If the init is killed, its commands end with it; the next command gets another one. The zero value is ready
// to use. The fields are set before that. Its owner calls Close. It is safe for concurrent use.
type Init struct {
	// Room says how far the commands are held apart from the rest of the machine. Level Auto is the best that can be had;
	// any other level is had, or Start fails. Auto without a Dir is Off. The paths may have symbolic links.
	Room walls.Spec
	// OrphanDir is a directory that must not outlive this process. It must exist and belong to our user. If this process
	// dies without a Close, the init removes the directory with everything in it, unless another process has locked it
	// with flock(2) or has put another one in its place. The init first renames it to a name that begins with "~". May be
	// empty.
	OrphanDir string
	// Keep is a file that each init keeps open as long as it lives, and its commands do not. May be nil.
	Keep *os.File
	// Limits bound the commands and all that descends from them, together. All are had, or Start fails.
	Limits limits.Build

	mu     sync.Mutex // guards the following
	forked *link      // an init that waits for its room; nil if there is none
	latest *making    // nil if no init was wanted yet
	closed bool
	group  group // nil without Limits, and before the first init; only a making sets it
	before Usage // of the inits before the latest one
}

// making is an init that is being made, or was made.
type making struct {
	done chan struct{} // closed once the following are set
	link *link
	err  error
}

// errClosed is the error of Start after Close.
var errClosed = errors.New("the program is ending")

// Start runs c and returns once the program is being executed. ctx bounds the start alone, not the life of the command.
// A few commands are started at a time; more wait for their turn until ctx ends. If the init is killed at the start,
// nobody knows whether the program ran. That is no error of Start but of Wait: after an error of Start, but ctx's, the
// program has not run, and can be started again.
//
// A *[StartError] says that the command is at fault: there is no such program, it cannot be executed, or its arguments
// are too large. Other errors name a mistake in c, or a failure of the machine.
func (in *Init) Start(ctx context.Context, c Command) (*Process, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	select {
	case startSlots <- struct{}{}:
		defer func() { <-startSlots }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start %q: wait for a turn: %w", c.Argv[0], context.Cause(ctx))
	}
	m := in.prepare() //nolint:contextcheck // the init outlives the start
	select {
	case <-m.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("start %q: wait for its init: %w", c.Argv[0], context.Cause(ctx))
	}
	if m.err != nil {
		return nil, fmt.Errorf("start %q: %w", c.Argv[0], m.err)
	}
	return m.link.start(ctx, c)
}

// Fork starts the process of the first init as another user, for a server that is root and is about to become that
// user: so it has the isolation without a user namespace, and is in the cgroup of the Limits. level is that of Room,
// which is set later, as is OrphanDir; Keep and Limits are set before. At level Off without Limits there is no such
// process, and Auto goes on without one. An init that has to be started after that one has a user namespace, and
// cannot be had with Limits. Fork is called once at most, before any other method.
func (in *Init) Fork(level walls.Level, as *syscall.Credential) (err error) {
	switch {
	case in.Limits != (limits.Build{}):
		if in.group, err = newGroup(in.Limits, int(as.Uid)); err != nil {
			return err
		}
	case level == walls.Off:
		return nil
	}
	in.forked, err = fork(cmp.Or(level, walls.Processes), as, in.Keep, in.group)
	if err != nil && level != walls.Auto {
		return unavailable(level, err)
	}
	return nil // the start of an init at Auto says why it has none
}

// Prepare starts the init, unless there is one, and does not wait for it.
func (in *Init) Prepare() { in.prepare() }

func (in *Init) prepare() *making {
	if !isReady.Load() {
		panic("proc: Main was not called at the start of main")
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed:
		m := &making{done: make(chan struct{}), err: errClosed}
		close(m.done)
		return m
	case in.latest != nil && !in.latest.over():
		return in.latest
	case in.latest != nil && in.latest.link != nil:
		in.before = in.before.plus(in.latest.link.usage())
	}
	m := &making{done: make(chan struct{})}
	s := launcher{room: in.Room, orphan: in.OrphanDir, keep: in.Keep, forked: in.forked}
	in.forked = nil
	if last := in.latest; last != nil && last.link != nil { // the build keeps the level that it has had
		s.room.Level, s.off = last.link.level, last.link.off
	}
	in.latest = m
	group := in.group
	go func() { // Close waits for it
		defer close(m.done)
		var err error
		if group == nil && in.Limits != (limits.Build{}) {
			group, err = newGroup(in.Limits, 0)
			in.mu.Lock()
			in.group = group
			in.mu.Unlock()
		}
		if s.group = group; err == nil {
			m.link, err = s.launch()
		}
		if err != nil {
			m.err = initError{err}
		}
	}()
	return m
}

// over reports whether there is no init: it could not be made, or it has ended.
func (m *making) over() bool {
	select {
	case <-m.done:
		return m.err != nil || isClosed(m.link.gone)
	default:
		return false
	}
}

// Isolation returns the level at which the commands run and, if that is Off instead of Auto, why no better one can be
// had. It waits for the init, and is Auto if no init was wanted yet.
func (in *Init) Isolation(ctx context.Context) (level walls.Level, why error) {
	in.mu.Lock()
	m := in.latest
	in.mu.Unlock()
	if m == nil {
		return walls.Auto, nil
	}
	select {
	case <-m.done:
	case <-ctx.Done():
		return walls.Auto, context.Cause(ctx)
	}
	if m.err != nil {
		return walls.Auto, m.err
	}
	return m.link.level, m.link.off
}

// Close ends the init with every process that descends from it, and waits until they are gone. The error counts the
// processes that could not be killed. It is idempotent. Every later Start fails.
func (in *Init) Close() error {
	in.mu.Lock()
	in.closed = true
	m, forked := in.latest, in.forked
	in.forked = nil
	in.mu.Unlock()
	if forked != nil {
		_ = forked.close() // it held nothing
	}
	var err error
	if m != nil {
		<-m.done           // bounded by launch
		if m.link != nil { // else it could not be made, which Start has told
			err = m.link.close()
		}
	}
	if in.group == nil { // nobody makes one any more
		return err
	}
	removeErr := in.group.Remove()
	if removeErr == nil && errors.Is(err, errLeft) {
		return nil // those were killed with the cgroup
	}
	return errors.Join(err, removeErr)
}

// Start is [Init.Start] of an Init that ends with the Process.
func Start(ctx context.Context, c Command) (*Process, error) {
	in := &Init{Room: walls.Spec{Level: walls.Off}}
	p, err := in.Start(ctx, c)
	if err != nil {
		_ = in.Close() // err is the one that matters
		return nil, err
	}
	p.alone = in
	return p, nil
}

// resolve returns the room with paths that have no symbolic links, as far as they are there.
func resolve(room walls.Spec) walls.Spec {
	real := func(path string) string {
		if to, err := filepath.EvalSymlinks(path); err == nil && path != "" {
			return to
		}
		return path
	}
	room.Dir, room.Base, room.Home = real(room.Dir), real(room.Base), real(room.Home)
	list := make([]string, 0, len(room.ReadOnly))
	for _, path := range room.ReadOnly {
		list = append(list, real(path))
	}
	room.ReadOnly = list
	return room
}
