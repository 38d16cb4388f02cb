package proc

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeShim returns a Process whose shim is the program argv, and sends reports, and hangs up.
func fakeShim(t *testing.T, argv []string, reports ...report) *Process {
	t.Helper()
	control, theirs, err := channelPair()
	require.NoError(t, err)
	p := newProcess(control)
	p.program = "fake"
	p.shim, err = os.StartProcess(argv[0], argv, &os.ProcAttr{})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	for _, r := range reports {
		r.send(theirs)
	}
	theirs.Close()
	go p.listen()
	return p
}

func TestProcessesThatCannotBeKilledAreAnErrorOfClose(t *testing.T) {
	p := fakeShim(t, []string{"/bin/true"},
		report{Kind: reportStarted, PID: 1 << 30}, // no pid is that large
		report{Kind: reportExited, Status: 3 << 8},
		report{Kind: reportLeft, Left: 2})
	require.Equal(t, 3, wait(t, p).Code)
	require.EqualError(t, p.Close(), `close "fake": 2 processes could not be killed`)
}

func TestShimThatTalksNonsenseIsKilled(t *testing.T) {
	started := report{Kind: reportStarted, PID: 1 << 30}
	exited := report{Kind: reportExited}
	failed := report{Kind: reportFailed, At: stageExec, Errno: 2}
	tests := map[string][]report{
		"an unknown message":      {{Kind: '?'}},
		"a message to it":         {{Kind: messageKill}},
		"started twice":           {started, started},
		"started and failed":      {started, failed},
		"failed and started":      {failed, started},
		"exited before started":   {exited},
		"exited twice":            {started, exited, exited},
		"started without a pid":   {{Kind: reportStarted}},
		"started as everybody":    {{Kind: reportStarted, PID: 1}},
		"started as what is none": {{Kind: reportStarted, PID: -1}},
	}
	for name, reports := range tests {
		t.Run(name, func(t *testing.T) {
			p := fakeShim(t, []string{"/bin/sleep", "1000"}, reports...)
			require.ErrorIs(t, p.Close(), errShim)
			<-p.started
			<-p.exited
		})
	}
}
