package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// stallGuard is the body of an answer. It cancels its request when no byte arrives for some time.
type stallGuard struct {
	io.ReadCloser
	ctx    context.Context // of the request; its cause says why it ended
	most   time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func newStallGuard(ctx context.Context, body io.ReadCloser, most time.Duration, cancel context.CancelCauseFunc,
) *stallGuard {
	stalled := fmt.Errorf("the server has sent nothing for %v", most)
	return &stallGuard{body, ctx, most, time.AfterFunc(most, func() { cancel(stalled) }), cancel}
}

func (g *stallGuard) Read(p []byte) (int, error) {
	g.timer.Reset(g.most)
	n, err := g.ReadCloser.Read(p)
	g.timer.Stop() // the caller's own time does not count
	if err != nil && !errors.Is(err, io.EOF) && g.ctx.Err() != nil {
		err = context.Cause(g.ctx)
	}
	return n, err
}

// Close closes the body and ends the request.
func (g *stallGuard) Close() error {
	defer g.cancel(nil)
	g.timer.Stop()
	return g.ReadCloser.Close()
}

// sender opens the bodies of a request, one for each redirect, and keeps the first error of reading a body.
type sender struct {
	client  *Client
	request Request
	cancel  context.CancelCauseFunc

	mu    sync.Mutex // guards the following
	first error
}

func (s *sender) open() (io.ReadCloser, error) {
	body, err := s.request.Body()
	if err != nil {
		return nil, s.failed(err)
	}
	m := newMeter(s.client.cfg.Log, s.request.Label, s.client.cfg.MeterEvery, s.request.Length)
	stalled := fmt.Errorf("the server has taken nothing for %v", s.client.cfg.Stall)
	timer := time.AfterFunc(s.client.cfg.Stall, func() { s.cancel(stalled) })
	timer.Stop()
	return &sendGuard{meteredReader: meteredReader{body, m}, sender: s, timer: timer}, nil
}

func (s *sender) failed(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == nil {
		s.first = Local(err)
	}
	return s.first
}

func (s *sender) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first
}

// sendGuard is the body of a request. It cancels the request when the server accepts no byte for some time.
type sendGuard struct {
	meteredReader
	sender *sender
	timer  *time.Timer // runs while the bytes of the last Read are being sent
	closed atomic.Bool // reading fails from then on; that is no error of this machine
}

func (g *sendGuard) Read(p []byte) (int, error) {
	g.timer.Stop()
	n, err := g.meteredReader.Read(p)
	switch {
	case err == nil:
		g.timer.Reset(g.sender.client.cfg.Stall)
		if g.closed.Load() {
			g.timer.Stop()
		}
	case !errors.Is(err, io.EOF) && !g.closed.Load(): // after EOF the server prepares its answer: see Config.HeaderTimeout
		err = g.sender.failed(err)
	}
	return n, err
}

// Close implements io.Closer.
func (g *sendGuard) Close() error {
	g.closed.Store(true)
	g.timer.Stop()
	return g.meteredReader.Close()
}
