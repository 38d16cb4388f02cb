package proc

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

func TestCommandSurvivesTheWay(t *testing.T) {
	c := &Command{
		Argv:    []string{"sh", "", "-c", "\xff\n"},
		Dir:     "/tmp",
		Env:     []string{"A=1", "B=", "A=2", "C==x"},
		Visible: "/tmp/x",
	}
	o, err := decodeCommand(encodeCommand(c))
	require.NoError(t, err)
	require.Equal(t, &Command{Dir: c.Dir, Visible: c.Visible, Argv: c.Argv, Env: []string{"A=2", "B=", "C==x"}}, o)
	require.Len(t, c.Env, 4, "it was changed")
}

func TestExitSurvivesTheWay(t *testing.T) {
	usage := &syscall.Rusage{Utime: syscall.Timeval{Sec: 3, Usec: 5}, Stime: syscall.Timeval{Usec: 7}, Maxrss: 100}
	exit := exited(1, 9|0x80, usage).exit() // SIGKILL, core dumped
	require.Equal(t, Exit{
		Code: 137, Signal: unix.SIGKILL,
		UserTime: 3*time.Second + 5*time.Microsecond, SystemTime: 7 * time.Microsecond, MaxRSS: 100 << 10,
	}, exit)
}

func FuzzDecodeCommandReversesEncodeCommand(f *testing.F) {
	f.Add(encodeCommand(&Command{Argv: []string{"sh", "-c", "x"}, Dir: "/", Env: []string{"A=b"}}))
	f.Add([]byte("/\x00\x001\x00"))
	f.Add([]byte("/\x00\x0099999999999999999999\x00sh"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := decodeCommand(data)
		if err != nil {
			return
		}
		// The number may have been written otherwise, and the environment may have had a key twice.
		o2, err := decodeCommand(encodeCommand(o))
		require.NoError(t, err)
		o.Env = LastOfEachKey(o.Env)
		require.Equal(t, o, o2)
	})
}

func TestMessagesAreReadAsTheyWereSent(t *testing.T) {
	ours, theirs, err := channelPair()
	require.NoError(t, err)
	defer ours.Close()
	defer theirs.Close()
	c := &Command{Argv: []string{"sh"}, Dir: "/", Env: []string{}}
	out, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer out.Close()
	require.NoError(t, sendFiles(ours, message{messageCommand, 7}, encodeCommand(c), out, out, out))
	theirFD := int(theirs.Fd())
	m, err := receive(theirFD)
	require.NoError(t, err)
	require.Equal(t, message{messageCommand, 7}, m.message)
	got, err := decodeCommand(m.text)
	require.NoError(t, err)
	require.Equal(t, c, got)
	require.Len(t, m.files, 3)
	for _, fd := range m.files {
		require.NoError(t, unix.Close(fd))
	}
	require.NoError(t, sendFiles(ours, message{messageTerm, 8}, nil))
	m, err = receive(theirFD)
	require.NoError(t, err)
	require.Equal(t, received{message: message{messageTerm, 8}}, m)
	_, err = ours.Write([]byte{messageTerm})
	require.NoError(t, err)
	_, err = receive(theirFD)
	require.ErrorIs(t, err, errMessage, "it is cut off")

	sent := report{
		Kind: reportFailed, ID: 1<<32 - 1, PID: -2, At: stageDir, Errno: 3, Status: 4, UserTime: 5 << 40, SysTime: 6 << 40,
		MaxRSS: 7 << 40, Left: 1<<32 - 2, text: strings.Repeat("x", 2*maxReport),
	}
	sent.send(theirs)
	packet := make([]byte, maxReport)
	n, err := ours.Read(packet)
	require.NoError(t, err)
	r, err := parseReport(packet[:n])
	require.NoError(t, err)
	sent.text = sent.text[:maxReportText]
	require.Equal(t, sent, r)
	ours.Close()
	_, err = receive(theirFD)
	require.ErrorIs(t, err, io.EOF, "the server has gone")
}

func TestRoomSurvivesTheWay(t *testing.T) {
	room := isolate.Spec{
		Level: vmconfig.Private, Dir: "/d", Base: "/b", Home: "/h", Shell: "/bin/sh", ReadOnly: []string{"/x", "/y z"},
	}
	got, orphan, err := decodeRoom(encodeRoom(room, "/o"))
	require.NoError(t, err)
	require.Equal(t, room, got)
	require.Equal(t, "/o", orphan)
	_, _, err = decodeRoom([]byte("off\x00/d"))
	require.ErrorIs(t, err, errMessage)
}
