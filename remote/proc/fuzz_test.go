package proc

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzShimsMessages takes whatever a shim sends: no pid stands for several processes, and nothing comes twice.
func FuzzShimsMessages(f *testing.F) {
	add := func(reports ...report) {
		var b bytes.Buffer
		for _, r := range reports {
			r.send(&b)
		}
		f.Add(b.Bytes())
	}
	started := report{Kind: reportStarted, PID: 4711}
	add(started, report{Kind: reportExited, Status: 9}, report{Kind: reportLeft, Left: math.MaxUint32})
	add(started, started)
	add(report{Kind: reportStarted, PID: 1})
	add(report{Kind: reportFailed, At: stageExec, Errno: 2})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return // more than a socket takes at once
		}
		ours, theirs, err := channelPair()
		require.NoError(t, err)
		defer ours.Close()
		_, err = theirs.Write(data)
		require.NoError(t, err)
		theirs.Close()
		p := newProcess(ours)
		_, err = p.hear()
		require.Error(t, err)
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
