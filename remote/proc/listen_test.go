package proc

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// message is a message of a fake shim.
type message struct {
	kind    byte
	payload []byte
}

// fakeShim returns a Process whose shim is the program argv, and says messages, and hangs up.
func fakeShim(t *testing.T, argv []string, messages ...message) *Process {
	t.Helper()
	control, theirs, err := channelPair()
	require.NoError(t, err)
	p := newProcess(control)
	p.program = "fake"
	p.shim, err = os.StartProcess(argv[0], argv, &os.ProcAttr{})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	for _, m := range messages {
		require.NoError(t, (&channel{theirs}).send(m.kind, m.payload))
	}
	theirs.Close()
	go p.listen()
	return p
}

func TestProcessesThatCannotBeKilledAreAnErrorOfClose(t *testing.T) {
	p := fakeShim(t, []string{"/bin/true"},
		message{frameStarted, encodeNumbers(1 << 30)}, // no pid is that large
		message{frameExited, encodeNumbers(3<<8, 0, 0, 0)},
		message{frameLeft, encodeNumbers(2)})
	require.Equal(t, 3, wait(t, p).Code)
	require.EqualError(t, p.Close(), `close "fake": 2 processes could not be killed`)
}

func TestShimThatTalksNonsenseIsKilled(t *testing.T) {
	started := message{frameStarted, encodeNumbers(1 << 30)}
	exited := message{frameExited, encodeNumbers(0, 0, 0, 0)}
	failed := message{frameFailed, encodeNumbers(uint64(stageExec), 2)}
	tests := map[string][]message{
		"an unknown message":      {{'?', nil}},
		"a message to it":         {{frameKill, nil}},
		"started twice":           {started, started},
		"started and failed":      {started, failed},
		"failed and started":      {failed, started},
		"exited before started":   {exited},
		"exited twice":            {started, exited, exited},
		"started without a pid":   {{frameStarted, nil}},
		"started as everybody":    {{frameStarted, encodeNumbers(1)}},
		"started as what is none": {{frameStarted, encodeNumbers(1 << 32)}},
		"failed without a reason": {{frameFailed, []byte{0}}},
		"left without a number":   {started, {frameLeft, nil}},
		"more than it may say":    {{frameStarted, make([]byte, maxReply+1)}},
	}
	for name, messages := range tests {
		t.Run(name, func(t *testing.T) {
			p := fakeShim(t, []string{"/bin/sleep", "1000"}, messages...)
			require.ErrorIs(t, p.Close(), errShim)
			<-p.started
			<-p.exited
		})
	}
}
