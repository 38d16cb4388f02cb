package whole_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/whole"
)

// Manual jobs start when they are played: before the run, before they wait for that, or then. The others are blocked.
func TestManualJobsThatArePlayed(t *testing.T) {
	tr := newTrial(t, files{"p": "p"})
	tr.cfg.Plays = &whole.Plays{}
	tr.cfg.Plays.Play("m1")
	tr.cfg.Watch = func(job, status string) {
		switch job + " " + status {
		case "a running", "m3 manual":
			tr.cfg.Plays.Play(map[string]string{"a": "m2", "m3": "m3"}[job])
		}
	}
	report := tr.run(t.Context(), `
stages: [one, two, three]
a: {stage: one, script: [":"]}
m1: {stage: two, script: [":"], when: manual, allow_failure: false}
m2: {stage: two, script: [":"], when: manual, allow_failure: false}
m3: {stage: two, script: [":"], when: manual, allow_failure: false}
m4: {stage: three, script: [":"], when: manual, allow_failure: false}
b: {stage: three, script: [":"]}
`)
	require.Equal(t, "a success, m1 success, m2 success, m3 success, m4 blocked (manual), b success", told(report))
}
