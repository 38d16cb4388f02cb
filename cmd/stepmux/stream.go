package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/stepmux/stepmux/internal/plural"
)

const (
	// shareRoom bounds the text of one build that waits for a stream's reader, streamRoom the text of all builds, in
	// bytes.
	shareRoom, streamRoom = 128 << 10, 64 << 20
	// talkRoom bounds the messages that wait for the reader. Further messages are dropped and counted.
	talkRoom = 1 << 20
	// pieceSize is the largest write. A reader that takes a piece is only slow; one that does not is gone.
	pieceSize = 32 << 10
	// redrawEvery is the minimum time between two drawings of a view.
	redrawEvery = 100 * time.Millisecond
)

// stream writes to a file whose reader may stop reading. One goroutine writes. Callers wait for it only in close and,
// for room, in share.put. If the file never accepts a write, the goroutine stays until the program ends.
type stream struct {
	name    string
	to      io.Writer
	room    *semaphore.Weighted // for the text of builds
	life    context.Context     // ends when callers shall no longer wait for room
	end     context.CancelFunc
	done    chan struct{} // closed when the goroutine has ended
	written atomic.Int64  // number of pieces
	view    *view         // at the bottom of a terminal; nil if there is no view
	failed  func(error)   // called when a write to the file has failed

	mu      sync.Mutex // guards the following
	changed sync.Cond
	queue   []entry
	waiting int // bytes in the queue and in the current write
	talk    int // the bytes of messages among them
	dropped int // number of messages
	lost    int // bytes that could not be written
	err     error
	closed  bool

	shown    bool // the view shall be below the text
	dirty    bool // it must be redrawn
	lastDraw time.Time
}

// entry is a text in a stream's queue.
type entry struct {
	text []byte
	free func() // gives back its room
}

// newStream returns a stream to a file; name stands for it in errors. failed is called once if a write fails. v, if
// not nil, is shown below the text. The caller calls close.
func newStream(name string, to io.Writer, failed func(error), v *view) *stream {
	s := &stream{
		name: name, to: to, room: semaphore.NewWeighted(streamRoom), done: make(chan struct{}), view: v, failed: failed,
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.changed.L = &s.mu
	go s.run()
	return s
}

// run writes the queue, and the view below it.
func (s *stream) run() {
	defer close(s.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(s.queue) == 0 && !s.dirty && !s.closed {
			s.changed.Wait()
		}
		if s.life.Err() != nil { // close has given up
			return
		}
		next := entry{free: func() {}}
		if len(s.queue) > 0 {
			next, s.queue = s.queue[0], s.queue[1:]
		} else if s.closed && !s.view.drawn() {
			return
		}
		s.dirty = s.dirty || s.shown && time.Since(s.lastDraw) >= redrawEvery
		draw := s.dirty && len(s.queue) == 0 && !s.closed
		if draw {
			s.lastDraw = time.Now()
		}
		s.dirty = s.dirty && !draw && !s.closed
		broken := s.err != nil
		s.mu.Unlock()
		text := s.view.around(next.text, draw)
		n, err := s.write(text)
		next.free()
		if err != nil && !broken && s.life.Err() == nil {
			s.failed(err)
		}
		s.mu.Lock()
		s.waiting -= len(next.text)
		if err != nil {
			s.err = err
			s.lost += min(len(next.text), len(text)-n)
		}
	}
}

// write writes text in pieces, unless an earlier write has failed.
func (s *stream) write(text []byte) (n int, err error) {
	for n < len(text) {
		if s.err != nil { // only this goroutine sets it
			return n, s.err
		}
		if s.life.Err() != nil {
			return n, s.life.Err() // close has counted the rest as lost
		}
		m, err := s.to.Write(text[n:min(n+pieceSize, len(text))])
		n += m
		s.written.Add(1)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Write adds a text to the queue, even if that is full; it is for a few lines per build. It never fails.
func (s *stream) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addLocked(bytes.Clone(text), func() {})
	return len(text), nil
}

func (s *stream) addLocked(text []byte, free func()) {
	s.queue = append(s.queue, entry{text, free})
	s.waiting += len(text)
	s.changed.Signal()
}

// say adds a message to the queue, or drops it if too many messages wait.
func (s *stream) say(text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.talk+len(text) > talkRoom {
		s.dropped++
		return
	}
	text = bytes.Clone(text)
	if s.dropped > 0 {
		text = fmt.Appendf(nil, "stepmux: %s dropped: %s took nothing\n%s",
			plural.Count(s.dropped, "message"), s.name, text)
		s.dropped = 0
	}
	s.talk += len(text)
	s.addLocked(text, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.talk -= len(text)
	})
}

// show requests a drawing of the view: now, or with the next text.
func (s *stream) show(now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = true
	s.dirty = s.dirty || now || time.Since(s.lastDraw) >= redrawEvery
	s.changed.Signal()
}

// share is one build's part of a stream's queue. One goroutine at a time uses it.
type share struct {
	stream *stream
	room   *semaphore.Weighted
}

func (s *stream) share() share { return share{s, semaphore.NewWeighted(shareRoom)} }

// put adds a text to the queue. If the queue holds too much text of this build or of all builds, put waits for room
// or, without wait, drops the text. It returns the stream's error if the stream has failed, or fails during the wait.
func (b share) put(text []byte, wait bool) error {
	n := int64(min(len(text), shareRoom))
	take := func(room *semaphore.Weighted) bool {
		if !wait {
			return room.TryAcquire(n)
		}
		return room.Acquire(b.stream.life, n) == nil
	}
	s := b.stream
	taken := take(b.room)
	if taken && !take(s.room) {
		b.room.Release(n)
		taken = false
	}
	s.mu.Lock()
	if taken {
		s.addLocked(text, func() {
			s.room.Release(n)
			b.room.Release(n)
		})
	} else {
		s.lost += len(text)
	}
	s.mu.Unlock()
	return s.failure()
}

// failure returns why the stream accepts no more text, or nil if it does.
func (s *stream) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case s.life.Err() != nil:
		return fmt.Errorf("%s takes nothing", s.name)
	}
	return nil
}

// close waits until the queue is written. It gives up when the reader has taken nothing for patience, one second
// after ctx has ended, or when abort ends. Its error reports lost text. Afterwards nothing is written, except that a
// write under way may finish.
func (s *stream) close(ctx, abort context.Context, patience time.Duration) error {
	defer s.end()
	s.mu.Lock()
	s.closed = true
	if s.dropped > 0 {
		s.addLocked(fmt.Appendf(nil, "stepmux: %s dropped: %s took nothing\n", plural.Count(s.dropped, "message"),
			s.name), func() {})
	}
	s.changed.Signal()
	s.mu.Unlock()
	interrupted := ctx.Done()
	for {
		if ctx.Err() != nil {
			interrupted, patience = nil, time.Second
		}
		before := s.written.Load()
		timer := time.NewTimer(patience)
		goesOn := false
		select {
		case <-s.done:
		case <-interrupted:
			goesOn = true
		case <-timer.C:
			goesOn = s.written.Load() != before
		case <-abort.Done():
		}
		timer.Stop()
		if !goesOn {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := s.lost + s.waiting
	switch {
	case s.err != nil:
		return fmt.Errorf("write build log: %w (%s lost)", s.err, plural.Count(lost, "byte"))
	case lost > 0:
		return fmt.Errorf("write build log: %s takes nothing (%s lost)", s.name, plural.Count(lost, "byte"))
	}
	return nil
}
