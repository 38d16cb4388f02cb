package instance

import "context"

// Source knows which instances there are and hears of changes: an inventory file, a cloud.
type Source interface {
	// Watch calls update with the whole set, soon and after each change, one call at a time, until ctx ends,
	// and returns ctx's cause; or why it cannot go on. update returns an error for a set that makes no sense;
	// the one before then stays in force, and so it does after Watch has returned.
	Watch(ctx context.Context, update func([]Instance) error) error
}

// Follow keeps the group as the source says, until ctx ends or the source fails; it returns what Watch does.
// Builds wait meanwhile even if no instance takes any: the source may bring one.
func (g *Group) Follow(ctx context.Context, s Source) error {
	g.follow(1)
	defer g.follow(-1)
	return s.Watch(ctx, g.Update)
}

func (g *Group) follow(n int) {
	g.mu.Lock()
	g.sources += n
	g.unlock()
}
