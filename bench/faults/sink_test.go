package faults

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

// take writes text to a new sink in pieces of a size.
func take(t *testing.T, text string, size int) logState {
	t.Helper()
	s := newSink("baa")
	for len(text) > 0 {
		n := min(size, len(text))
		_, err := s.Write([]byte(text[:n]))
		require.NoError(t, err)
		text = text[n:]
	}
	return s.state()
}

func TestSinkKnowsEveryPrefixOfABuildsOutput(t *testing.T) {
	one, two, three := line("baa", 1), line("baa", 2), line("baa", 3)
	require.Len(t, one, lineWidth)
	for text, want := range map[string]struct {
		lines int
		bad   bool
	}{
		"":                                     {0, false},
		one[:10]:                               {0, false},
		one:                                    {1, false},
		one + two + three[:63]:                 {2, false},
		one + three:                            {1, true},
		one + one:                              {1, true},
		one + two[:20] + "x":                   {1, true},
		one + "\n" + two:                       {1, true},
		two:                                    {0, true},
		strings.Replace(one, ".", "", 1) + two: {0, true},
		one + "step runner: hello\n" + two:     {2, false},
		one + two[:20] + "\nstep runner: hello\n" + two[20:] + three: {3, false},
		one + two[:20] + "\nstep runner: hel":                        {1, false},
		one + two[:20] + "\n" + three:                                {1, true},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			got := take(t, text, size)
			require.Equal(t, want.bad, got.Bad != "", "%q: %s", text, got.Bad)
			if !want.bad {
				require.Equal(t, want.lines, got.Lines, "%q", text)
			}
		}
	}
}

func TestSinkThatIsBlockedTakesNothing(t *testing.T) {
	s := newSink("baa")
	unblock := s.block()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.Write([]byte(line("baa", 1)))
	}()
	select {
	case <-done:
		require.FailNow(t, "it took something")
	default:
	}
	require.Zero(t, s.state().Lines)
	unblock()
	unblock()
	<-done
	require.Equal(t, 1, s.state().Lines)
}

// The scripts do the planned things, and their ledgers say so.
func TestScriptsWriteWhatTheSinkExpectsAndKeepTheirLedger(t *testing.T) {
	for _, b := range []buildPlan{
		{ID: "baa", Lines: 1, Bursts: 1},
		{ID: "baa", Lines: 7, Bursts: 3, Code: 42},
		{ID: "baa", Lines: 2, Bursts: 4, Stderr: true, Deaf: true, Code: 255},
		{ID: "baa", Lines: 20_000, Bursts: 2},
	} {
		ledger := filepath.Join(t.TempDir(), "ledger")
		s := newSink(b.ID)
		cmd := exec.CommandContext(t.Context(), "bash", "-c", b.Text(ledger))
		if b.Stderr {
			cmd.Stderr = s
		} else {
			cmd.Stdout = s
		}
		_ = cmd.Run() // its code follows
		require.Equal(t, b.Code, cmd.ProcessState.ExitCode())
		require.Equal(t, logState{Lines: b.Lines}, s.state())
		require.Equal(t, observation{Started: true, Wrote: b.Lines, Ending: true, Code: b.Code}, readLedger(ledger))

		var job struct{ Run []struct{ Script string } }
		require.NoError(t, yaml.Unmarshal(b.Steps(ledger), &job))
		var all string
		for _, step := range job.Run {
			all += step.Script
		}
		require.Equal(t, b.Text(ledger), all, "its steps are the same in pieces")
	}
}
