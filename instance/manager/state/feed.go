package state

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// feeds hand the pieces of logs that this manager has stored to the followers of these logs, so that they need not be
// read back from the disk. The zero value is ready for use. It is safe for concurrent use.
type feeds struct {
	mu  sync.Mutex       // guards the following
	all map[string]*feed // of the logs that are followed, by the ID of the build
}

// feed has the last pieces of one log. feeds.mu guards it.
type feed struct {
	readers int
	pieces  []fedPiece    // at most natscall.Ahead
	more    chan struct{} // closed, and replaced, when a piece is added
}

// fedPiece is a piece with its sequence in the stream and that of the piece before it, which is 0 for the first. The
// end of the log is not in the stream: its sequence is after all others.
type fedPiece struct {
	Piece
	before, place uint64
}

// open returns the feed of a log, which gets all pieces from now on. The caller calls close.
func (f *feeds) open(id string) *feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]*feed{}
	}
	if f.all[id] == nil {
		f.all[id] = &feed{more: make(chan struct{})}
	}
	f.all[id].readers++
	return f.all[id]
}

// close ends one use of a feed.
func (f *feeds) close(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all[id].readers--; f.all[id].readers == 0 {
		delete(f.all, id)
	}
}

// add adds a piece that is stored to the feed of its log, if somebody follows that. The text stays the caller's.
func (f *feeds) add(id string, p fedPiece) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := f.all[id]
	if of == nil {
		return
	}
	if len(of.pieces) == natscall.Ahead {
		of.pieces = slices.Delete(of.pieces, 0, 1)
	}
	p.Text = bytes.Clone(p.Text)
	of.pieces = append(of.pieces, p)
	close(of.more)
	of.more = make(chan struct{})
}

// after returns the pieces after a place in the stream, and a channel that is closed when there are more. If whole is
// false, pieces between are not here any more.
func (f *feeds) after(of *feed, place uint64) (pieces []fedPiece, more <-chan struct{}, whole bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := slices.IndexFunc(of.pieces, func(p fedPiece) bool { return p.place > place })
	if first < 0 {
		return nil, of.more, true
	}
	return slices.Clone(of.pieces[first:]), of.more, of.pieces[first].before <= place
}

// followLog is ReadLog for a log that grows and that only this manager writes, up to its end.
func (s *Store) followLog(ctx context.Context, id string, offset int64, take func(Piece) error) error {
	f := s.feeds.open(id)
	defer s.feeds.close(id)
	rec, err := s.Record(ctx, id)
	if err != nil {
		return err
	}
	if rec != nil && rec.Phase == PhaseEnded { // perhaps before the feed was opened, which then never has the end
		_, err = s.readBack(ctx, id, 0, offset, take)
		return err
	}
	ended := false
	note := func(p Piece) error {
		ended = p.result != nil
		return take(p)
	}
	// Pieces that were stored before the feed was opened, or have left it since, are read back.
	place, err := s.readBack(ctx, id, 0, offset, note)
	for err == nil && !ended {
		pieces, more, whole := s.feeds.after(f, place)
		if !whole {
			place, err = s.readBack(ctx, id, place, 0, note)
			place = max(place, pieces[0].before) // pieces that are gone were too old, or too many
			continue
		}
		for _, p := range pieces {
			if err = note(p.Piece); err != nil || ended {
				return err
			}
			place = p.place
		}
		if len(pieces) > 0 {
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return err
}
