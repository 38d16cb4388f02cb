package gitlabdoor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/servercall"
)

const (
	// maxPiece bounds a piece of a trace, in bytes, and minPiece is the size to which it shrinks if a proxy takes no
	// larger one. maxPieces bounds the pieces of all jobs that are on their way at once.
	maxPiece, minPiece, maxPieces = 1 << 20, 16 << 10, 8
	// interval is the time between two pieces while the server says nothing about it.
	interval = 3 * time.Second
	// silence is the time without a report after which the server is told that the job still runs.
	silence = 30 * time.Second
	// maxResends bounds how often the whole trace is sent again because the server finds it wrong.
	maxResends = 3
)

// position is a place in a trace: the server has what is before it.
type position struct {
	Offset int64 `json:"offset"`
	// Checksum is that of the bytes before.
	Checksum uint32 `json:"checksum"`
}

// source is the trace of a job. It passes the bytes from an offset on to take: until the present end, or with follow
// until the job has ended. The same offset has the same byte each time. An error of take ends it.
type source func(ctx context.Context, offset int64, follow bool, take func(text []byte) error) error

// report reports a job to its server: the trace, signs of life, and the final state. It reads the trace when a piece is
// due, and holds no more of it than that piece. One goroutine uses it; follow has a second one, which watches the trace
// grow, and waits for its end.
type report struct {
	client *Client
	job    *Job
	trace  source
	// keep keeps a position, with which a later report of the job begins. It may keep none for a while: the server then
	// says where its trace ends.
	keep func(position)
	// cancel ends the job gracefully. It is called until it returns true.
	cancel func() bool
	// fails is told of errors after which a call is repeated. It is safe for concurrent use.
	fails func(error)

	at       int64         // the server has the trace up to there
	read     position      // the end of what was read; before it nothing is added to the checksum
	size     int           // of a piece
	interval time.Duration // between two pieces
	sent     time.Time     // the last piece
	told     time.Time     // the last report
	strayed  bool          // the server did not take the last piece where it began
	canceled bool
}

// newReport returns a report that begins at a position.
func newReport(c *Client, job *Job, trace source, from position) *report {
	return &report{
		client: c, job: job, trace: trace, at: from.Offset, read: from, size: maxPiece, interval: interval,
		told: time.Now(), keep: func(position) {}, cancel: func() bool { return true }, fails: func(error) {},
	}
}

// errEnough ends the reading of a trace.
var errEnough = errors.New("enough")

// repeat repeats do until it succeeds or ctx ends.
func (r *report) repeat(ctx context.Context, do func() error) error {
	return servercall.Retry{
		Times: math.MaxInt, First: time.Second,
		Check: func(error) (bool, time.Duration) { return true, -1 },
		Waits: func(err error, _ int, _ time.Duration) { r.fails(err) },
	}.Do(ctx, func(int) error { return do() })
}

// follow reports the job until its trace has ended; the rest of it is for finish. It returns false if the server has
// ended the job, and nothing is to be reported any more. The error is that of ctx.
func (r *report) follow(ctx context.Context) (known bool, err error) {
	w := &watch{changed: make(chan struct{}, 1), end: r.at}
	watching, stop := context.WithCancel(ctx)
	var reader sync.WaitGroup
	reader.Go(func() { r.watch(watching, w) })
	defer reader.Wait()
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		end, ended := w.state()
		if ended {
			return true, nil
		}
		now := time.Now()
		piece, touch := r.sent.Add(r.interval).Sub(now), r.told.Add(silence).Sub(now)
		var reply Reply
		switch {
		case end > r.at && piece <= 0:
			_, reply, err = r.send(ctx)
		case touch <= 0:
			reply, err = r.touch(ctx)
		default:
			if end > r.at {
				touch = min(touch, piece)
			}
			timer.Reset(touch)
			select {
			case <-w.changed:
			case <-timer.C:
			case <-ctx.Done():
				return false, context.Cause(ctx)
			}
			continue
		}
		if err != nil || reply.Verdict == Ended {
			return false, err
		}
	}
}

// watch is how far a trace has grown.
type watch struct {
	changed chan struct{} // has room for one: there is something new below

	mu    sync.Mutex // guards the following
	end   int64
	ended bool
}

func (w *watch) state() (end int64, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.end, w.ended
}

// grow adds bytes to the end.
func (w *watch) grow(n int, ended bool) {
	w.mu.Lock()
	w.end += int64(n)
	w.ended = ended
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// watch follows the trace to its end, or until ctx ends.
func (r *report) watch(ctx context.Context, w *watch) {
	_ = r.repeat(ctx, func() error { // the error is that of ctx
		end, _ := w.state()
		err := r.trace(ctx, end, true, func(text []byte) error {
			w.grow(len(text), false)
			return nil
		})
		if err != nil {
			return fmt.Errorf("follow the trace of the job %d: %w", r.job.ID, err)
		}
		w.grow(0, true)
		return nil
	})
}

// touch tells the server that the job runs.
func (r *report) touch(ctx context.Context) (Reply, error) {
	return r.tell(ctx, func() (Reply, error) {
		return r.client.Update(ctx, r.job, Update{State: Running, Size: r.read.Offset, Checksum: r.read.Checksum})
	})
}

// tell makes a report, however often it takes, and notes what the server says.
func (r *report) tell(ctx context.Context, do func() (Reply, error)) (reply Reply, err error) {
	err = r.repeat(ctx, func() (err error) {
		reply, err = do()
		return err
	})
	if err != nil {
		return reply, err
	}
	r.told = time.Now()
	r.interval = cmp.Or(reply.Interval, r.interval)
	if reply.Canceling && !r.canceled {
		r.canceled = r.cancel()
	}
	return reply, nil
}

// send sends the next piece of the trace, and reports whether there was one. The server may say that the piece belongs
// elsewhere; the next one then begins there.
func (r *report) send(ctx context.Context) (more bool, reply Reply, err error) {
	reply, err = r.tell(ctx, func() (Reply, error) {
		from := r.at
		reply, err := r.sendOnce(ctx)
		switch {
		case StatusOf(err) == http.StatusRequestEntityTooLarge:
			r.size = max(r.size/2, minPiece) // a proxy before the server takes no such piece
		case err != nil:
		case reply.Verdict != Elsewhere:
			more, r.strayed = more || r.at > from, false
		case r.strayed || r.at == from:
			err = fmt.Errorf("the server has %d bytes of the trace of the job %d, and did not take the next ones", r.at,
				r.job.ID)
		default:
			more, r.strayed = true, true
		}
		return reply, err
	})
	return more, reply, err
}

// sendOnce sends the next piece once, if there is one.
func (r *report) sendOnce(ctx context.Context) (reply Reply, err error) {
	select {
	case r.client.pieces <- struct{}{}:
	case <-ctx.Done():
		return reply, context.Cause(ctx)
	}
	defer func() { <-r.client.pieces }()
	r.sent = time.Now()
	buffer, _ := buffers.Get().([]byte)
	buffer, err = r.next(ctx, buffer[:0])
	defer func() { buffers.Put(buffer) }() //nolint:staticcheck // of the size of a piece, not of a slice
	if err != nil || len(buffer) == 0 {
		return reply, err
	}
	reply, err = r.client.Patch(ctx, r.job, r.at, buffer)
	if err != nil || reply.Verdict == Ended {
		return reply, err
	}
	if r.at = reply.Size; r.at == r.read.Offset {
		r.keep(r.read)
	}
	return reply, nil
}

// buffers has those of pieces. One that is not used for a while is garbage.
var buffers sync.Pool

// next reads the piece of the trace that the server does not have. Bytes that are read for the first time are added to
// the checksum; those that the server already has are read for that alone.
func (r *report) next(ctx context.Context, piece []byte) ([]byte, error) {
	at := min(r.at, r.read.Offset)
	err := r.trace(ctx, at, false, func(text []byte) error {
		if skip := r.at - at; skip > 0 { // the server has it
			n := min(skip, int64(len(text)))
			r.sum(at, text[:n])
			at, text = at+n, text[n:]
		}
		n := min(len(text), r.size-len(piece))
		r.sum(at, text[:n])
		at += int64(n)
		piece = append(piece, text[:n]...)
		if len(piece) >= r.size {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return piece, fmt.Errorf("read the trace of the job %d: %w", r.job.ID, err)
	}
	return piece, nil
}

// sum adds bytes at an offset to the checksum, if they are new.
func (r *report) sum(at int64, text []byte) {
	if known := r.read.Offset - at; known > 0 {
		text = text[min(known, int64(len(text))):]
	}
	r.read.Offset += int64(len(text))
	r.read.Checksum = crc32.Update(r.read.Checksum, crc32.IEEETable, text)
}

// finish sends the rest of the trace, which has ended, and then the final state, until the server accepts it or does
// not know the job any more. The error is that of ctx.
func (r *report) finish(ctx context.Context, final Update) error {
	for resends := 0; ; {
		for more := true; more; {
			var reply Reply
			var err error
			if more, reply, err = r.send(ctx); err != nil || reply.Verdict == Ended {
				return err
			}
		}
		final.Size, final.Checksum = r.read.Offset, r.read.Checksum
		final.Unchecked = resends > maxResends // it would not end otherwise
		reply, err := r.tell(ctx, func() (Reply, error) { return r.client.Update(ctx, r.job, final) })
		switch {
		case err != nil || reply.Verdict == Accepted || reply.Verdict == Ended:
			return err
		case reply.Verdict == FromStart:
			resends++
			r.at, r.read = 0, position{}
			r.keep(r.read)
		}
		if err := pause.For(ctx, cmp.Or(reply.Interval, interval)); err != nil {
			return err
		}
	}
}
