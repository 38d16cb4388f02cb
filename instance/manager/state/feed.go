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

// feed has the last pieces of one log that one of its readers has not taken. feeds.mu guards it.
type feed struct {
	readers map[*feedReader]bool
	pieces  []fedPiece    // at most natscall.Ahead, and at most maxFed bytes if it is more than one
	more    chan struct{} // closed, and replaced, when a piece is added
}

// maxFed bounds the pieces of a feed, in bytes.
const maxFed = 256 << 10

// feedReader is a follower of a log. feeds.mu guards it.
type feedReader struct {
	of    *feed
	place uint64 // of the last piece that it has taken
}

// fedPiece is a piece with its sequence in the stream and that of the piece before it, which is 0 for the first. The
// end of the log is not in the stream: its sequence is after all others.
type fedPiece struct {
	Piece
	before, place uint64
}

// open returns a reader of a log, for which all pieces are kept from now on, within the bounds. The caller calls close.
func (f *feeds) open(id string) *feedReader {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]*feed{}
	}
	if f.all[id] == nil {
		f.all[id] = &feed{readers: map[*feedReader]bool{}, more: make(chan struct{})}
	}
	r := &feedReader{of: f.all[id]}
	r.of.readers[r] = true
	return r
}

// close ends a reader.
func (f *feeds) close(id string, r *feedReader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if delete(r.of.readers, r); len(r.of.readers) == 0 {
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
	size := len(p.Text)
	for _, old := range of.pieces {
		size += len(old.Text)
	}
	for len(of.pieces) == natscall.Ahead || len(of.pieces) > 0 && size > maxFed {
		size -= len(of.pieces[0].Text)
		of.pieces = slices.Delete(of.pieces, 0, 1)
	}
	p.Text = bytes.Clone(p.Text)
	of.pieces = append(of.pieces, p)
	close(of.more)
	of.more = make(chan struct{})
}

// after returns the pieces after a place in the stream, up to which the reader has taken all, and a channel that is
// closed when there are more. If whole is false, pieces between are not here any more.
func (f *feeds) after(r *feedReader, place uint64) (pieces []fedPiece, more <-chan struct{}, whole bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of, taken := r.of, place
	r.place = place
	for other := range of.readers {
		taken = min(taken, other.place)
	}
	of.pieces = slices.DeleteFunc(of.pieces, func(p fedPiece) bool { return p.place <= taken })
	first := slices.IndexFunc(of.pieces, func(p fedPiece) bool { return p.place > place })
	if first < 0 {
		return nil, of.more, true
	}
	return slices.Clone(of.pieces[first:]), of.more, of.pieces[first].before <= place
}

// followLog is ReadLog for a log that grows and that only this manager writes, up to its end.
func (s *Store) followLog(ctx context.Context, id string, offset int64, take func(Piece) error) error {
	f := s.feeds.open(id)
	defer s.feeds.close(id, f)
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
