package manager_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/liveheap"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// much is how many times a hostile client does something: make prove WHAT=hostile does more of it.
func much(usual, more int) int {
	if os.Getenv("STEPMUX_HOSTILE") != "" {
		return more
	}
	return usual
}

func TestHostileSSHClientsAreBounded(t *testing.T) { // not parallel: it measures the heap
	f := newFleet(t)
	s := f.serveSSH(t, false)
	stranger := sshtest.OpenSSH(t) // only for another key
	_, err := ssh.Dial("tcp", s.addr, loginOf(stranger, "any"))
	require.ErrorContains(t, err, "unable to authenticate")
	for i := range 100 { // clients that never authenticate
		stuck, err := net.Dial("tcp", s.addr)
		require.NoError(t, err)
		defer stuck.Close()
		if i%2 > 0 {
			_, _ = stuck.Write([]byte("SSH-2.0-x\r\n")) // and no more
		}
	}
	flood, err := net.Dial("tcp", s.addr)
	require.NoError(t, err)
	defer flood.Close()
	noise := bytes.Repeat([]byte("\xff\x00noise"), 8<<10)
	for err = nil; err == nil; { // until the server has closed it
		_, err = flood.Write(noise)
	}

	client := s.dial("any")
	var open []ssh.Channel
	refused := error(nil)
	for range 1000 {
		ch, requests, err := client.OpenChannel("session", nil)
		if err != nil {
			refused = err
			continue
		}
		go ssh.DiscardRequests(requests)
		open = append(open, ch)
	}
	require.Len(t, open, 128)
	require.ErrorContains(t, refused, "at most 128 channels")
	require.Equal(t, 0, s.slots(), "channels without a command need no slot")
	before := liveheap.Bytes()
	large := ssh.Marshal(struct{ Name, Value string }{"A", strings.Repeat("x", 30_000)})
	for range much(200, 1<<30/30_000) {
		ok, err := open[0].SendRequest("env", true, large)
		require.NoError(t, err)
		require.False(t, ok)
	}
	sized := func(columns uint32) []byte {
		return ssh.Marshal(struct{ Columns, Rows, Width, Height uint32 }{columns, columns, columns, columns})
	}
	terminal := ssh.Marshal(struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}{"xterm", 1 << 31, 0, 0, 0, strings.Repeat("x", 30_000)})
	for _, ch := range open {
		ok, err := ch.SendRequest("pty-req", true, terminal)
		require.NoError(t, err)
		require.True(t, ok)
		for i := range uint32(20) { // a window that changes its size, for nobody
			_, err := ch.SendRequest("window-change", false, sized(i<<28))
			require.NoError(t, err)
		}
	}
	for _, request := range []struct{ name, payload string }{
		{"exec", "\xff\xff\xff\xff"}, {"exec", ""}, {"subsystem", "x"}, {"signal", "TERM"}, {"pty-req", ""}, {"nonsense", ""},
	} {
		ok, err := open[1].SendRequest(request.name, true, []byte(request.payload))
		require.NoError(t, err)
		require.False(t, ok, request.name)
	}
	grown := liveheap.Bytes() - before
	t.Logf("all these requests: %d KiB", grown>>10)
	require.Less(t, grown, int64(2<<20))
	session, err := s.dial("any").NewSession()
	require.NoError(t, err)
	out, err := session.Output("echo others work")
	require.NoError(t, err)
	require.Equal(t, "others work\n", string(out))
}

// The commands do not read their input: the manager holds little beside the window of SSH itself, which is 2 MiB.
func TestHostileInputOfSSHClientsIsNotHeld(t *testing.T) { // not parallel: it measures the heap
	f := newFleet(t)
	s := f.serveSSH(t, false)
	client := s.dial("any")
	channels := much(8, 128)
	before := liveheap.Bytes()
	var written atomic.Int64
	for range channels {
		session, err := client.NewSession()
		require.NoError(t, err)
		in, err := session.StdinPipe()
		require.NoError(t, err)
		out, err := session.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, session.Start("echo up; exec sleep 600"))
		require.Equal(t, "up\n", read(t, out, 3))
		go func() { // it ends with the connection
			piece := make([]byte, 32<<10)
			for n, err := 0, error(nil); err == nil; written.Add(int64(n)) {
				n, err = in.Write(piece)
			}
		}()
	}
	// The window of each channel fills up, and then nothing more comes.
	last := int64(0)
	require.Eventually(t, func() bool {
		now := written.Load()
		grew := now > last
		last = now
		return !grew && last > int64(channels)*(2<<20)
	}, sshtest.Bound, 100*time.Millisecond)
	most, limit := liveheap.Bytes()-before, int64(channels)*(4<<20)
	t.Logf("%d channels: %d KiB each", channels, most>>10/int64(channels))
	require.Less(t, most, limit)
	other := s.dial("any")
	session, err := other.NewSession()
	require.NoError(t, err)
	out, err := session.Output("echo others work")
	require.NoError(t, err)
	require.Equal(t, "others work\n", string(out))
	require.NoError(t, errors.Join(other.Close(), client.Close()))
	s.free()
}
