package proc

import (
	"bytes"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCommandSurvivesTheWay(t *testing.T) {
	c := &Command{
		Argv:      []string{"sh", "", "-c", "\xff\n"},
		Dir:       "/tmp",
		Env:       []string{"A=1", "B=", "A=2", "C==x"},
		OrphanDir: "/tmp/x",
	}
	o, err := decodeCommand(encodeCommand(c))
	require.NoError(t, err)
	require.Equal(t, &order{dir: c.Dir, orphanDir: c.OrphanDir, argv: c.Argv, env: []string{"A=2", "B=", "C==x"}}, o)
	require.Len(t, c.Env, 4, "it was changed")
}

func TestExitSurvivesTheWay(t *testing.T) {
	usage := &syscall.Rusage{Utime: syscall.Timeval{Sec: 3, Usec: 5}, Stime: syscall.Timeval{Usec: 7}, Maxrss: 100}
	exit, err := decodeExited(encodeExited(9|0x80, usage)) // SIGKILL, core dumped
	require.NoError(t, err)
	require.Equal(t, Exit{
		Code: 137, Signal: unix.SIGKILL,
		UserTime: 3*time.Second + 5*time.Microsecond, SystemTime: 7 * time.Microsecond, MaxRSS: 100 << 10,
	}, exit)
	for _, bad := range [][]byte{nil, {1}, {1, 2, 3, 0x80}, {1, 2, 3, 4, 5}} {
		_, err := decodeExited(bad)
		require.ErrorIs(t, err, errMessage)
	}
}

func FuzzDecodeCommandTakesWhatEncodeCommandGives(f *testing.F) {
	f.Add(encodeCommand(&Command{Argv: []string{"sh", "-c", "x"}, Dir: "/", Env: []string{"A=b"}}))
	f.Add([]byte{0, 0, 1, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := decodeCommand(data)
		if err != nil {
			return
		}
		again := appendStrings(appendStrings(appendString(appendString(nil, o.dir), o.orphanDir), o.argv), o.env)
		// A number may have been encoded in more bytes than necessary: the bytes may differ, the values may not.
		o2, err := decodeCommand(again)
		require.NoError(t, err)
		require.Equal(t, o, o2)
	})
}

func FuzzReceiveIsBounded(f *testing.F) {
	f.Add([]byte("T\x00\x00\x00\x00"))
	f.Add([]byte("C\xff\xff\xff\xffx"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return // more than a pipe takes at once
		}
		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer r.Close()
		_, err = w.Write(data)
		require.NoError(t, err)
		w.Close()
		c := &channel{r}
		for {
			_, payload, err := c.receive(maxReply)
			require.LessOrEqual(t, len(payload), maxReply)
			if err != nil {
				break
			}
		}
	})
}

func TestMessagesAreReadAsTheyWereSent(t *testing.T) {
	ours, theirs, err := channelPair()
	require.NoError(t, err)
	defer ours.close()
	shim := &channel{theirs}
	defer shim.close()
	payload := bytes.Repeat([]byte("x"), 1000)
	require.NoError(t, ours.send(frameCommand, payload))
	require.NoError(t, ours.send(frameTerm, nil))
	ours.closeWrite()
	kind, got, err := shim.receive(1000)
	require.NoError(t, err)
	require.Equal(t, byte(frameCommand), kind)
	require.Equal(t, payload, got)
	kind, got, err = shim.receive(0)
	require.NoError(t, err)
	require.Equal(t, byte(frameTerm), kind)
	require.Empty(t, got)
	_, _, err = shim.receive(0)
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, shim.send(frameExited, []byte{1}), "the way back is open")
	_, _, err = ours.receive(0)
	require.ErrorContains(t, err, "the limit is 0")
}
