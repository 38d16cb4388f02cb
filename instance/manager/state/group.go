package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// These rules let one member of a concurrency group run and one wait, also after any manager has ended:
//
//   - A member is a job or a pipeline that is carried out. Its ID is made as that of a build.
//   - The value of a group has its two members, and is changed by compare-and-set. A newcomer takes the place of the
//     one that waits. That one finds that the group has it no more.
//   - The turn of a member says that it has joined, and later how it left. So a member whose manager has ended joins
//     once, and one that was replaced does not come back as a newcomer.
//   - A member that runs leaves when its job has ended. The place of one whose pipeline is at rest is free in any case.

// Place is where a member of a group stands.
type Place uint8

// The places.
const (
	Outside  Place = iota // it has not joined
	Waits                 // until no other runs
	Runs                  //
	Stops                 // it runs, and a newer member wants it to stop
	Replaced              // a newer member took its place
	Done                  // it has run, and left
	Gone                  // it left before it ran
)

// turns has the values of a member's turn. It is empty before it has joined.
var turns = map[Place]string{Waits: "joined", Replaced: "replaced", Done: "done", Gone: "gone"}

// group is the value of a group. Members are empty if there are none.
type group struct {
	Runs  string `json:"runs,omitempty"`
	Waits string `json:"waits,omitempty"`
	// Stop says that the member that runs shall stop.
	Stop bool `json:"stop,omitempty"`

	revision uint64
}

// place returns where a member stands that has joined before if joined is set.
func (g *group) place(member string, joined bool) Place {
	switch {
	case g.Runs == member && g.Stop:
		return Stops
	case g.Runs == member:
		return Runs
	case g.Waits == member:
		return Waits
	case joined:
		return Replaced
	}
	return Outside
}

// groupName returns the key of a group.
func groupName(name string) string { return groupKey + Digest(name) }

// Place returns where a member of a group stands.
func (s *Store) Place(ctx context.Context, name, member string) (Place, error) {
	turn, err := s.turn(ctx, member)
	if err != nil || turn != Waits && turn != Outside {
		return turn, err
	}
	g, err := s.group(ctx, groupName(name))
	if err != nil {
		return Outside, err
	}
	return g.place(member, turn == Waits), nil
}

// Advance lets a member join a group, if it has not, and run, if no other does. It returns where the member stands
// then, and the one that runs. A newcomer with cancels asks that one to stop.
func (s *Store) Advance(ctx context.Context, name, member string, cancels bool) (p Place, runs string, err error) {
	turn, err := s.turn(ctx, member)
	if err != nil || turn != Waits && turn != Outside {
		return turn, "", err
	}
	for {
		g, err := s.group(ctx, groupName(name))
		if err != nil {
			return Outside, "", err
		}
		if p = g.place(member, turn == Waits); p == Outside || p == Waits {
			free, err := s.isFree(ctx, g.Runs, member)
			if err != nil {
				return Outside, "", err
			}
			switch {
			case free:
				g.Runs, g.Waits, g.Stop = member, "", false
				err = s.putGroup(ctx, groupName(name), g)
			case p == Outside:
				g.Waits, g.Stop = member, g.Stop || cancels
				err = s.putGroup(ctx, groupName(name), g)
			}
			if errors.Is(err, ErrTaken) {
				continue
			}
			if err != nil {
				return Outside, "", err
			}
			p = g.place(member, false)
		}
		if p == Replaced { // if not: a server that is no leader any more has answered
			if err = s.putGroup(ctx, groupName(name), g); errors.Is(err, ErrTaken) {
				continue
			}
		}
		if turn == Outside && err == nil {
			err = s.putTurn(ctx, member, Waits)
		}
		return p, g.Runs, err
	}
}

// Leave keeps how a member has left a group: as Replaced, Done or Gone.
func (s *Store) Leave(ctx context.Context, name, member string, as Place) error {
	if err := s.putTurn(ctx, member, as); err != nil { // first: afterwards nothing shows that it has run
		return err
	}
	for {
		g, err := s.group(ctx, groupName(name))
		if err != nil || g.Runs != member && g.Waits != member {
			return err
		}
		if g.Runs == member {
			g.Runs, g.Stop = "", false
		} else {
			g.Waits = ""
		}
		if err = s.putGroup(ctx, groupName(name), g); !errors.Is(err, ErrTaken) {
			return err
		}
	}
}

// WatchGroup calls changed now and after each change of a group, and from time to time, until it returns false.
func (s *Store) WatchGroup(ctx context.Context, name string, changed func() (more bool, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watch jetstream.KeyWatcher
	open := func(context.Context) (err error) {
		watch, err = s.Pipelines.Watch(ctx, groupName(name), jetstream.UpdatesOnly())
		return err
	}
	if err := s.Persist(ctx, open); err != nil {
		return err
	}
	// Nobody changes a group when the pipeline of its member is at rest.
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		if more, err := changed(); !more || err != nil {
			return err
		}
		select {
		case _, ok := <-watch.Updates():
			if !ok { // the library could not reopen it after a break of the connection
				if err := s.Persist(ctx, open); err != nil {
					return err
				}
			}
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lookAgain is how often a group is looked at without a change.
const lookAgain = 5 * time.Second

// isFree reports whether the place of a member that runs is free for another one.
func (s *Store) isFree(ctx context.Context, runs, next string) (bool, error) {
	if runs == "" || jobOf(runs) == jobOf(next) { // the same job, before a retry
		return true, nil
	}
	p, err := s.Pipeline(ctx, PipelineOf(runs))
	return err == nil && (p == nil || p.AtRest()), err
}

// jobOf returns the part of an ID that is of the pipeline and the job.
func jobOf(id string) string {
	parts := strings.SplitN(id, "-", 4)
	return strings.Join(parts[:min(3, len(parts))], "-")
}

// forgetGroup removes a group that has no member any more.
func (s *Store) forgetGroup(ctx context.Context, key string) error {
	g, err := s.group(ctx, key)
	if err != nil {
		return err
	}
	for _, member := range []string{g.Runs, g.Waits} {
		if free, err := s.isFree(ctx, member, key); err != nil || !free {
			return err
		}
	}
	_, err = s.Purge(
		ctx, s.Pipelines, key, jetstream.WithMsgTTL(recordMark), jetstream.WithExpectLastSequencePerSubject(g.revision),
	)
	if natscall.Changed(err) {
		return nil
	}
	return err
}

func (s *Store) group(ctx context.Context, key string) (*group, error) {
	g := &group{}
	entry, err := s.Pipelines.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return g, nil
	}
	if err == nil {
		err = json.Unmarshal(entry.Value(), g)
	}
	if err != nil {
		return nil, fmt.Errorf("read a concurrency group: %w", err)
	}
	g.revision = entry.Revision()
	return g, nil
}

func (s *Store) putGroup(ctx context.Context, key string, g *group) (err error) {
	if g.revision == 0 {
		_, err = s.Pipelines.Create(ctx, key, natscall.Encode(g))
	} else {
		_, err = s.Write(
			ctx, s.Pipelines, key, natscall.Encode(g), jetstream.WithExpectLastSequencePerSubject(g.revision))
	}
	if natscall.Changed(err) || errors.Is(err, jetstream.ErrKeyExists) {
		return ErrTaken
	}
	if err != nil {
		return fmt.Errorf("keep a concurrency group: %w", err)
	}
	return nil
}

// turn returns Outside, Waits for a member that has joined, or how the member left.
func (s *Store) turn(ctx context.Context, member string) (Place, error) {
	entry, err := s.Pipelines.Get(ctx, turnKey+member)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Outside, nil
	}
	if err != nil {
		return Outside, fmt.Errorf("read the turn of %s: %w", member, err)
	}
	for p, text := range turns {
		if text == string(entry.Value()) {
			return p, nil
		}
	}
	return Outside, fmt.Errorf("the turn of %s is %.40q, which this version does not know", member, entry.Value())
}

func (s *Store) putTurn(ctx context.Context, member string, p Place) error {
	if _, err := s.Write(ctx, s.Pipelines, turnKey+member, []byte(turns[p])); err != nil {
		return fmt.Errorf("keep the turn of %s: %w", member, err)
	}
	return nil
}
