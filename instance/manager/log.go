package manager

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

// storedLog is the log of a build in the stream. It is a buildlog.StateWriter, for one goroutine at a time.
type storedLog struct {
	store  *store
	id     string
	writer string             // names this writer in the IDs of its pieces
	life   context.Context    // the manager's: it bounds the writes
	stop   context.CancelFunc // ends writes that are repeated
	lost   atomic.Bool        // another manager writes the log

	mu     sync.Mutex // guards the following
	last   uint64     // place of the last piece in the stream; 0 if there is none
	pieces uint64     // of this writer
	first  time.Time  // when this writer stored the first output of the job, lines of ours before it do not count
	offset int64
	state  buildlog.State // after offset
	result *result        // nil unless the log has its end
}

// newLog returns the log of a build of which nothing is stored. The caller calls stop.
func (s *store) newLog(life context.Context, id string) *storedLog {
	l := &storedLog{store: s, id: id, writer: rand.Text()}
	l.life, l.stop = context.WithCancel(life)
	return l
}

// openLog returns the log of a build as far as it is stored. The caller calls stop, also after an error.
func (s *store) openLog(ctx context.Context, life context.Context, id string) (*storedLog, error) {
	l := s.newLog(life, id)
	return l, l.load(ctx)
}

// load makes a new log go on where the stored one stops.
func (l *storedLog) load(ctx context.Context) error {
	last, err := l.store.lastPiece(ctx, l.id)
	if err != nil || last == nil {
		return err
	}
	p, err := pieceOf(last.Header, last.Data)
	if err != nil {
		return fmt.Errorf("read the log of %s: %w", l.id, err)
	}
	l.last = last.Sequence
	l.offset, l.state, l.result = p.offset+int64(len(p.text)), p.state, p.result
	return nil
}

// lastPiece returns the last message of a build's log, or nil.
func (s *store) lastPiece(ctx context.Context, id string) (*jetstream.RawStreamMsg, error) {
	last, err := s.logs.GetLastMsgForSubject(ctx, logsSubject+id)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log of %s: %w", id, err)
	}
	return last, nil
}

// hasRun reports whether the log has something of the build's job. Then the build has a record.
func (l *storedLog) hasRun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.result != nil || l.state.HasOutput() || l.state.Events > 0
}

// piece is one message of a log.
type piece struct {
	text   []byte
	offset int64
	state  buildlog.State
	result *result
}

func pieceOf(h nats.Header, text []byte) (p piece, err error) {
	p.text = text
	if p.offset, err = strconv.ParseInt(h.Get(offsetHeader), 10, 64); err != nil {
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
func (l *storedLog) Write(text []byte) (int, error) { return l.WriteState(text, l.state) }

// WriteState implements buildlog.StateWriter. It returns when the text is stored. After the end it drops the text.
func (l *storedLog) WriteState(text []byte, after buildlog.State) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.result != nil {
		return len(text), nil
	}
	if err := l.putLocked(piece{text: text, offset: l.offset, state: after}); err != nil {
		return 0, err
	}
	if !l.state.HasOutput() && after.HasOutput() {
		l.first = time.Now()
	}
	l.offset += int64(len(text))
	l.state = after
	return len(text), nil
}

// firstAfter returns the time from start to the job's first output, 0 if this writer did not store it after start.
func (l *storedLog) firstAfter(start time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if start.IsZero() || l.first.IsZero() {
		return 0
	}
	return max(l.first.Sub(start), 0)
}

// length returns how many bytes the log has.
func (l *storedLog) length() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.offset
}

// end tells those that follow the log its end, with the build's result, unless they know it. The record has that
// already.
func (l *storedLog) end(r *result) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.result != nil {
		return nil
	}
	p := piece{offset: l.offset, state: l.state, result: r}
	if err := l.store.home.endLog(l, p); err != nil {
		return err
	}
	l.result = r
	return nil
}

// claim puts a piece without text, after which no other writer of the log can add to it.
func (l *storedLog) claim() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	msg, id := l.messageLocked(piece{offset: l.offset, state: l.state})
	if err := l.publishLocked(msg, id); err != nil {
		return fmt.Errorf("store the log: %w", err)
	}
	return nil
}

// putLocked stores a piece after the last one that this writer knows of, or fails with errTaken. A piece whose
// acknowledgment was lost is stored once, although it is sent again: its ID tells.
func (l *storedLog) putLocked(p piece) error {
	msg, id := l.messageLocked(p)
	for began, told := time.Now(), false; ; {
		before := l.last
		err := l.publishLocked(msg, id)
		if err == nil {
			l.store.feeds.add(l.id, fedPiece{p, before, l.last})
			return nil
		}
		if l.lost.Load() || l.life.Err() != nil || l.store.err() != nil {
			return fmt.Errorf("store the log: %w", err)
		}
		if !told && time.Since(began) >= l.store.timeout { // longer than an election takes
			l.store.logger.to.Warn("a build waits, because its log cannot be stored", "build", l.id, "error", err)
			told = true
		}
		_ = pause.For(l.life, logRetry)
	}
}

// messageLocked returns the message of a piece, and its ID.
func (l *storedLog) messageLocked(p piece) (msg *nats.Msg, id string) {
	msg = nats.NewMsg(logsSubject + l.id)
	msg.Data = p.text
	l.pieces++
	id = l.id + ":" + l.writer + ":" + strconv.FormatUint(l.pieces, 10)
	msg.Header.Set(offsetHeader, strconv.FormatInt(p.offset, 10))
	msg.Header.Set(stateHeader, string(encode(p.state)))
	if p.result != nil {
		msg.Header.Set(resultHeader, string(encode(p.result)))
	}
	return msg, id
}

// publishLocked stores a message with an ID, once.
func (l *storedLog) publishLocked(msg *nats.Msg, id string) error {
	if l.lost.Load() {
		return errTaken
	}
	ctx, cancel := context.WithTimeout(l.life, l.store.timeout)
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
		return errTaken
	}
	return err // an attempt before may still be under way
}

// readLog passes the pieces of a build's log to take, from the first with bytes at or after an offset. Unless follow is
// set it returns at the piece that was the last when it began, else at the end of the log. A build that has ended may
// have no log any more.
func (s *store) readLog(
	ctx context.Context, id string, offset int64, follow, ended bool, take func(piece) error,
) error {
	if follow && !ended { // the log of a build that has ended does not grow
		return s.home.follow(ctx, id, offset, take)
	}
	_, err := s.readBack(ctx, id, 0, offset, take)
	return err
}

// readBack passes the pieces after a place in the stream to take that are there now, from the first with bytes at or
// after an offset. It returns the place of the last one, or the given one if nothing is there.
func (s *store) readBack(
	ctx context.Context, id string, after uint64, offset int64, take func(piece) error,
) (uint64, error) {
	from, until, err := s.findPieces(ctx, id, after, offset)
	if err != nil || until <= after {
		return after, err
	}
	return s.readPieces(ctx, id, from, until, take)
}

// findPieces returns the place in the stream of the first piece after a place that has bytes at or after an offset, and
// that of the last piece, which is 0 for an empty log.
func (s *store) findPieces(
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
func (s *store) readPieces(
	ctx context.Context, id string, from, until uint64, take func(piece) error,
) (place uint64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	messages, stop, err := natscall.Read(ctx, s.logs, logsSubject+id, from)
	if err != nil {
		return 0, fmt.Errorf("read the log of %s: %w", id, err)
	}
	defer stop()
	for {
		// Longer than two heartbeats: then the library has asked anew if its request was lost with a server.
		next, stopWait := context.WithTimeout(ctx, natscall.PullExpiry)
		msg, err := messages.Next(jetstream.NextContext(next))
		stopWait()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // the rest may have been removed meanwhile
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
		if err == nil {
			err = take(p)
		}
		if err != nil || p.result != nil || until > 0 && place >= until {
			return place, err
		}
	}
}

// grows reports whether the log of a build may get more pieces. If the store does not answer, it may.
func (s *store) grows(ctx context.Context, id string) bool {
	rec, err := s.record(ctx, id)
	if err != nil || rec != nil {
		return err != nil || rec.Phase != phaseEnded
	}
	r, err := s.find(ctx, id)
	return err != nil || r != nil
}
