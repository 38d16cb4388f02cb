package relay

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/proc"
)

// FuzzRelay feeds a relay with bytes after the hello, or with bytes on one of its streams. Every start request starts
// cat.
func FuzzRelay(f *testing.F) {
	start, err := wire.AppendRelayStart(
		nil,
		wire.RelayStart{Argv: []string{"sh", "-c", "true"}, Ready: "/tmp/gitlab-runner-steps/b/s"},
	)
	require.NoError(f, err)
	line, err := wire.AppendRelayStart(nil, wire.RelayStart{Line: "true", Dir: "/", Env: []string{"A=b"}})
	require.NoError(f, err)
	connect, err := wire.AppendRelayConnect(nil, wire.RelayConnect{Path: "/tmp/gitlab-runner-steps/b/s", Wait: 1})
	require.NoError(f, err)
	frames := wire.AppendFrame(nil, wire.FrameData, []byte("hello"))
	frames = wire.RelayCredit{
		Kind: wire.FrameStderr,
		N:    1,
	}.Append(
		wire.RelayCredit{Kind: wire.FrameData, N: 9}.Append(frames),
	)
	frames = wire.AppendFrame(wire.AppendFrame(frames, wire.FrameSignal, []byte("USR1")), wire.FrameEnd, nil)
	for _, request := range [][]byte{start, line, connect} {
		f.Add(append(bytes.Clone(request), frames...), true)
		f.Add(inYamux(append(bytes.Clone(request), frames...)), false)
		f.Add(append(bytes.Clone(request), 'D', 0xff, 0xff, 0xff), true)
	}
	f.Add([]byte{1, 0xff, 0xff, 0xff}, true)
	f.Add([]byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, false) // ping, go away
	f.Fuzz(func(t *testing.T, data []byte, onStream bool) {
		if onStream {
			data = inYamux(data)
		}
		in, out, ended := relayHere(t, t.Context(), defaultLimits, startCat)
		var read sync.WaitGroup
		read.Go(func() { io.Copy(io.Discard, out) })
		in.Write(append([]byte(wire.ManagerHello(wire.RelayVersion)), data...)) // fails once it has ended
		in.Close()
		<-ended
		read.Wait()
		require.Empty(t, proc.ListChildren())
	})
}

// startCat starts cat.
func startCat(_ string, _ []string, attr *syscall.ProcAttr) (int, error) {
	safe := *attr
	safe.Dir, safe.Env = "/", os.Environ()
	return syscall.ForkExec("/bin/cat", []string{"cat"}, &safe)
}

// inYamux returns data as one stream: opened, sent, closed.
func inYamux(data []byte) []byte {
	header := func(kind byte, flags uint16, n int) []byte {
		b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
		b = binary.BigEndian.AppendUint32(b, 1)
		return binary.BigEndian.AppendUint32(b, uint32(n))
	}
	const syn, fin = 1, 4
	b := append(header(1, syn, 0), header(0, 0, len(data))...)
	return append(append(b, data...), header(1, fin, 0)...)
}
