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

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

// startSlots bounds how many commands start at a time. A start only takes processor time: more of them at once would
// delay all of them.
var startSlots = make(chan struct{}, 8)

// Init starts commands from a process of its own, the init. That process lives from Prepare, or the first command,
// until Close. If it is killed, its commands end with it, and the next command gets another init. The zero value is
// ready to use. Set the fields before the first call. Its owner calls Close. It is safe for concurrent use.
type Init struct {
	// Room says how far the commands are isolated from the rest of the machine. Level Auto is the best level that is
	// available; any other level that is not available makes Start fail. Auto without a Dir is Off. The paths may have
	// symbolic links.
	Room isolate.Spec
	// OrphanDir is a directory that must not outlive this process. It must exist and belong to our user. If this
	// process dies without a Close, the init removes the directory with everything in it, unless another process has
	// locked it with flock(2) or has put another one in its place. The init first renames it to a name that begins with
	// "~". May be empty.
	OrphanDir string
	// Keep is a file that each init keeps open as long as it lives. Commands do not inherit it. May be nil.
	Keep *os.File
	// Limits bound the commands and all their descendants together. If one of them is not available, Start fails.
	Limits vmconfig.Limits

	mu     sync.Mutex // guards the following
	forked *link      // an init that waits for its messageRoom; nil if there is none
	latest *making    // nil before the first init
	closed bool
	// visible are the directories of Show.
	visible []string
	group   group // nil without Limits, and before the first init; only a launch sets it
	before  Usage // of the inits before the latest one
}

// making is the launch of an init, and its result.
type making struct {
	done chan struct{} // closed once the following are set
	link *link
	err  error
}

// errClosed is the error of Start after Close.
var errClosed = errors.New("the program is ending")

// Start runs c and returns once the program is being executed. ctx bounds only the start, not the life of the command.
// Few commands start at the same time; others wait for their turn until ctx ends. If the init is killed during the
// start, it is unknown whether the program ran. Start then returns no error, and Wait does. So after an error of Start,
// other than that of ctx, the program has not run and can be started again.
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

// Fork starts the process of the first init as another user. A server of root calls it before it becomes that user. The
// init then is isolated without a user namespace, and is in the cgroup of the Limits.
//
// level is the level of Room. Room and OrphanDir are set later; Keep and Limits are set before. At level Off without
// Limits Fork does nothing. Auto goes on without that process if it is not possible. If it dies, the next init needs a
// user namespace, and cannot have Limits. Fork is called at most once, before any other method.
func (in *Init) Fork(level vmconfig.Level, as *syscall.Credential) (err error) {
	switch {
	case in.Limits != (vmconfig.Limits{}):
		if in.group, err = newGroup(in.Limits, int(as.Uid)); err != nil {
			return err
		}
	case level == vmconfig.Off:
		return nil
	}
	in.forked, err = fork(cmp.Or(level, vmconfig.Processes), as, in.Keep, in.group)
	if err != nil && level != vmconfig.Auto {
		return unavailable(level, err)
	}
	return nil // at Auto the start of the init reports why it has none
}

// Prepare starts the init if there is none, and does not wait for it.
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
	if last := in.latest; last != nil && last.link != nil { // keep the level that the build has had
		s.room.Level, s.off = last.link.level, last.link.off
	}
	in.latest = m
	group := in.group
	go func() { // Close waits for it
		defer close(m.done)
		var err error
		if group == nil && in.Limits != (vmconfig.Limits{}) {
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

// over reports whether there is no usable init: it could not be made, or it has ended.
func (m *making) over() bool {
	select {
	case <-m.done:
		return m.err != nil || pause.Done(m.link.gone)
	default:
		return false
	}
}

// Isolation returns the level at which the commands run. If that is Off although the level is Auto, why says the
// reason. It waits for the init. Before Prepare or the first command it is Auto.
func (in *Init) Isolation(ctx context.Context) (level vmconfig.Level, why error) {
	in.mu.Lock()
	m := in.latest
	in.mu.Unlock()
	if m == nil {
		return vmconfig.Auto, nil
	}
	select {
	case <-m.done:
	case <-ctx.Done():
		return vmconfig.Auto, context.Cause(ctx)
	}
	if m.err != nil {
		return vmconfig.Auto, m.err
	}
	return m.link.level, m.link.off
}

// Close ends the init with all its descendants, and waits until they are gone. The error counts the processes that
// could not be killed. It is idempotent. Every later Start fails.
func (in *Init) Close() error {
	in.mu.Lock()
	in.closed = true
	m, forked := in.latest, in.forked
	in.forked = nil
	in.mu.Unlock()
	if forked != nil {
		_ = forked.close() // it has started no command
	}
	var err error
	if m != nil {
		<-m.done           // bounded by launch
		if m.link != nil { // otherwise it could not be made, and Start has returned the error
			err = m.link.close()
		}
	}
	if in.group == nil { // no launch can set it any more
		return err
	}
	removeErr := in.group.Remove()
	if removeErr == nil && errors.Is(err, errUnkillable) {
		return nil // the processes that were left were killed with the cgroup
	}
	return errors.Join(err, removeErr)
}

// Start starts c by an Init of its own, which ends with the Process.
func Start(ctx context.Context, c Command) (*Process, error) {
	in := &Init{Room: isolate.Spec{Level: vmconfig.Off}}
	p, err := in.Start(ctx, c)
	if err != nil {
		_ = in.Close() // the caller needs err
		return nil, err
	}
	p.alone = in
	return p, nil
}

// resolve returns the room with its symbolic links resolved. Paths that do not exist stay as they are.
func resolve(room isolate.Spec) isolate.Spec {
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
