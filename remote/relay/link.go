package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/alive"
	"github.com/stepmux/stepmux/internal/coalesce"
	"github.com/stepmux/stepmux/internal/streams"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/pipe"
)

const (
	// helloTimeout bounds the wait for the manager's hello.
	helloTimeout = 30 * time.Second
	// linkBuffer bounds the bytes of one write to stdout.
	linkBuffer = 128 << 10
	// flushTimeout bounds the wait, at the end, until the manager has received the bytes that were written.
	flushTimeout = 2 * time.Second
)

// errStuck ends a relay whose manager has stopped reading.
var errStuck = errors.New("the manager has stopped reading")

// link is stdin and stdout. Close wakes a blocked read. It has a goroutine that writes; finish waits for it.
type link struct {
	in, out  *pipe.File
	buffered *bufio.Reader    // of in
	gathered *coalesce.Writer // to out
	written  chan struct{}    // closed once the last byte is written to out

	pulse alive.Pulse // of stdin
	stall time.Duration

	closeOnce sync.Once
	giveUp    *time.Timer // closes out; set by Close

	moves   atomic.Bool // bytes can be moved to stdout without a copy, see move
	inEnded atomic.Bool // stdin has ended or failed, other than by Close
	stuck   atomic.Bool // stdout was not read for stall
}

func openLink(stdin, stdout *os.File, stall time.Duration) (*link, error) {
	in, err := pipe.Open(stdin)
	if err != nil {
		return nil, err
	}
	out, err := pipe.Open(stdout)
	if err != nil {
		in.Close()
		return nil, err
	}
	in.Widen()
	l := &link{in: in, out: out, stall: stall, written: make(chan struct{})}
	l.moves.Store(out.Widen())
	l.gathered = coalesce.New(linkOutput{l}, linkBuffer)
	l.buffered = bufio.NewReaderSize(linkInput{l}, streams.ReadAhead)
	go func() {
		defer close(l.written)
		_ = l.gathered.Run() // the next Write returns the same error
	}()
	return l, nil
}

// linkInput reads stdin, and notes when bytes arrive and when stdin ends.
type linkInput struct{ *link }

func (l linkInput) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	if n > 0 {
		l.pulse.Beat()
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		l.inEnded.Store(true)
	}
	return n, err
}

// linkOutput writes stdout, and closes it if it has no reader.
type linkOutput struct{ *link }

func (l linkOutput) Write(p []byte) (int, error) {
	defer l.watchOutput()()
	return l.out.Write(p)
}

// watchOutput closes stdout unless stop is called within stall.
func (l *link) watchOutput() (stop func() bool) {
	return time.AfterFunc(l.stall, func() {
		l.stuck.Store(true)
		l.out.Close()
	}).Stop
}

// move writes before to stdout, and then moves n bytes that wait in the socket from there, without a copy. The caller
// owns stdout, as [coalesce.Writer.Direct] says. After an error, a part of the frame may have been sent.
func (l *link) move(before []byte, from uintptr, n int) error {
	defer l.watchOutput()()
	if _, err := l.out.Write(before); err != nil {
		return err
	}
	moved, err := l.out.Move(from, n)
	if errors.Is(err, errors.ErrUnsupported) {
		l.moves.Store(false) // the next bytes are copied
		return l.copy(from, n-moved)
	}
	return err
}

// copy replaces move on systems that cannot move bytes between these files.
func (l *link) copy(from uintptr, n int) error {
	f := getFrame()
	defer frames.Put(f)
	for n > 0 {
		m, err := pipe.ReadFD(from, f[:min(n, len(f))])
		if err == nil && m == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err == nil {
			_, err = l.out.Write(f[:m])
		}
		if err != nil {
			return err
		}
		n -= m
	}
	return nil
}

// shakeHands exchanges hellos and tells the manager the program's version. If ctx ends first, the error is its cause.
func (l *link) shakeHands(ctx context.Context, program string) error {
	l.in.SetReadDeadline(time.Now().Add(helloTimeout))
	stop := context.AfterFunc(ctx, func() { l.in.SetReadDeadline(time.Unix(1, 0)) })
	version, err := wire.ReadManagerHello(l.buffered)
	switch {
	case !stop():
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no manager said hello on stdin within %v: the relay is started by a manager", helloTimeout)
	case errors.Is(err, io.EOF):
		return errors.New("stdin ended before a manager said hello: " +
			"the relay is started by a manager, over SSH, and not by hand")
	case err != nil:
		return err
	}
	l.in.SetReadDeadline(time.Time{})
	hello := wire.ProgramHello(program, runtime.GOOS+"/"+runtime.GOARCH)
	if hello != "" {
		hello += wire.LingerHello
	}
	if _, err := l.gathered.Write([]byte(hello + wire.RelayHello(wire.RelayVersion))); err != nil {
		return fmt.Errorf("say hello: %w", err)
	}
	if version != wire.RelayVersion {
		return fmt.Errorf("the manager speaks version %d of the protocol, this program version %d: "+
			"install the same stepmux on both ends", version, wire.RelayVersion)
	}
	return nil
}

// Close wakes a blocked read. Bytes that were written before are still sent, for at most flushTimeout. It is
// idempotent.
func (l *link) Close() error {
	l.closeOnce.Do(func() {
		_ = l.gathered.Close()                               // always nil
		l.giveUp = time.AfterFunc(flushTimeout, l.out.Close) // also wakes a stream that moves bytes there
		l.in.SetReadDeadline(time.Unix(1, 0))
	})
	return nil
}

// reason returns why the session ended with err. It is ErrLeash if the manager has gone.
func (l *link) reason(err error) error {
	switch path := (*fs.PathError)(nil); {
	case l.stuck.Load():
		return errStuck
	case l.inEnded.Load(), errors.Is(err, unix.EPIPE):
		return pipe.ErrLeash
	case errors.As(err, &path):
		return fmt.Errorf("stdout: %w", path.Err)
	default:
		return fmt.Errorf("stdin does not follow the protocol: %w", err)
	}
}

// finish waits until all bytes are sent or given up, and closes stdin and stdout.
func (l *link) finish() {
	_ = l.Close() // always nil
	<-l.written
	l.giveUp.Stop()
	l.out.Close()
	l.in.Close()
}
