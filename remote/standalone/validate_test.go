package standalone

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValidateSaysWhatIsWrongAndWhere(t *testing.T) {
	for name, test := range map[string]struct {
		file, text string
		format     Format
		kind       string
		errors     []string
	}{
		"job": {"job.yml", "- script: a\n", Steps, "job", nil},
		"job, wrong": {
			"job.yml", "- scrpt: a\n", Steps, "job",
			[]string{`job.yml:1:3: unknown key "scrpt", did you mean "script"?`},
		},
		"step": {"greet.yml", "spec: {inputs: {a: {type: string}}}\n---\nexec: {command: [a]}\n", Steps, "step", nil},
		"step, wrong": {
			"func.yml", "spec: {}\n---\nrun: [{script: a}]\n", Steps, "step",
			[]string{"func.yml:3:7: the step has no name; in a definition every step has one"},
		},
		"step of one": {
			"step.yml", "run: [{name: a, script: a}]\n", Steps, "step",
			[]string{"step.yml:1:1: a step has two documents, its spec and its command or steps; write --- on a line between them"},
		},
		"gitlab": {"ci.yml", "a: {script: [x]}\n", GitLabCI, "gitlab-ci", nil},
		"gitlab, wrong in two jobs": {
			"ci.yml", "a: {scrpt: [x]}\nb: {script: [x]}\nc: {run: [{when: now, script: a}]}\n",
			GitLabCI, "gitlab-ci",
			[]string{
				`ci.yml:1:5: unknown key "scrpt" of a job, did you mean "script"?`,
				"ci.yml:3:18: when is one of on_success, on_failure, always",
			},
		},
		"gitlab, empty": {
			"ci.yml", "", GitLabCI, "gitlab-ci",
			[]string{"ci.yml: the file is empty; write a job: a name, and below it script: or run:"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := Validate(test.file, []byte(test.text), test.format, t.TempDir())
			require.Equal(t, test.kind, v.Kind)
			require.Equal(t, len(test.errors) == 0, v.Valid)
			var got []string
			for _, p := range v.Errors {
				got = append(got, p.String())
			}
			require.Equal(t, test.errors, got)
		})
	}
	v := Unreadable("x.yml", os.ErrNotExist)
	require.False(t, v.Valid)
	require.Equal(t, "file does not exist", v.Errors[0].String())
}
