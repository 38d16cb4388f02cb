package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/stepmux/stepmux/internal/streams"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux/channel"
)

// local is the address of this end of a relay's streams.
var local = channel.Addr{Net: "relay", Text: "manager"}

// DialUnix connects to a unix socket of one of the user's builds: <tmp>/gitlab-runner-steps/<build id>/<name>
// (docs/protocol.md). If the path has another form or does not exist, the error is a [*RefusedError]. ctx bounds the
// wait for the answer. The caller closes the Stream.
func (r *Relay) DialUnix(ctx context.Context, path string) (*channel.Stream, error) {
	return r.dial(ctx, wire.RelayConnect{Path: path})
}

// DialReady is DialUnix for the socket of a process that was started with this path as its Command.Ready. It waits
// until that process listens; the process may be started before or after this call. ctx bounds the wait. If the
// process ends first, the error is a [*RefusedError] with RefusedNotReady.
func (r *Relay) DialReady(ctx context.Context, path string) (*channel.Stream, error) {
	wait := time.Duration(math.MaxInt32) * time.Millisecond
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(time.Until(deadline), time.Millisecond)
	}
	return r.dial(ctx, wire.RelayConnect{Path: path, Wait: wait})
}

func (r *Relay) dial(ctx context.Context, request wire.RelayConnect) (*channel.Stream, error) {
	op := "dial unix " + request.Path
	message, err := wire.AppendRelayConnect(nil, request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	s, err := r.request(ctx, op, message)
	if err != nil {
		return nil, err
	}
	return channel.NewStream(&socket{stream: s}, local, channel.Addr{Net: "unix", Text: request.Path}), nil
}

// Start starts a process. The relay forks it in a session and process group of its own, with the environment of the
// login. ctx bounds the wait for the answer, and has no effect once the process runs. The caller calls Close, which
// ends the process if it still runs. If the program or directory does not exist, the error is a [*RefusedError] with
// RefusedNotFound.
func (r *Relay) Start(ctx context.Context, cmd channel.Command) (*channel.Process, error) {
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	message, err := wire.AppendRelayStart(nil, wire.RelayStart{
		Argv: cmd.Argv, Line: cmd.Line, Dir: cmd.Dir, Env: cmd.Env, Ready: cmd.Ready,
	})
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	if len(cmd.Input) > 0 {
		message = wire.AppendFrame(message, wire.FrameData, cmd.Input)
	}
	s, err := r.request(ctx, "start", message)
	if err != nil {
		return nil, err
	}
	p := newProcess(s, cmd)
	if !r.spawn(p.receive) {
		p.receive() // returns at once, with the end
	}
	return channel.NewProcess(p, local, cmd), nil
}

// request opens a stream with message as its request, and waits for the answer.
func (r *Relay) request(ctx context.Context, op string, message []byte) (*stream, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if err := r.alive(op); err != nil {
		return nil, err
	}
	if err := r.begin(op); err != nil {
		return nil, err
	}
	// A goroutine waits for the answer. If the answer comes too late, that goroutine closes the stream.
	answered, failed := make(chan *stream), make(chan error, 1)
	spawned := r.spawn(func() {
		start := time.Now()
		s, err := r.ask(ctx, op, message)
		r.cfg.Opened(time.Since(start), err)
		if err != nil {
			r.finish() // before the caller learns that the request failed
			failed <- err
			return
		}
		select {
		case answered <- s:
		case <-ctx.Done():
			s.hangUp()
		}
	})
	if !spawned {
		r.finish()
		return nil, r.ended(op)
	}
	select {
	case s := <-answered:
		return s, nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
}

// ask sends the request and reads the answer, bounded by ctx.
func (r *Relay) ask(ctx context.Context, op string, message []byte) (_ *stream, err error) {
	raw, err := r.session.Open()
	if err != nil {
		return nil, r.streamError(op, err)
	}
	s := &stream{relay: r, raw: raw}
	defer func() {
		if ctx.Err() != nil {
			err = fmt.Errorf("%s: %w", op, context.Cause(ctx))
		}
		if err != nil {
			raw.Close()
		}
	}()
	for len(message) > 0 {
		n, err := s.send(message, ctx.Done())
		if err != nil {
			return nil, r.streamError(op, err)
		}
		message = message[n:]
	}
	response, err := wire.ReadRelayResponse(streams.Reader{Stream: raw, Stop: ctx.Done()})
	switch {
	case err != nil:
		return nil, r.streamError(op, err)
	case response.Code != wire.RelayOK:
		return nil, refusal(op, response)
	}
	return s, nil
}

// refusal turns a response other than "granted" into an error.
func refusal(op string, response wire.RelayResponse) error {
	reason := map[wire.RelayCode]RefusalReason{
		wire.RelayInvalid:   RefusedInvalid,
		wire.RelayForbidden: RefusedForbidden,
		wire.RelayNotFound:  RefusedNotFound,
		wire.RelayNotReady:  RefusedNotReady,
		wire.RelayBusy:      RefusedBusy,
		wire.RelayClosing:   RefusedClosing,
	}[response.Code]
	text := response.Text[:min(len(response.Text), tail.MaxBytes)]
	return &RefusedError{Op: op, Reason: cmp.Or(reason, RefusedFailed), Text: text}
}

// streamError turns an error of a stream into the error of op. The session returns io.EOF when the peer has closed
// the stream, but also when the session itself has ended.
func (r *Relay) streamError(op string, err error) error {
	if lost := r.alive(op); lost != nil {
		return lost
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%s: relay: %w", op, err)
}
