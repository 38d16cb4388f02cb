package mux_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/liveheap"
	"github.com/stepmux/stepmux/internal/testing/rawssh"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// hostileMemory bounds the memory that a hostile server can make a connection hold.
const hostileMemory = 64 << 20

// hostileCount is how many messages a hostile server sends in a test: STEPMUX_HOSTILE, or fewer.
func hostileCount(t testing.TB, usual int) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("STEPMUX_HOSTILE"), strconv.Itoa(usual)))
	require.NoError(t, err, "STEPMUX_HOSTILE")
	return n
}

// rawConfig returns how to log in to s, with a limit on how long a server may be silent that no test meets.
func rawConfig(t testing.TB, s *rawssh.Server) *mux.Config {
	t.Helper()
	key, _ := sshtest.NewKey(t)
	return &mux.Config{
		User:     "any",
		Auth:     []login.Auth{login.Key("of the test", key)},
		HostKeys: login.PinnedHostKeys(s.HostKey),
	}
}

func dialRaw(t testing.TB, s *rawssh.Server) *mux.Conn {
	t.Helper()
	conn, err := mux.Dial(sshtest.Within(t), s.Addr, rawConfig(t, s))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// requireCloses checks that Close returns.
func requireCloses(t testing.TB, conn *mux.Conn) {
	t.Helper()
	require.NoError(t, receive(t, inBackground(conn.Close)))
}

// floods are messages that a server may send without end: the connection lives on, and keeps no memory of them. Each
// returns message number i about the client's channel id.
var floods = map[string]func(i int, id uint32) []byte{
	"replies to requests that nobody made": func(i int, id uint32) []byte {
		return [][]byte{
			rawssh.OnChannel(rawssh.ChannelSuccess, id), rawssh.OnChannel(rawssh.ChannelFailure, id),
			{rawssh.RequestSuccess, 1, 2, 3},
			{rawssh.RequestFailure},
		}[i%4]
	},
	"requests on the channel that want replies": func(i int, id uint32) []byte {
		return rawssh.Request(id, "x"+strconv.Itoa(i), true, make([]byte, i%100))
	},
	"exit statuses with too little or too much in them": func(i int, id uint32) []byte {
		n := i % 9
		if n >= 4 {
			n++
		}
		return rawssh.Request(id, "exit-status", i%2 == 0, make([]byte, n))
	},
	"exit signals with wrong lengths": func(i int, id uint32) []byte {
		return rawssh.Request(id, "exit-signal", false, binary.BigEndian.AppendUint32(nil, uint32(i)<<16|0xffff))
	},
	"requests that want replies": func(i int, _ uint32) []byte {
		return rawssh.Global("hostkeys-00@openssh.com", true, make([]byte, i%100))
	},
	"channels that are opened": func(i int, _ uint32) []byte {
		kind := []string{"session", "x11", "forwarded-tcpip", "auth-agent@openssh.com", ""}[i%5]
		return rawssh.Open(kind, uint32(i), 1<<31, uint32(i%2)<<15, []byte("x"))
	},
	"what is to be ignored": func(i int, _ uint32) []byte {
		return append([]byte{[]byte{rawssh.Ignore, rawssh.Debug}[i%2]}, make([]byte, 100)...)
	},
	"pings": func(i int, _ uint32) []byte {
		return ssh.Marshal(struct {
			Data string `sshtype:"192"`
		}{"data"})
	},
	"data of an unknown kind": func(i int, id uint32) []byte {
		return rawssh.Extended(id, uint32(2+i), make([]byte, 100))
	},
	"data without a byte": func(i int, id uint32) []byte { return rawssh.Extended(id, uint32(i%2), nil) },
	"windows that do not grow": func(_ int, id uint32) []byte {
		return rawssh.OnChannel(rawssh.WindowAdjust, id, 0, 0, 0, 0)
	},
	"ends of the stream": func(_ int, id uint32) []byte { return rawssh.OnChannel(rawssh.ChannelEOF, id) },
	"requests on channels that are not there": func(i int, _ uint32) []byte {
		return rawssh.Request(1<<20+uint32(i), "exit-status", true, nil)
	},
	"output that somebody reads": func(i int, id uint32) []byte { return rawssh.Extended(id, 1, []byte("x")) },
}

//stepmux:faults vulnerabilities | Malformed or unrequested answers of an agent or a server (CVE-2025-47913,
//stepmux:more CVE-2025-47914, CVE-2025-58181) | they are dropped; an agent has a deadline; no GSSAPI is spoken
//stepmux:with mux/login.TestAgentThatIsGoneOrHangsIsAClearError
//stepmux:with internal/promises.TestLibrariesAreOfVersionsWithoutKnownVulnerabilities
//stepmux:faults vulnerabilities | Channels that were refused are kept | the server's are refused and forgotten
func TestFloodsOfAHostileServerCostNoMemory(t *testing.T) {
	n := hostileCount(t, 20_000)
	for name, message := range floods {
		t.Run(name, func(t *testing.T) {
			go_, sent := make(chan struct{}), make(chan error, 1)
			var most int64
			server := rawssh.Serve(t, func(c *rawssh.Conn) {
				ready := make(chan uint32, 1)
				done := make(chan struct{})
				go func() {
					defer close(done)
					id, ok := <-ready
					if !ok {
						return
					}
					<-go_
					before := liveheap.Bytes()
					for i := range n {
						if err := c.Queue(message(i, id)); err != nil {
							sent <- err
							return
						}
						if i%(n/8) == 0 {
							most = max(most, liveheap.Bytes()-before)
						}
					}
					sent <- c.WriteRaw(nil)
				}()
				c.Each(func(message []byte) error {
					id, granted, err := c.Answer(message)
					if granted {
						ready <- id
					}
					return err
				})
				close(ready)
				<-done
			})
			conn := dialRaw(t, server)
			p, err := conn.Start(sshtest.Within(t), mux.Command{Line: "x"})
			require.NoError(t, err)
			close(go_)
			require.NoError(t, receiveWithin(t, sshtest.Bound*time.Duration(1+n/100_000), sent), "the connection takes it")
			_, err = conn.Ping(sshtest.Within(t)) // the answer comes after all the messages
			require.NoError(t, err)
			require.NoError(t, conn.Err())
			require.Less(t, most, int64(hostileMemory), "%d messages", n)
			t.Logf("%d messages: at most %d KiB", n, most>>10)
			p.Close()
			requireCloses(t, conn)
		})
	}
}

// requireClear checks that an error is of a length that can be read, whatever the server has put into it.
func requireClear(t testing.TB, err error) {
	t.Helper()
	require.LessOrEqual(t, len(err.Error()), 4<<10)
}

// clientCalls are the calls that a manager makes on a connection.
var clientCalls = []func(context.Context, *mux.Conn) error{
	func(ctx context.Context, c *mux.Conn) error {
		p, err := c.Start(ctx, mux.Command{Line: "x", Input: []byte("input")})
		if err != nil {
			return err
		}
		defer p.Close()
		_, _ = io.CopyN(io.Discard, readUntil(ctx, p), 1<<20)
		_ = p.CloseWrite()
		return p.Wait(ctx)
	},
	func(ctx context.Context, c *mux.Conn) error {
		s, err := c.DialUnix(ctx, "/x")
		if err != nil {
			return err
		}
		defer s.Close()
		stop := context.AfterFunc(ctx, func() { s.Close() })
		defer stop()
		if _, err := s.Write(make([]byte, 100<<10)); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, s)
		return err
	},
	func(ctx context.Context, c *mux.Conn) error {
		r, err := c.Relay(ctx, mux.Command{Line: "relay"})
		if err == nil {
			_, err = r.Start(ctx, mux.Command{Line: "x"})
		}
		return err
	},
	func(ctx context.Context, c *mux.Conn) error { _, _, err := c.CountSessions(ctx, 5); return err },
	func(ctx context.Context, c *mux.Conn) error { _, err := c.Ping(ctx); return err },
	func(ctx context.Context, c *mux.Conn) error {
		r, err := c.Reserve(ctx, 2)
		if err == nil {
			r.Release()
		}
		return err
	},
	func(ctx context.Context, c *mux.Conn) error {
		s, err := c.StartSpare(ctx, mux.Command{Line: "x"})
		if err == nil {
			s.Close()
		}
		return err
	},
}

// readUntil reads from p until ctx ends.
func readUntil(ctx context.Context, p *mux.Process) io.Reader {
	context.AfterFunc(ctx, func() { p.Close() })
	return p
}

// callAll makes all calls at once for a moment, closes the connection, and checks their errors.
func callAll(t testing.TB, conn *mux.Conn, moment time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), moment)
	defer cancel()
	var calls []<-chan error
	for _, call := range clientCalls {
		calls = append(calls, inBackground(func() error { return call(ctx, conn) }))
	}
	for _, call := range calls {
		if err := receive(t, call); err != nil {
			requireClear(t, err)
		}
	}
	requireCloses(t, conn)
	require.Error(t, conn.Err())
	requireClear(t, conn.Err())
	if !errors.Is(conn.Err(), mux.ErrClosed) {
		lost := (*mux.ConnError)(nil)
		require.ErrorAs(t, conn.Err(), &lost)
	}
	_, err := conn.Start(t.Context(), mux.Command{Line: "x"})
	require.Error(t, err)
}

//stepmux:faults vulnerabilities | Long texts of a server, or texts with control characters, in messages | errors cut
//stepmux:more them, and leave out control characters
//stepmux:with mux.TestHostileLoginsEndInAnErrorThatSaysWhy
func TestRefusalsAreClearHoweverLong(t *testing.T) {
	for _, code := range []uint32{0, 1, 2, 3, 4, 5, 1 << 31} {
		server := rawssh.Serve(t, func(c *rawssh.Conn) {
			c.Each(func(message []byte) error {
				if message[0] != rawssh.ChannelOpen {
					_, _, err := c.Answer(message)
					return err
				}
				kind := int(binary.BigEndian.Uint32(message[1:]))
				id := binary.BigEndian.Uint32(message[5+kind:])
				return c.Write(rawssh.Refuse(id, code, "because "+strings.Repeat("\x1b[2J\xff", 30<<10)))
			})
		})
		conn := dialRaw(t, server)
		_, err := conn.DialUnix(sshtest.Within(t), "/x")
		require.ErrorContains(t, err, "because")
		requireClear(t, err)
		refusal := (*ssh.OpenChannelError)(nil)
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, ssh.RejectionReason(code), refusal.Reason)
		_, refused, err := conn.CountSessions(sshtest.Within(t), 3)
		require.NoError(t, err)
		require.True(t, refused)
		requireCloses(t, conn)
	}
}

//stepmux:faults vulnerabilities | Output in packets of a byte each, without a reader | at most the window of 2 MiB is
//stepmux:more under way; the library needs about 50 bytes of memory for each of its bytes
func TestOutputThatNobodyReadsIsBounded(t *testing.T) {
	// The SSH library keeps each packet by itself, so a packet of a single byte costs much more than a byte. At most the
	// window of 2 MiB can wait.
	const perByte = 64
	n := min(hostileCount(t, 50_000), 2<<20)
	granted, sent := make(chan struct{}), make(chan error, 1)
	server := rawssh.Serve(t, func(c *rawssh.Conn) {
		c.Each(func(m []byte) error {
			id, start, err := c.Answer(m)
			if err != nil || !start {
				return err
			}
			<-granted
			for range n {
				if err := c.Queue(rawssh.Data(id, []byte("x"))); err != nil {
					sent <- err
					return err
				}
			}
			sent <- c.WriteRaw(nil)
			return nil
		})
	})
	conn := dialRaw(t, server)
	p, err := conn.Start(sshtest.Within(t), mux.Command{Line: "x"})
	require.NoError(t, err)
	before := liveheap.Bytes()
	close(granted)
	require.NoError(t, receive(t, sent))
	_, err = conn.Ping(sshtest.Within(t))
	require.NoError(t, err)
	require.Less(t, liveheap.Bytes()-before, int64(perByte*n+1<<20))
	got, err := io.CopyN(io.Discard, p, int64(n))
	require.NoError(t, err, "%d bytes came", got)
	p.Close()
	requireCloses(t, conn)
}
