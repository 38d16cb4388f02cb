package proc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Symptom: the answer to a question about a process group came after the report of the command's end, and the server
// killed the init for it. The next command was then lost with the init.
func TestAnAnswerAboutAGroupMayComeAfterTheEndOfItsCommand(t *testing.T) {
	l := &link{processes: map[uint32]*Process{}, gone: make(chan struct{})}
	p, err := l.register("sh")
	require.NoError(t, err)
	about := func(kind byte) report { return report{Kind: kind, ID: p.id, PID: 2} }
	for _, kind := range []byte{reportStarted, reportExited, reportClosed, reportGroup} {
		require.NoError(t, l.dispatch(about(kind)), "%q", kind)
	}
	require.ErrorIs(t, l.dispatch(about(reportExited)), errMessage)
}
