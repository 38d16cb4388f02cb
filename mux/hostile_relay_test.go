package mux_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/liveheap"
	"github.com/stepmux/stepmux/internal/testing/rawssh"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// sessionEnd is the server's end of a session channel as a stream. It keeps to the window.
type sessionEnd struct {
	conn *rawssh.Conn
	id   uint32
	in   *io.PipeReader

	mu     sync.Mutex // guards the following
	more   *sync.Cond
	window int
	over   bool
}

func (s *sessionEnd) Read(p []byte) (int, error) { return s.in.Read(p) }

func (s *sessionEnd) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		s.mu.Lock()
		for s.window == 0 && !s.over {
			s.more.Wait()
		}
		n, over := min(len(p), s.window, 32<<10), s.over
		s.window -= n
		s.mu.Unlock()
		if over {
			return total, io.ErrClosedPipe
		}
		if err := s.conn.Write(rawssh.Data(s.id, p[:n])); err != nil {
			return total, err
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

// grow changes the window, or ends the stream.
func (s *sessionEnd) grow(n int, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window += n
	s.over = s.over || over
	s.more.Broadcast()
}

// CloseWrite tells the manager that nothing more comes.
func (s *sessionEnd) CloseWrite() error {
	return s.conn.Write(rawssh.OnChannel(rawssh.ChannelEOF, s.id))
}

func (s *sessionEnd) Close() error {
	s.grow(0, true)
	return s.conn.Close()
}

// relayServer is a VM whose relay has said hello and then does as a script tells.
func relayServer(t testing.TB, script func(*sessionEnd)) *rawssh.Server {
	return rawssh.Serve(t, func(c *rawssh.Conn) {
		near, far := io.Pipe()
		var running sync.WaitGroup
		defer running.Wait()
		s := &sessionEnd{conn: c, in: near, window: 64 * (32 << 10)}
		s.more = sync.NewCond(&s.mu)
		defer s.Close()
		defer far.Close()
		c.Each(func(m []byte) error {
			switch m[0] {
			case rawssh.ChannelData:
				if _, err := far.Write(m[9:]); err != nil {
					return err
				}
				grant := binary.BigEndian.AppendUint32(nil, uint32(len(m)-9))
				return c.Write(rawssh.OnChannel(rawssh.WindowAdjust, s.id, grant...))
			case rawssh.WindowAdjust:
				s.grow(int(binary.BigEndian.Uint32(m[5:])), false)
				return nil
			}
			id, granted, err := c.Answer(m)
			if err != nil || !granted {
				return err
			}
			s.id = id
			running.Go(func() {
				defer near.Close()
				if _, err := wire.ReadManagerHello(near); err != nil {
					return
				}
				if _, err := s.Write([]byte(wire.RelayHello(wire.RelayVersion))); err != nil {
					return
				}
				script(s)
			})
			return nil
		})
	})
}

// raw is a piece of yamux.
func raw(kind byte, flags uint16, id, n uint32) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, id), n)
}

//stepmux:faults vulnerabilities | The multiplexer in a channel is flooded with pings, or with streams that no one
//stepmux:more accepts | the manager accepts no stream and answers one ping a second; a peer that does more ends the
//stepmux:more relay
//stepmux:with internal/streams.TestAPeerThatBreaksTheProtocolEndsTheSession
func TestRelayThatFloodsIsEndedAndCostsNoMemory(t *testing.T) {
	n := hostileCount(t, 100_000)
	for name, tc := range map[string]struct {
		piece []byte
		want  string // how it ends; empty if it is taken
	}{
		"pings that nobody answers to":    {raw(2, 1, 0, 7), "pings more"},
		"opens streams with much in them": {append(raw(0, 1, 2, 1<<10), make([]byte, 1<<10)...), "opened a stream"},
		"answers what nobody asked":       {raw(2, 2, 0, 7), ""},
		"says things on no stream":        {append(raw(0, 0, 77, 3), "abc"...), ""},
		"grants windows of no stream":     {raw(1, 0, 77, 1<<31), ""},
		"resets no stream":                {raw(1, 8, 77, 0), ""},
		"is of another version":           {[]byte{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, "makes no sense"},
		"is of an unknown type":           {raw(9, 0, 0, 0), "makes no sense"},
	} {
		t.Run(name, func(t *testing.T) {
			var most int64
			goroutines := runtime.NumGoroutine()
			sent := make(chan error, 1)
			server := relayServer(t, func(s *sessionEnd) {
				defer close(sent)
				before := liveheap.Bytes()
				pieces := bytes.Repeat(tc.piece, 100)
				for i := range n / 100 {
					if _, err := s.Write(pieces); err != nil {
						sent <- err
						return
					}
					if i%(n/800) == 0 {
						most = max(most, liveheap.Bytes()-before)
					}
				}
				sent <- nil
				_, _ = io.Copy(io.Discard, s)
			})
			conn := dialRaw(t, server)
			r, err := conn.Relay(sshtest.Within(t), mux.Command{Line: "relay"})
			require.NoError(t, err)
			if tc.want == "" {
				require.NoError(t, receive(t, sent))
				_, err = conn.Ping(sshtest.Within(t))
				require.NoError(t, err)
				require.NoError(t, r.Err())
			} else {
				receive(t, r.Done())
				failed := (*relay.Error)(nil)
				require.ErrorAs(t, r.Err(), &failed)
				require.ErrorContains(t, r.Err(), tc.want)
			}
			require.Less(t, runtime.NumGoroutine(), goroutines+200)
			requireCloses(t, conn)
			receive(t, inBackground(func() error {
				for range sent {
				}
				return nil
			}))
			require.Less(t, most, int64(hostileMemory))
		})
	}
}

// badFrames answers each request, and then sends frames that are malformed or out of place.
func badFrames(s io.ReadWriteCloser, n int, seed uint64) {
	session, err := yamux.Server(s, yamuxConfig())
	if err != nil {
		return
	}
	defer session.Close()
	var streams sync.WaitGroup
	defer streams.Wait()
	for i := uint64(0); ; i++ {
		stream, err := session.AcceptStream()
		if err != nil {
			return
		}
		streams.Go(func() {
			defer stream.Close()
			rnd := rand.New(rand.NewPCG(seed, i))
			if _, err := wire.ReadRelayRequest(stream); err != nil {
				return
			}
			frames := wire.AppendRelayResponse(nil, wire.RelayResponse{Code: wire.RelayOK})
			for range n { // nothing in them, or what is to come to nothing
				frames = append(frames, [][]byte{{'D', 0, 0, 0}, {'S', 0, 0, 0}, {'C', 0, 0, 5, 'D', 0, 0, 0, 0}}[rnd.IntN(3)]...)
				if len(frames) > 32<<10 {
					if _, err := stream.Write(frames); err != nil {
						return
					}
					frames = frames[:0]
				}
			}
			bad := make([]byte, rnd.IntN(64))
			for j := range bad {
				bad[j] = byte(rnd.Uint32())
			}
			end := [][]byte{
				{'X', 0xff, 0xff, 0xff},
				{'X', 0, 0, 0},
				{'X', 0, 0, 1, 9},
				{'D', 1, 0, 1},
				{'C', 0, 0, 5, 'D', 0xff, 0xff, 0xff, 0xff},
				{'E', 0, 0, 0, 'D', 0, 0, 1, 'x'},
				{'K', 0, 0, 0},
				{'?', 0, 0, 0},
				bad,
				{},
			}[rnd.IntN(10)]
			_, _ = stream.Write(append(frames, end...))
		})
	}
}

//stepmux:faults vulnerabilities | Malformed frames count as a clean end | a malformed frame ends its stream, as a
//stepmux:more failure
func TestMalformedFramesOfARelayEndTheirStreamOnly(t *testing.T) {
	n := hostileCount(t, 100_000)
	const each = 1000 // frames a stream
	server := relayServer(t, func(s *sessionEnd) { badFrames(s, each, 1) })
	conn := dialRaw(t, server)
	r, err := conn.Relay(sshtest.Within(t), mux.Command{Line: "relay"})
	require.NoError(t, err)
	before, most := liveheap.Bytes(), int64(0)
	for i := range max(n/each, 1) {
		if i%2 == 0 {
			p, err := r.Start(sshtest.Within(t), mux.Command{Line: "x"})
			require.NoError(t, err, "stream %d", i)
			_, err = io.Copy(io.Discard, p)
			_ = err // what was said before the end
			require.Error(t, p.Wait(sshtest.Within(t)), "no end that makes sense is a good one")
			p.Close()
		} else {
			s, err := r.DialUnix(sshtest.Within(t), "/x")
			require.NoError(t, err)
			if _, err = io.Copy(io.Discard, s); err != nil {
				requireClear(t, err)
			}
			s.Close()
		}
		if i%max(n/each/20, 1) == 0 {
			most = max(most, liveheap.Bytes()-before)
		}
	}
	require.NoError(t, r.Err())
	require.Less(t, most, int64(hostileMemory))
	t.Logf("%d frames: at most %d KiB", n, most>>10)
	eventually(t, func() bool { return r.Streams() == 0 })
	requireCloses(t, conn)
}

// yamuxConfig is that of the library, as a peer of another make.
func yamuxConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.AcceptBacklog = 1024
	cfg.EnableKeepAlive = false
	cfg.MaxStreamWindowSize = wire.MaxRelayWindow
	cfg.StreamOpenTimeout = 0
	cfg.LogOutput = io.Discard
	return cfg
}

// FuzzRelayEnd sends data to a manager as a relay would: as yamux itself, or on the stream of a request.
func FuzzRelayEnd(f *testing.F) {
	f.Add([]byte("D\x00\x00\x01xX\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00"), true)
	f.Add(raw(2, 1, 0, 7), false)
	f.Add(append(raw(1, 2, 1, 0), append(raw(0, 0, 1, 7), "\x00\x00\x00\x03\x00\x00\x00"...)...), false)
	f.Fuzz(func(t *testing.T, data []byte, onStream bool) {
		server := relayServer(t, func(s *sessionEnd) {
			if !onStream {
				if _, err := s.Write(data); err == nil {
					_ = s.CloseWrite()
				}
				return // no more is read
			}
			session, err := yamux.Server(s, yamuxConfig())
			if err != nil {
				return
			}
			defer session.Close()
			stream, err := session.AcceptStream()
			if err != nil {
				return
			}
			defer stream.Close()
			if _, err := wire.ReadRelayRequest(stream); err == nil {
				_, _ = stream.Write(append(wire.AppendRelayResponse(nil, wire.RelayResponse{}), data...))
			}
		})
		conn := dialRaw(t, server)
		defer requireCloses(t, conn)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the go command allows an input 10 s
		defer cancel()
		r, err := conn.Relay(ctx, mux.Command{Line: "relay"})
		if err != nil {
			requireClear(t, err)
			return
		}
		p, err := r.Start(ctx, mux.Command{Line: "x"})
		if err != nil {
			requireClear(t, err)
			return
		}
		defer p.Close()
		out, err := io.ReadAll(p)
		require.LessOrEqual(t, len(out), len(data))
		if err != nil {
			requireClear(t, err)
		}
		if err := p.Wait(ctx); err != nil {
			requireClear(t, err)
		} else {
			require.True(t, saysGoodEnd(data, onStream), "only the relay's word ends a process well")
		}
	})
}

// saysGoodEnd reports whether data has the frame of an exit with status 0 anywhere.
func saysGoodEnd(data []byte, onStream bool) bool {
	return bytes.Contains(data, wire.RelayExit{}.Append(nil)) || !onStream
}
