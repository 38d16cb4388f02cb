package proc

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzInitsMessages handles any reports of an init: no pid stands for several processes, and no report is handled
// twice.
func FuzzInitsMessages(f *testing.F) {
	add := func(reports ...report) {
		var b bytes.Buffer
		for _, r := range reports {
			r.ID = 1
			r.send(&b)
		}
		f.Add(b.Bytes())
	}
	started := about(reportStarted, 4711)
	add(started, report{Kind: reportExited, Status: 9},
		report{Kind: reportClosed, Left: math.MaxUint32})
	add(started, started)
	add(about(reportStarted, 1))
	add(report{Kind: reportFailed, At: stageExec, Errno: 2})
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, theirs, err := channelPair()
		require.NoError(t, err)
		defer ours.Close()
		// A socket takes 64 at once.
		for i := 0; i < len(data) && i < 64*reportHead; i += reportHead {
			_, err = theirs.Write(data[i:min(i+reportHead, len(data))])
			require.NoError(t, err)
		}
		theirs.Close()
		l := &link{control: ours, ready: make(chan report, 1), gone: make(chan struct{}), processes: map[uint32]*Process{}}
		p, err := l.register("fake")
		require.NoError(t, err)
		require.Error(t, l.receiveReports())
		require.True(t, p.leader == 0 || p.leader > 1 && p.leader <= math.MaxInt32)
		if p.failed != nil {
			require.Zero(t, p.leader)
			require.Error(t, p.failed.error(&Command{Argv: []string{"x"}}))
		}
		if p.exit.Signal != 0 {
			require.Equal(t, 128+int(p.exit.Signal), p.exit.Code)
		}
	})
}
