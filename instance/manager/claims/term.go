package claims

import "context"

// term is a time in which this manager has a lease without a break. Tasks of servers are this manager's only in that
// time: after it, another one may have them.
type term struct {
	begun chan struct{} // closed then
	over  context.Context
	end   context.CancelFunc
}

// noTerm returns a term that has not begun.
func noTerm() *term {
	t := &term{begun: make(chan struct{})}
	t.over, t.end = context.WithCancel(context.Background())
	return t
}

// beginTerm begins a term, with a lease.
func (c *Member) beginTerm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.term.begun)
}

// endTerm ends the term, if there is one.
func (c *Member) endTerm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.term.begun:
		c.term.end()
		c.term = noTerm()
	default:
	}
}

// Term waits until this manager has a lease. The context that it returns ends with ctx, and when this manager stops
// using its VMs because the lease ends. The caller calls stop.
func (c *Member) Term(ctx context.Context) (in context.Context, stop context.CancelFunc, err error) {
	c.mu.Lock()
	t := c.term
	c.mu.Unlock()
	select {
	case <-t.begun:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	in, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(t.over, cancel) //nolint:contextcheck // the lease's end
	return in, func() {
		unhook()
		cancel()
	}, nil
}

// Free reports whether this manager may take over the tasks of a manager, by compare-and-set: that one is this manager,
// or its lease has ended. As before its claims are taken, a mark is put in place of the lease.
func (c *Member) Free(ctx context.Context, manager string) bool {
	if manager == c.id {
		return true
	}
	c.mu.Lock()
	dead := c.isDeadLocked(manager)
	c.mu.Unlock()
	return dead && c.bury(ctx, manager)
}
