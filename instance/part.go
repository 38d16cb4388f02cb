package instance

import (
	"context"
	"slices"
	"sync"
)

// UpdatePart is Update for a part of the set: the other parts stay. An instance belongs to one part.
func (g *Group) UpdatePart(part string, instances []Instance) error {
	return g.change(false, part, func([]Instance) ([]Instance, error) { return slices.Clone(instances), nil })
}

func (g *Group) setLocked() []Instance { return g.partLocked(func(string) bool { return true }) }

// partLocked returns the instances of some parts of the set.
func (g *Group) partLocked(is func(part string) bool) (all []Instance) {
	for _, e := range g.entries {
		if !e.removed && is(e.part) {
			all = append(all, e.placement.Instance)
		}
	}
	return all
}

// partOf returns the part of the set that has an instance; "" if the set does not have it.
func (g *Group) partOf(id string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.byID[id]; e != nil {
		return e.part
	}
	return ""
}

// Follow keeps the group up to date from watch. It returns when watch does, with watch's error. watch calls update
// with the whole set, once at the beginning and after each change, one call at a time; inventory.File has such a
// method. It ends when ctx does, and returns ctx's cause, or the reason why it cannot continue. update returns an
// error for an invalid set; the previous set then stays in force, as it does after Follow. While Follow runs, builds
// wait even if no instance takes any: watch may bring one.
func (g *Group) Follow(
	ctx context.Context, watch func(ctx context.Context, update func([]Instance) error) error,
) error {
	defer g.Expect()()
	return watch(ctx, g.Update)
}

// Expect says that instances may come: builds wait even if no instance takes any, until the caller calls the returned
// function.
func (g *Group) Expect() (stop func()) {
	g.follow(1)
	return sync.OnceFunc(func() { g.follow(-1) })
}

func (g *Group) follow(n int) {
	g.mu.Lock()
	defer g.unlock()
	g.sources += n
}
