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
)

const (
	// shareRoom bounds the text of one build that waits for a stream's reader, and streamRoom that of all, in bytes.
	shareRoom, streamRoom = 128 << 10, 64 << 20
	// talkRoom bounds the messages that wait for the reader. More are dropped, and counted.
	talkRoom = 1 << 20
	// pieceSize is the largest write: a reader that takes this much is slow, and one that does not is gone.
	pieceSize = 32 << 10
	// redrawEvery is the least time between two drawings of a view.
	redrawEvery = 100 * time.Millisecond
)

// stream writes to a file whose reader may take nothing any more. One goroutine writes. Others wait for it only in
// close, and in share.put for room. A write that the file never takes keeps the goroutine until the program ends.
type stream struct {
	name    string
	to      io.Writer
	room    *semaphore.Weighted // for the builds' text
	life    context.Context     // ends when nobody is to wait for room any more
	end     context.CancelFunc
	done    chan struct{} // closed when the goroutine has ended
	written atomic.Int64  // pieces
	view    *view         // at the bottom of a terminal; nil for none
	failed  func(error)   // called when the file has refused text

	mu      sync.Mutex // guards the following
	changed sync.Cond
	queue   []entry
	waiting int // bytes in the queue, and in the write that is under way
	talk    int // bytes of messages among these
	dropped int // messages
	lost    int // bytes that the file refused
	err     error
	closed  bool

	shown    bool // the view is to stand below the text
	dirty    bool // it is to be drawn anew
	lastDraw time.Time
}

// entry is a text in a stream's queue.
type entry struct {
	text []byte
	free func() // gives back its room
}

// newStream returns a stream to a file, which errors call name. failed is called once if the file refuses text. v, if
// it is not nil, stands below the text. The caller calls close.
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

// write writes text in pieces, unless a write before has failed.
func (s *stream) write(text []byte) (n int, err error) {
	for n < len(text) {
		if s.err != nil { // only the goroutine sets it
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

// Write adds a text to the queue, however full that is: a few lines for each build at most. It never fails.
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

// say adds a message to the queue, or drops it if too many wait there.
func (s *stream) say(text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.talk+len(text) > talkRoom {
		s.dropped++
		return
	}
	text = bytes.Clone(text)
	if s.dropped > 0 {
		text = fmt.Appendf(nil, "stepmux: %d messages were dropped: %s took nothing\n%s", s.dropped, s.name, text)
		s.dropped = 0
	}
	s.talk += len(text)
	s.addLocked(text, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.talk -= len(text)
	})
}

// show has the view drawn, at once or with the next text.
func (s *stream) show(now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = true
	s.dirty = s.dirty || now || time.Since(s.lastDraw) >= redrawEvery
	s.changed.Signal()
}

// share is one build's part of a stream's queue. One goroutine uses it at a time.
type share struct {
	stream *stream
	room   *semaphore.Weighted
}

func (s *stream) share() share { return share{s, semaphore.NewWeighted(shareRoom)} }

// put adds a text to the queue. If too much of the build's text is there, or of all builds', it waits, or else drops
// the text. It returns the stream's error if that has failed, or ends meanwhile.
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

// failure returns why the stream takes no more text, or nil.
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

// close waits until the queue is written, as long as the reader takes something within patience, within a second once
// ctx has ended, and not at all once abort has. Its error says that text was lost. Nothing is written after that, but
// for a write that is under way.
func (s *stream) close(ctx, abort context.Context, patience time.Duration) error {
	defer s.end()
	s.mu.Lock()
	s.closed = true
	if s.dropped > 0 {
		s.addLocked(fmt.Appendf(nil, "stepmux: %d messages were dropped: %s took nothing\n", s.dropped, s.name), func() {})
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
		return fmt.Errorf("write build log: %w (%d bytes are lost)", s.err, lost)
	case lost > 0:
		return fmt.Errorf("write build log: %s takes nothing (%d bytes are lost)", s.name, lost)
	}
	return nil
}
