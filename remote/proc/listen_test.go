package proc

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// fakeInit returns a Process whose init is the program argv, and sends reports, and hangs up.
func fakeInit(t *testing.T, argv []string, reports ...report) *Process {
	t.Helper()
	control, theirs, err := channelPair()
	require.NoError(t, err)
	l := &link{
		control: control, level: vmconfig.Off, ready: make(chan report, 1), gone: make(chan struct{}),
		processes: map[uint32]*Process{}, resume: func() {},
	}
	l.init, err = os.StartProcess(argv[0], argv, &os.ProcAttr{})
	require.NoError(t, err)
	p, err := l.register("fake")
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Close()
		<-l.gone
	})
	for _, r := range reports {
		r.ID = p.id
		r.send(theirs)
	}
	theirs.Close()
	go l.listen()
	return p
}

func about(kind byte, pid int32) report {
	return report{Kind: kind, PID: pid}
}

func TestProcessesThatCannotBeKilledAreAnErrorOfClose(t *testing.T) {
	p := fakeInit(t, []string{"/bin/true"},
		about(reportStarted, 1<<30), // no pid is that large
		report{Kind: reportExited, Status: 3 << 8},
		report{Kind: reportClosed, Left: 2})
	require.Equal(t, 3, wait(t, p).Code)
	require.EqualError(t, p.Close(), `close "fake": 2 processes could not be killed`)
}

func TestInitThatTalksNonsenseIsKilled(t *testing.T) {
	started, exited, closed := about(reportStarted, 1<<30), about(reportExited, 0), about(reportClosed, 0)
	failed := report{Kind: reportFailed, At: stageExec, Errno: 2}
	tests := map[string][]report{
		"an unknown message":      {about('?', 0)},
		"a message to it":         {about(messageKill, 0)},
		"started twice":           {started, started},
		"started and failed":      {started, failed},
		"failed and started":      {failed, started},
		"exited before started":   {exited},
		"exited twice":            {started, exited, exited},
		"closed before started":   {closed},
		"closed twice":            {started, exited, closed, closed},
		"a group before it":       {about(reportGroup, 0)},
		"started without a pid":   {about(reportStarted, 0)},
		"started as everybody":    {about(reportStarted, 1)},
		"started as what is none": {about(reportStarted, -1)},
	}
	for name, reports := range tests {
		t.Run(name, func(t *testing.T) {
			p := fakeInit(t, []string{"/bin/sleep", "1000"}, reports...)
			<-p.link.gone
			require.ErrorIs(t, p.link.err, errInit)
			<-p.started
			<-p.gone
			if p.failed == nil {
				<-p.exited
			}
		})
	}
}
