package proc

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Symptom: a step was killed if it began just after the end of one that had been killed.
func TestACommandThatWasForgottenHasNoProcesses(t *testing.T) {
	k := &keeper{reaper: newReaper(), commands: map[uint32]*held{}}
	first, second := &held{1, newChild(2)}, &held{2, newChild(3)}
	const other = 4
	k.commands[first.id] = first
	isFirsts := k.descends(first)
	require.True(t, isFirsts(other), "there is no other command")
	delete(k.commands, first.id)
	k.commands[second.id] = second
	require.False(t, isFirsts(other))
	require.False(t, isFirsts(second.leader.pid))
	require.True(t, k.descends(second)(other))
}

// Symptom: a command of one job was killed at its start while a command of another job was being closed.
func TestACommandThatIsBeingStartedBelongsToNoOther(t *testing.T) {
	var ends [2]int
	require.NoError(t, unix.Pipe2(ends[:], unix.O_CLOEXEC))
	reports, control := os.NewFile(uintptr(ends[0]), "reports"), os.NewFile(uintptr(ends[1]), "control")
	defer reports.Close()
	defer control.Close()
	size, err := unix.FcntlInt(uintptr(ends[1]), unix.F_GETPIPE_SZ, 0)
	require.NoError(t, err)
	_, err = control.Write(make([]byte, size)) // so that the start waits before it is complete
	require.NoError(t, err)

	first := &held{1, newChild(1 << 30)}
	k := &keeper{reaper: newReaper(), control: control, commands: map[uint32]*held{first.id: first}}
	text := encodeCommand(&Command{Argv: []string{"/bin/true"}, Dir: "/"})
	m := received{message: message{messageCommand, 2}, text: text}
	for range 3 {
		null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		m.files = append(m.files, null)
	}
	started := make(chan bool, 1)
	go func() { started <- k.start(m) }()
	var leader *Child
	isFirsts := false
	eventually(t, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, leader = range k.running {
			isFirsts = k.descends(first)(leader.pid)
		}
		return leader != nil
	}, "the command runs")
	require.False(t, isFirsts)

	go func() { _, _ = io.Copy(io.Discard, reports) }() // ends with control
	require.True(t, <-started)
	<-leader.Exited()
	eventually(t, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return !k.reaping
	}, "all is reaped")
}
