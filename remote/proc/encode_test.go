package proc

import (
	"encoding/binary"
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
	require.Equal(t, &Command{Dir: c.Dir, OrphanDir: c.OrphanDir, Argv: c.Argv, Env: []string{"A=2", "B=", "C==x"}}, o)
	require.Len(t, c.Env, 4, "it was changed")
}

func TestExitSurvivesTheWay(t *testing.T) {
	usage := &syscall.Rusage{Utime: syscall.Timeval{Sec: 3, Usec: 5}, Stime: syscall.Timeval{Usec: 7}, Maxrss: 100}
	exit := exited(9|0x80, usage).exit() // SIGKILL, core dumped
	require.Equal(t, Exit{
		Code: 137, Signal: unix.SIGKILL,
		UserTime: 3*time.Second + 5*time.Microsecond, SystemTime: 7 * time.Microsecond, MaxRSS: 100 << 10,
	}, exit)
}

func FuzzDecodeCommandTakesWhatEncodeCommandGives(f *testing.F) {
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
	require.NoError(t, sendCommand(ours, c, os.Stdout, os.Stderr))
	got, output, err := receiveCommand(theirs)
	require.NoError(t, err)
	require.Equal(t, c, got)
	require.Len(t, output, 2)
	for _, fd := range output {
		require.NoError(t, unix.Close(fd))
	}
	_, err = ours.Write([]byte{messageTerm})
	require.NoError(t, err)
	_, _, err = receiveCommand(theirs)
	require.ErrorIs(t, err, errMessage, "it is no command")
	report{Kind: reportStarted, PID: 4711}.send(theirs)
	var r report
	require.NoError(t, binary.Read(ours, binary.LittleEndian, &r))
	require.Equal(t, report{Kind: reportStarted, PID: 4711}, r)
	ours.Close()
	_, _, err = receiveCommand(theirs)
	require.ErrorIs(t, err, errMessage, "the server has gone")
}
