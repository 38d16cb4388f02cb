package state

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/internal/pause"
)

const (
	// The headers of a piece of a log: the position of its first byte, the log's state after it, and in the last piece of
	// a shared log, which has no text, the result of the build.
	offsetHeader = "Stepmux-Offset"
	stateHeader  = "Stepmux-State"
	resultHeader = "Stepmux-Result"

	// logRetry is the pause before a piece is stored again.
	logRetry = 100 * time.Millisecond
)

// Log is the log of a build in the stream. It is a buildlog.StateWriter, for one goroutine at a time.
type Log struct {
	store  *Store
	id     string
	writer string             // names this writer in the IDs of its pieces
	life   context.Context    // the manager's: it bounds the writes
	cancel context.CancelFunc // ends writes that are repeated
	lost   atomic.Bool        // another manager writes the log

	mu     sync.Mutex // guards the following
	last   uint64     // place of the last piece in the stream; 0 if there is none
	pieces uint64     // of this writer
	first  time.Time  // when this writer stored the first output of the job, lines of ours before it do not count
	offset int64
	state  buildlog.State // after offset
	result *Result        // nil unless the log has its end
}

// NewLog returns the log of a build. Nothing of the build is stored yet. The caller calls Stop.
func (s *Store) NewLog(life context.Context, id string) *Log {
	l := &Log{store: s, id: id, writer: rand.Text()}
	l.life, l.cancel = context.WithCancel(life)
	return l
}

// OpenLog returns the log of a build as far as it is stored. The caller calls Stop, also after an error.
func (s *Store) OpenLog(ctx context.Context, life context.Context, id string) (*Log, error) {
	l := s.NewLog(life, id)
	return l, l.Load(ctx)
}

// Stop ends writes that are repeated.
func (l *Log) Stop() { l.cancel() }

// IsLost reports whether another manager writes the log.
func (l *Log) IsLost() bool { return l.lost.Load() }

// Result returns the result in the log's end, nil if the log does not have that.
func (l *Log) Result() *Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.result
}

// State returns the state of the log after the last piece.
func (l *Log) State() buildlog.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Load makes a new log go on where the stored one stops.
func (l *Log) Load(ctx context.Context) error {
	last, err := l.store.lastPiece(ctx, l.id)
	if err != nil || last == nil {
		return err
	}
	p, err := pieceOf(last.Header, last.Data)
	if err != nil {
		return fmt.Errorf("read the log of %s: %w", l.id, err)
	}
	l.last = last.Sequence
	l.offset, l.state, l.result = p.Offset+int64(len(p.Text)), p.state, p.result
	return nil
}

// lastPiece returns the last message of a build's log, or nil.
func (s *Store) lastPiece(ctx context.Context, id string) (*jetstream.RawStreamMsg, error) {
	last, err := s.logs.GetLastMsgForSubject(ctx, logsSubject+id)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log of %s: %w", id, err)
	}
	return last, nil
}

// HasRun reports whether the log has something of the build's job. Then the build has a record.
func (l *Log) HasRun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.result != nil || l.state.HasOutput() || l.state.Events > 0
}

// Piece is one message of a log.
type Piece struct {
	Text   []byte
	Offset int64     // of its first byte in the log
	At     time.Time // when it was stored; zero if that is not known
	state  buildlog.State
	result *Result
}

func pieceOf(h nats.Header, text []byte) (p Piece, err error) {
	p.Text = text
	if p.Offset, err = strconv.ParseInt(h.Get(offsetHeader), 10, 64); err != nil {
		return p, err
	}
	if state := h.Get(stateHeader); state != "" {
		err = json.Unmarshal([]byte(state), &p.state)
	}
	if end := h.Get(resultHeader); end != "" && err == nil {
		err = json.Unmarshal([]byte(end), &p.result)
	}
	return p, err
}

// Write implements io.Writer.
func (l *Log) Write(text []byte) (int, error) { return l.WriteState(text, l.state) }

// WriteState implements buildlog.StateWriter. It returns when the text is stored. After the end it drops the text.
func (l *Log) WriteState(text []byte, after buildlog.State) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.result != nil {
		return len(text), nil
	}
	if err := l.putLocked(Piece{Text: text, Offset: l.offset, state: after}); err != nil {
		return 0, err
	}
	if !l.state.HasOutput() && after.HasOutput() {
		l.first = time.Now()
	}
	l.offset += int64(len(text))
	l.state = after
	return len(text), nil
}

// FirstAfter returns the time from start to the job's first output, 0 if this writer did not store it after start.
func (l *Log) FirstAfter(start time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if start.IsZero() || l.first.IsZero() {
		return 0
	}
	return max(l.first.Sub(start), 0)
}

// Length returns how many bytes the log has.
func (l *Log) Length() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.offset
}

// End tells those that follow the log its end, with the build's result, unless they know it. The record has that
// already.
func (l *Log) End(r *Result) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.result != nil {
		return nil
	}
	p := Piece{Offset: l.offset, state: l.state, result: r}
	if err := l.store.home.endLog(l, p); err != nil {
		return err
	}
	l.result = r
	return nil
}

// Claim puts a piece without text, after which no other writer of the log can add to it.
func (l *Log) Claim() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	msg, id := l.messageLocked(Piece{Offset: l.offset, state: l.state})
	if err := l.publishLocked(msg, id); err != nil {
		return fmt.Errorf("store the log: %w", err)
	}
	return nil
}

// putLocked stores a piece after the last one that this writer knows of, or fails with ErrTaken. A piece whose
// acknowledgment was lost is stored once, although it is sent again: its ID tells.
func (l *Log) putLocked(p Piece) error {
	msg, id := l.messageLocked(p)
	for began, told := time.Now(), false; ; {
		before := l.last
		err := l.publishLocked(msg, id)
		if err == nil {
			p.At = time.Now()
			l.store.feeds.add(l.id, fedPiece{p, before, l.last})
			return nil
		}
		if l.lost.Load() || l.life.Err() != nil || l.store.Err() != nil {
			return fmt.Errorf("store the log: %w", err)
		}
		if !told && time.Since(began) >= l.store.Timeout { // longer than an election takes
			l.store.logger.to.Warn("a build waits, because its log cannot be stored", "build", l.id, "error", err)
			told = true
		}
		_ = pause.For(l.life, logRetry)
	}
}

// messageLocked returns the message of a piece, and its ID.
func (l *Log) messageLocked(p Piece) (msg *nats.Msg, id string) {
	msg = nats.NewMsg(logsSubject + l.id)
	msg.Data = p.Text
	l.pieces++
	id = l.id + ":" + l.writer + ":" + strconv.FormatUint(l.pieces, 10)
	msg.Header.Set(offsetHeader, strconv.FormatInt(p.Offset, 10))
	msg.Header.Set(stateHeader, string(natscall.Encode(p.state)))
	if p.result != nil {
		msg.Header.Set(resultHeader, string(natscall.Encode(p.result)))
	}
	return msg, id
}

// publishLocked stores a message with an ID, once.
func (l *Log) publishLocked(msg *nats.Msg, id string) error {
	if l.lost.Load() {
		return ErrTaken
	}
	ctx, cancel := context.WithTimeout(l.life, l.store.Timeout)
	defer cancel()
	ack, err := l.store.js.PublishMsg(
		ctx, msg, jetstream.WithMsgID(id), jetstream.WithExpectLastSequencePerSubject(l.last))
	if err == nil {
		l.last = ack.Sequence
		return nil
	}
	if !natscall.Changed(err) {
		return err
	}
	last, readErr := l.store.lastPiece(ctx, l.id)
	switch {
	case readErr != nil:
		return readErr
	case last == nil:
		l.last = 0 // all pieces were too old, or too many
	case last.Header.Get(nats.MsgIdHdr) == id: // the acknowledgment was lost
		l.last = last.Sequence
		return nil
	case last.Sequence != l.last:
		l.lost.Store(true)
		return ErrTaken
	}
	return err // an attempt before may still be under way
}

// LogSize returns the bytes of all logs together, and how many pieces were removed.
func (s *Store) LogSize(ctx context.Context) (bytes, gone uint64, err error) {
	info, err := s.logs.Info(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("read the size of the logs: %w", err)
	}
	return info.State.Bytes, removed(info.State), nil
}

// ReadLog passes the pieces of a build's log to take, from the first with bytes at or after an offset. Unless follow is
// set it returns at the piece that was the last when it began, else at the end of the log. A build that has ended may
// have no log any more.
func (s *Store) ReadLog(
	ctx context.Context, id string, offset int64, follow, ended bool, take func(Piece) error,
) error {
	if follow && !ended { // the log of a build that has ended does not grow
		return s.home.follow(ctx, id, offset, take)
	}
	_, err := s.readBack(ctx, id, 0, offset, take)
	return err
}

// readBack passes the pieces after a place in the stream to take that are there now, from the first with bytes at or
// after an offset. It returns the place of the last one, or the given one if nothing is there.
func (s *Store) readBack(
	ctx context.Context, id string, after uint64, offset int64, take func(Piece) error,
) (uint64, error) {
	from, until, err := s.findPieces(ctx, id, after, offset)
	if err != nil || until <= after {
		return after, err
	}
	return s.readPieces(ctx, id, from, until, take)
}

// findPieces returns the sequence of the first piece after `after` that holds bytes at or beyond offset, and the last
// sequence, which is 0 for an empty log.
func (s *Store) findPieces(
	ctx context.Context, id string, after uint64, offset int64,
) (from, until uint64, err error) {
	last, err := s.lastPiece(ctx, id)
	if err != nil || last == nil {
		return after + 1, 0, err
	}
	from, err = s.seekLog(ctx, id, offset, last.Sequence)
	return max(from, after+1), last.Sequence, err
}

// readPieces passes the pieces of a log to take, from one place in the stream until another, or while the log grows if
// that is 0. It returns the place of the last one. The end of the log ends it, and so does the removal of the rest.
func (s *Store) readPieces(
	ctx context.Context, id string, from, until uint64, take func(Piece) error,
) (place uint64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	messages, stop, err := natscall.Read(ctx, s.logs, logsSubject+id, from)
	if err != nil {
		return 0, fmt.Errorf("read the log of %s: %w", id, err)
	}
	defer stop()
	for {
		// Longer than two heartbeats: then the library has asked again if its request was lost with a server.
		next, stopWait := context.WithTimeout(ctx, natscall.PullExpiry)
		msg, err := messages.Next(jetstream.NextContext(next))
		stopWait()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // the rest may have been removed
			if until == 0 && s.grows(ctx, id) {
				continue
			}
			if last, err := s.lastPiece(ctx, id); err == nil && (last == nil || last.Sequence <= place) {
				return place, nil
			}
			continue
		}
		if err != nil {
			return place, err
		}
		at, err := msg.Metadata()
		if err != nil {
			return place, fmt.Errorf("read the log of %s: %w", id, err)
		}
		place = at.Sequence.Stream
		p, err := pieceOf(msg.Headers(), msg.Data())
		if p.At = at.Timestamp; err == nil {
			s.places.set(id, mark{p.Offset, p.Offset + int64(len(p.Text)), place})
			err = take(p)
		}
		if err != nil || p.result != nil || until > 0 && place >= until {
			return place, err
		}
	}
}

// grows reports whether the log of a build may get more pieces. If the store does not answer, it may.
func (s *Store) grows(ctx context.Context, id string) bool {
	rec, err := s.Record(ctx, id)
	if err != nil || rec != nil {
		return err != nil || rec.Phase != PhaseEnded
	}
	r, err := s.Find(ctx, id)
	return err != nil || r != nil
}
