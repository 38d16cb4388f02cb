package mux_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/liveheap"
	"github.com/stepmux/stepmux/internal/testing/rawssh"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

// leftBehind is the memory, on average, that the SSH library never frees of a connection whose server broke the
// protocol.
const leftBehind = 256 << 10

// liar is a server that grants much and then sends random messages. Its seed decides which.
type liar struct {
	*rawssh.Conn
	*rand.Rand
	channels []uint32 // that the client has opened
}

// text returns foreign text, sometimes very long.
func (l *liar) text() string {
	text := []string{"x", "\x1b[2J", "\xff\x00", "a word ", "\n"}[l.IntN(5)]
	return strings.Repeat(text, []int{0, 1, 300, 30_000}[l.IntN(4)])
}

// number returns a number near a limit, or any.
func (l *liar) number() uint32 {
	return []uint32{
		0, 1, 8, 9, 255, 256, 1 << 15, 1<<15 + 1, 1 << 21, 1<<31 - 1, 1 << 31, 1<<32 - 1, l.Uint32(),
	}[l.IntN(13)]
}

// channel returns the number of a channel, mostly of an open one.
func (l *liar) channel() uint32 {
	if len(l.channels) == 0 || l.IntN(50) == 0 {
		return l.number()
	}
	return l.channels[l.IntN(len(l.channels))]
}

// message returns a random message.
func (l *liar) message() []byte {
	id := l.channel()
	var m []byte
	switch l.IntN(20) {
	case 0:
		m = rawssh.Request(id, "exit-status", l.IntN(2) == 0, binary.BigEndian.AppendUint32(nil, l.number()))
	case 1:
		m = rawssh.Request(id, "exit-signal", l.IntN(2) == 0, []byte(l.text()))
	case 2:
		m = rawssh.Request(id, l.text(), l.IntN(2) == 0, []byte(l.text()))
	case 3:
		m = rawssh.OnChannel([]byte{rawssh.ChannelSuccess, rawssh.ChannelFailure}[l.IntN(2)], id)
	case 4:
		m = append([]byte{[]byte{rawssh.RequestSuccess, rawssh.RequestFailure}[l.IntN(2)]}, l.text()...)
	case 5:
		m = binary.BigEndian.AppendUint32(rawssh.OnChannel(rawssh.WindowAdjust, id), l.number())
	case 6, 7, 8, 9:
		m = rawssh.Data(id, []byte(l.text()))
	case 10, 11:
		m = rawssh.Extended(id, uint32(l.IntN(3)), []byte(l.text()))
	case 12:
		m = rawssh.OnChannel(rawssh.ChannelEOF, id)
	case 13:
		m = rawssh.OnChannel(rawssh.ChannelClose, id)
	case 14:
		m = rawssh.Open(l.text(), l.number(), l.number(), l.number(), []byte(l.text()))
	case 15:
		m = rawssh.Global(l.text(), l.IntN(2) == 0, []byte(l.text()))
	case 16:
		m = rawssh.Confirm(id, l.number(), l.number())
	case 17:
		m = rawssh.Refuse(id, l.number(), l.text())
	case 18:
		m = append([]byte{[]byte{rawssh.Ignore, rawssh.Debug, rawssh.Ping, rawssh.Unimplemented}[l.IntN(4)]}, l.text()...)
	case 19:
		if l.IntN(20) == 0 {
			return [][]byte{
				rawssh.Bye(l.number(), l.text()), {rawssh.KexInit}, {rawssh.NewKeys}, {byte(l.Uint32())}, {},
			}[l.IntN(5)]
		}
		m = rawssh.Data(id, []byte("stepmux-relay/1\n"))
	}
	switch l.IntN(60) {
	case 0:
		m = m[:l.IntN(len(m))]
	case 1:
		m = append(m, l.text()...)
	case 2:
		m[l.IntN(len(m))] = byte(l.Uint32())
	}
	return m
}

// answer answers a message, in most cases well.
func (l *liar) answer(m []byte) error {
	switch roll := l.IntN(12); {
	case m[0] == rawssh.ChannelOpen && len(m) > 9:
		id := binary.BigEndian.Uint32(m[5+binary.BigEndian.Uint32(m[1:]):])
		l.channels = append(l.channels, id)
		switch roll {
		case 0:
			return nil // never answered
		case 1:
			return l.Write(rawssh.Refuse(id, l.number(), l.text()))
		case 2:
			return l.Write(rawssh.Confirm(id, l.number(), l.number()))
		case 3:
			if err := l.Write(rawssh.OnChannel(rawssh.ChannelClose, id)); err != nil {
				return err
			}
		}
	case roll == 0:
		return nil
	case roll == 1:
		if _, _, err := l.Answer(m); err != nil {
			return err
		}
	}
	_, _, err := l.Answer(m)
	return err
}

// lie sends messages until the client has gone.
func lie(c *rawssh.Conn, seed uint64) {
	if c.Handshake() != nil {
		return
	}
	heard := make(chan []byte)
	over := make(chan struct{})
	defer func() { <-over }()
	stop := make(chan struct{})
	defer close(stop)
	defer c.Close()
	go func() {
		defer close(over)
		defer close(heard)
		for {
			m, err := c.Read()
			if err != nil {
				return
			}
			select {
			case heard <- m:
			case <-stop:
				return
			}
		}
	}()
	l := &liar{Conn: c, Rand: rand.New(rand.NewPCG(seed, 1))}
	for m := range heard {
		if len(m) == 0 || l.answer(m) != nil {
			return
		}
		for range l.IntN(4) {
			if l.Write(l.message()) != nil {
				return
			}
		}
	}
}

//stepmux:faults vulnerabilities | A server breaks the protocol: the connection never ends | closing is bounded. The
//stepmux:more library leaves three goroutines behind, and 16 packets, if the server goes on sending
//stepmux:faults vulnerabilities | The opening of a channel never returns if the connection ends first | the wait
//stepmux:more ends with the connection. The library may leave a goroutine behind
func TestNoMessageOfAServerIsFatal(t *testing.T) {
	n := hostileCount(t, 4000) / 50 // about as many messages as a connection has
	first := rand.Uint64()
	before := liveheap.Bytes()
	t.Run("conversations", func(t *testing.T) { // it ends when all have
		for i := range n {
			seed := first + uint64(i)
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel() // some wait for bounds of the product to pass
				server := rawssh.Serve(t, func(c *rawssh.Conn) { lie(c, seed) })
				conn, err := mux.Dial(sshtest.Within(t), server.Addr, rawConfig(t, server))
				if err != nil {
					requireClear(t, err)
					return
				}
				defer conn.Close()
				callAll(t, conn, 20*time.Millisecond)
			})
		}
	})
	// The library may leave goroutines behind, and the memory that they hold: see Conn.
	left := liveheap.Bytes() - before
	require.Less(t, left, int64(hostileMemory+n*leftBehind))
	t.Logf("%d connections: %d KiB are left", n, left>>10)
}

// FuzzServer sends data to a client with an open channel, as messages with a length of two bytes before each.
func FuzzServer(f *testing.F) {
	for seed := range uint64(20) {
		l := &liar{Rand: rand.New(rand.NewPCG(seed, 2)), channels: []uint32{0, 1}}
		var data []byte
		for range 10 {
			m := l.message()
			m = m[:min(len(m), 1<<10)]
			data = append(binary.BigEndian.AppendUint16(data, uint16(len(m))), m...)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spoken := make(chan struct{})
		server := rawssh.Serve(t, func(c *rawssh.Conn) {
			defer close(spoken)
			over := false
			c.Each(func(m []byte) error {
				if over {
					return nil
				}
				_, granted, err := c.Answer(m)
				if err != nil || !granted {
					return err
				}
				for len(data) > 2 {
					n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
					if err := c.Write(data[2 : 2+n]); err != nil {
						return err
					}
					data = data[2+n:]
				}
				c.Write(rawssh.Bye(11, "bye"))
				c.NoMore()
				over = true
				return nil
			})
		})
		conn := dialRaw(t, server)
		p, err := conn.Start(sshtest.Within(t), mux.Command{Line: "x"})
		if err != nil {
			requireClear(t, err)
			requireCloses(t, conn)
			receive(t, spoken)
			return
		}
		read := inBackground(func() error {
			var buf [512]byte
			for {
				if _, err := p.Read(buf[:]); err != nil {
					return err
				}
			}
		})
		receive(t, conn.Done())
		requireClear(t, receive(t, read))
		requireClear(t, conn.Err())
		requireLost(t, conn.Err())
		if err := p.Wait(sshtest.Within(t)); err != nil {
			requireClear(t, err)
		}
		requireCloses(t, conn)
		receive(t, spoken)
	})
}

//stepmux:faults vulnerabilities | A peer never answers keepalives, or sends other messages instead | one keepalive is
//stepmux:more under way at a time; silence ends the connection
//stepmux:with mux.TestKeepaliveClosesADeadPeerWithinItsBound
func TestUnansweredPingsGatherNoGoroutines(t *testing.T) {
	// The server lives and sends something now and then, but it never answers.
	spoken := make(chan struct{})
	server := rawssh.Serve(t, func(c *rawssh.Conn) {
		c.Each(func(m []byte) error {
			if m[0] == rawssh.GlobalRequest {
				close(spoken) // a second one would panic: nobody asks while one is unanswered
			}
			return nil
		})
	})
	conn := dialRaw(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	first := inBackground(func() error { _, err := conn.Ping(ctx); return err })
	receive(t, spoken)
	before := runtime.NumGoroutine()
	for range 1000 {
		soon, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		_, err := conn.Ping(soon)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	require.Less(t, runtime.NumGoroutine(), before+100)
	cancel()
	require.ErrorIs(t, receive(t, first), context.Canceled)
	requireCloses(t, conn)
}
