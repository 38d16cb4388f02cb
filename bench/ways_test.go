package bench

import (
	"context"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/mux"
)

// A way leads to a socket on the VM.
type way struct {
	name  string
	every int // as a candidate's, where it is opened anew each time
	open  func(path string) (io.ReadWriteCloser, error)
}

// hasGoal reports whether the way is ours, and held to how fast it is.
func (w way) hasGoal() bool {
	return slices.Contains([]string{"streamlocal", "relay", "session"}, w.name)
}

// dialer is a connection or its relay.
type dialer interface {
	DialUnix(ctx context.Context, path string) (*mux.Stream, error)
}

// unixWay is the socket itself, as only those on the VM can reach it: the floor.
func unixWay() way {
	return way{name: "unix", open: func(path string) (io.ReadWriteCloser, error) { return net.Dial("unix", path) }}
}

// rawWay is a channel of the SSH library.
func rawWay(client *ssh.Client) way {
	return way{name: "raw", open: func(path string) (io.ReadWriteCloser, error) { return client.Dial("unix", path) }}
}

// dialWay is a stream of a connection or its relay.
func dialWay(b *testing.B, name string, d dialer) way {
	return way{name: name, open: func(path string) (io.ReadWriteCloser, error) { return d.DialUnix(b.Context(), path) }}
}

// streamlocalWay is a channel of a connection of its own.
func (v *vm) streamlocalWay(b *testing.B) way {
	b.Helper()
	return dialWay(b, "streamlocal", v.dial(b))
}

// relayWay is a stream of the relay of a connection of its own.
func (v *vm) relayWay(b *testing.B) way {
	b.Helper()
	return dialWay(b, "relay", v.relay(b, v.dial(b)))
}

// processWay is a program that joins its standard input and output to the socket, the last of its arguments.
func processWay(b *testing.B, name string, s starter, argv ...string) way {
	return way{name: name, every: 5, open: func(path string) (io.ReadWriteCloser, error) {
		return s.Start(b.Context(), mux.Command{Argv: append(argv[:len(argv):len(argv)], path)})
	}}
}

// sessionWay is our own such program in a session, on a connection of its own.
func (v *vm) sessionWay(b *testing.B) way {
	b.Helper()
	return processWay(b, "session", v.dial(b), stepmux(b), "steps", "proxy", "--socket")
}

const iocopyName = "io.Copy"

// iocopyWay is the obvious such program, likewise.
func (v *vm) iocopyWay(b *testing.B) way {
	b.Helper()
	return processWay(b, iocopyName, v.dial(b), iocopy(b))
}

// controlMasterWay is our own such program, run by OpenSSH's client over the connection of its master.
func (v *vm) controlMasterWay(b *testing.B) (way, error) {
	b.Helper()
	client, err := newOpenSSHClient(b, v)
	if err != nil {
		return way{}, err
	}
	program := stepmux(b)
	return way{name: "control-master", every: 5, open: func(path string) (io.ReadWriteCloser, error) {
		return startCommandStream(b.Context(), client.shared([]string{program, "steps", "proxy", "--socket", path}))
	}}, nil
}

// allWays returns all of them, beginning with the one the others are compared with. Each has a connection
// of its own, for sshd's work grows with the number of channels on one.
func (v *vm) allWays(b *testing.B) []way {
	b.Helper()
	all := append(v.channelWays(b), unixWay(), v.sessionWay(b), v.iocopyWay(b))
	master, err := v.controlMasterWay(b)
	if err != nil {
		missing(b, "control-master", err)
		return all
	}
	return append(all, master)
}

// stockSessions is how many sessions at once a connection has of a stock sshd, while others end.
const stockSessions = 8

// waysFor returns those by which n streams of a connection go with stock limits.
func (v *vm) waysFor(b *testing.B, n int) []way {
	b.Helper()
	if n <= stockSessions {
		return v.allWays(b)
	}
	return append(v.channelWays(b), unixWay())
}

// channelWays returns those that start no process for each stream.
func (v *vm) channelWays(b *testing.B) []way {
	b.Helper()
	return append([]way{rawWay(v.client(b))}, v.routes(b)...)
}

// routes returns those of them that are ours.
func (v *vm) routes(b *testing.B) []way {
	b.Helper()
	return []way{v.streamlocalWay(b), v.relayWay(b)}
}

// stream opens a stream and waits until it works.
func (w way) stream(b *testing.B, path string) io.ReadWriteCloser {
	b.Helper()
	s, err := w.open(path)
	require.NoError(b, err, w.name)
	b.Cleanup(func() { s.Close() })
	require.NoError(b, ping(s), w.name)
	return s
}

// streams opens n streams.
func (w way) streams(b *testing.B, n int, path string) []io.ReadWriteCloser {
	b.Helper()
	all := make([]io.ReadWriteCloser, n)
	for i := range all {
		all[i] = w.stream(b, path)
	}
	return all
}

// atOnce calls do for all streams at the same time.
func atOnce(streams []io.ReadWriteCloser, do func(s io.ReadWriter) error) error {
	var group errgroup.Group
	for _, s := range streams {
		group.Go(func() error { return do(s) })
	}
	return group.Wait()
}
