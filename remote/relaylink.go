package remote

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/coalesce"
	"github.com/stepmux/stepmux/internal/wire"
)

const (
	// helloTimeout bounds the wait for the manager's first words.
	helloTimeout = 30 * time.Second
	// linkBuffer is how much is written to stdout at once.
	linkBuffer = 128 << 10
	// readAhead is how much is read from stdin at once while little comes; bulk is read past it.
	readAhead = 16 << 10
	// flushTimeout bounds the wait, in the end, for the manager to take what is written already.
	flushTimeout = 2 * time.Second
)

// errStuck ends a relay whose manager is none.
var errStuck = errors.New("the manager takes nothing any more")

// relayLink is stdin and stdout as yamux wants them: one connection that Close wakes. A goroutine of its own
// does the writing; finish waits for it.
type relayLink struct {
	in, out  *os.File
	rawIn    rawFile
	buffered *bufio.Reader    // of in
	gathered *coalesce.Writer // to out
	written  chan struct{}    // closed once nothing more is written to out
	restore  func()

	start time.Time
	last  atomic.Int64 // when something last came, nanoseconds since start

	inEnded atomic.Bool // stdin has ended or failed, other than by Close
}

func openRelayLink(stdio Stdio) (*relayLink, error) {
	in, restoreIn, err := wakeable(stdio.In)
	if err != nil {
		return nil, err
	}
	out, restoreOut, err := wakeable(stdio.Out)
	if err != nil {
		in.Close()
		restoreIn()
		return nil, err
	}
	rawIn, inErr := rawOf(in, in.Name())
	rawOut, outErr := rawOf(out, out.Name())
	if err := errors.Join(inErr, outErr); err != nil {
		in.Close()
		out.Close()
		restoreOut()
		restoreIn()
		return nil, err
	}
	l := &relayLink{
		in:       in,
		out:      out,
		rawIn:    rawIn,
		gathered: coalesce.New(rawOut, linkBuffer, wire.YamuxBodyFollows),
		written:  make(chan struct{}),
		start:    time.Now(),
		restore: func() {
			restoreOut()
			restoreIn()
		},
	}
	widen(in)
	widen(out)
	l.buffered = bufio.NewReaderSize(linkInput{l}, readAhead)
	go func() {
		defer close(l.written)
		_ = l.gathered.Run() // its error is that of the next Write
	}()
	return l, nil
}

// linkInput reads stdin and takes note of what happens.
type linkInput struct{ *relayLink }

func (l linkInput) Read(p []byte) (int, error) {
	n, err := l.rawIn.Read(p)
	if n > 0 {
		l.last.Store(int64(time.Since(l.start)))
	}
	if err != nil && !errors.Is(err, os.ErrClosed) {
		l.inEnded.Store(true)
	}
	return n, err
}

// heard returns when something last came.
func (l *relayLink) heard() time.Time { return l.start.Add(time.Duration(l.last.Load())) }

// shakeHands exchanges hellos and tells the program's version. The error is ctx's cause if that ends first.
func (l *relayLink) shakeHands(ctx context.Context, program string) error {
	// A file without deadlines is none on which a read waits.
	_ = l.in.SetReadDeadline(time.Now().Add(helloTimeout))
	stop := context.AfterFunc(ctx, func() { _ = l.in.SetReadDeadline(time.Unix(1, 0)) })
	version, err := wire.ReadManagerHello(l.buffered)
	switch {
	case !stop():
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no manager said hello on stdin within %v: the relay is started by a manager", helloTimeout)
	case errors.Is(err, io.EOF):
		return errors.New("stdin ended before a manager said hello: the relay is started by a manager, by way of SSH, and not by hand")
	case err != nil:
		return err
	}
	_ = l.in.SetReadDeadline(time.Time{})
	hello := wire.ProgramHello(program, runtime.GOOS+"/"+runtime.GOARCH) + wire.RelayHello(wire.RelayVersion)
	if _, err := l.gathered.Write([]byte(hello)); err != nil {
		return fmt.Errorf("say hello: %w", err)
	}
	if version != wire.RelayVersion {
		return fmt.Errorf("the manager speaks version %d of the protocol, this program version %d: install the same stepmux on both ends",
			version, wire.RelayVersion)
	}
	return nil
}

// Read implements io.Reader.
func (l *relayLink) Read(p []byte) (int, error) { return l.buffered.Read(p) }

// Write implements io.Writer.
func (l *relayLink) Write(p []byte) (int, error) { return l.gathered.Write(p) }

// Close implements io.Closer. What was written is still sent.
func (l *relayLink) Close() error {
	_ = l.gathered.Close() // always nil
	l.in.Close()
	return nil
}

// reason says why the session, of which err is the end, has ended: errLeash if the manager has gone.
func (l *relayLink) reason(err error) error {
	switch path := (*fs.PathError)(nil); {
	case l.inEnded.Load(), errors.Is(err, unix.EPIPE):
		return errLeash
	case errors.Is(err, yamux.ErrConnectionWriteTimeout):
		return errStuck
	case errors.As(err, &path):
		return fmt.Errorf("stdout: %w", path.Err)
	default:
		return fmt.Errorf("what came on stdin makes no sense: %w", err)
	}
}

// finish waits until what was written is sent, for a moment, and gives up stdin and stdout.
func (l *relayLink) finish() {
	_ = l.Close() // always nil
	timer := time.NewTimer(flushTimeout)
	defer timer.Stop()
	select {
	case <-l.written:
	case <-timer.C:
	}
	l.out.Close()
	<-l.written
	l.restore()
}
