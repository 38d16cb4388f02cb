package faults

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJudgeHoldsWhatIsSaidAgainstWhatHappened(t *testing.T) {
	const lines = 10
	endedWell := observation{Started: true, Wrote: lines, Ending: true}
	failed := observation{Started: true, Wrote: lines, Ending: true, Code: 42}
	cut := observation{Started: true, Wrote: 5}
	all, some := logState{Lines: lines}, logState{Lines: 3}
	for name, c := range map[string]struct {
		said  verdict
		truth observation
		log   logState
		met   circumstances
		want  []string
	}{
		"success":                         {verdict{}, endedWell, all, circumstances{}, nil},
		"success of a script that failed": {verdict{}, failed, all, circumstances{}, []string{FalseSuccess}},
		"success of a script cut short":   {verdict{}, cut, all, circumstances{lossy: true}, []string{FalseSuccess}},
		"success of one that never ran": {verdict{}, observation{}, all, circumstances{lossy: true},
			[]string{FalseSuccess}},
		"success without all of the log": {verdict{}, endedWell, some, circumstances{lossy: true}, []string{WrongLog}},
		"failure":                        {verdict{Reason: byScript, Code: 42}, failed, all, circumstances{}, nil},
		"failure with another code": {verdict{Reason: byScript, Code: 1}, failed, all, circumstances{},
			[]string{WrongBlame}},
		"failure of one that succeeded": {verdict{Reason: byScript, Code: 1}, endedWell, all, circumstances{},
			[]string{WrongBlame}},
		"failure of one cut short": {verdict{Reason: byScript}, cut, all, circumstances{lossy: true},
			[]string{WrongBlame}},
		"failure of its shell, of the fault it inherited": {
			verdict{Reason: byScript, Code: 127}, cut, logState{Bad: "?"}, circumstances{lossy: true, inherited: true}, nil,
		},
		"failure without all of the log": {verdict{Reason: byScript, Code: 42}, failed, some,
			circumstances{lossy: true}, []string{WrongLog}},
		"failure that says the log is incomplete": {verdict{Reason: byScript, Code: 42,
			Text: "stdout is not complete: disk full"}, failed, some, circumstances{lossy: true}, nil},
		"loss": {verdict{Reason: bySystem, Text: "x"}, cut, some, circumstances{lossy: true},
			nil},
		"loss of one that had ended": {verdict{Reason: bySystem, Text: "x"}, endedWell, some,
			circumstances{lossy: true}, nil},
		"loss without a fault": {verdict{Reason: bySystem, Text: "x"}, cut, some, circumstances{},
			[]string{NeedlessLoss}},
		"loss without a word": {verdict{Reason: bySystem}, cut, some, circumstances{lossy: true},
			[]string{WrongBlame}},
		"loss with other bytes in the log": {verdict{Reason: bySystem, Text: "x"}, cut, logState{Bad: "?"},
			circumstances{lossy: true}, []string{WrongLog}},
		"loss with more than there is": {verdict{Reason: bySystem, Text: "x"}, cut, logState{Lines: 11},
			circumstances{lossy: true}, []string{WrongLog}},
		"cancellation": {verdict{Reason: canceled}, cut, some, circumstances{canceled: true}, nil},
		"cancellation by nobody": {verdict{Reason: canceled}, cut, some, circumstances{lossy: true},
			[]string{WrongBlame}},
		"timeout that nobody asked for": {verdict{Reason: timedOut}, cut, some, circumstances{lossy: true},
			[]string{WrongBlame}},
		"configuration that was well": {verdict{Reason: wrongYAML}, cut, some, circumstances{lossy: true},
			[]string{WrongBlame}},
		"a script that ran twice": {verdict{}, observation{Started: true, Twice: true, Ending: true}, all,
			circumstances{}, []string{Twice}},
		"no reason that is known": {verdict{Reason: "no BuildError"}, cut, some, circumstances{lossy: true},
			[]string{WrongBlame}},
	} {
		t.Run(name, func(t *testing.T) {
			var what []string
			for _, f := range judge(&buildPlan{ID: "b", Lines: lines}, c.said, c.truth, c.log, c.met) {
				what = append(what, f.What)
			}
			require.Equal(t, c.want, what)
		})
	}
}

func TestLedgerIsReadUpToAnUnfinishedLine(t *testing.T) {
	require.Equal(t, observation{}, parseLedger(""))
	require.Equal(t, observation{}, parseLedger("star"))
	require.Equal(t, observation{Started: true, Wrote: 7}, parseLedger("started\nwrote 7\nending 4"))
	require.Equal(t, observation{Started: true, Wrote: 7, Ending: true, Code: 42},
		parseLedger("started\nwrote 7\nending 42\n"))
	require.True(t, parseLedger("started\nstarted\n").Twice)
	require.True(t, parseLedger("started\nbroken 1\n").Broken)
}
