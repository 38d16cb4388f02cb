package whole_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/standalone/whole"
)

// of says that a trial is of a commit of a branch.
func (tr *trial) of(branch, commit string) *trial {
	tr.given = []gitlabci.Variable{{Name: "CI_COMMIT_REF_NAME", Value: branch}, {Name: "CI_COMMIT_SHA", Value: commit}}
	return tr
}

// A newer run of another commit of the branch ends an older one, as auto_cancel of the older one and interruptible say.
func TestANewerCommitEndsAnOlderRun(t *testing.T) {
	const (
		newer = "cancelled (a newer run of another commit made it redundant)"
		wait  = `script: [echo said ready, 'while ! test -e $GO; do sleep 0.01; done']`
		can   = "interruptible: true, "
	)
	for name, tt := range map[string]struct{ text, branch, commit, want string }{
		"all": {
			"a: {" + can + wait + "}\nb: {stage: deploy, script: [':']}\n", "main", "2",
			"a " + newer + ", b " + newer,
		},
		"by default": {
			"default: {interruptible: true}\na: {" + wait + "}\nb: {stage: deploy, script: [':']}\n", "main", "2",
			"a " + newer + ", b " + newer,
		},
		"started": {
			"a: {" + wait + "}\nb: {stage: deploy, " + can + "script: [':']}\n", "main", "2", "a success, b success",
		},
		"by a rule": {
			"a: {interruptible: false, " + wait + ", rules: [{when: always, interruptible: true}]}\n", "main", "2", "a " + newer,
		},
		"the jobs that are": {
			"workflow: {auto_cancel: {on_new_commit: interruptible}}\na: {" + wait + "}\nb: {" + can + "script: [sleep 600]}\n" +
				"c: {stage: deploy, needs: [a], script: [':']}\nd: {stage: deploy, needs: [a], " + can + "script: [':']}\n" +
				"e: {stage: .post, script: [':'], when: always}\n",
			"main", "2", "a success, b " + newer + ", c success, d " + newer + `, e skipped ("b": cancelled)`,
		},
		"nothing": {
			"workflow: {auto_cancel: {on_new_commit: none}}\na: {" + can + wait + "}\n", "main", "2", "a success",
		},
		"by a rule of the workflow": {
			"workflow: {auto_cancel: {on_new_commit: interruptible}, rules: [{when: always, auto_cancel: " +
				"{on_new_commit: none}}]}\na: {" + can + wait + "}\n", "main", "2", "a success",
		},
		"another branch":  {"a: {" + can + wait + "}\n", "topic", "2", "a success"},
		"the same commit": {"a: {" + can + wait + "}\n", "main", "1", "a success"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrial(t, files{"f": ""}).keeping().of("main", "1")
			gate := filepath.Join(t.TempDir(), "go")
			opens := gate
			if strings.Contains(tt.want, newer) { // not before the first run has seen the other one
				opens = t.TempDir()
			}
			tr.given = append(tr.given, gitlabci.Variable{Name: "GO", Value: gate})
			second := newTrial(t, files{"f": ""}).of(tt.branch, tt.commit)
			second.cfg.StateDir, second.cfg.Name = tr.cfg.StateDir, tr.cfg.Name
			output, once, other := tr.cfg.Output, sync.Once{}, sync.WaitGroup{}
			tr.cfg.Output = func(job string) (io.Writer, io.Writer, func()) {
				stdout, stderr, end := output(job)
				return writer(func(p []byte) (int, error) {
						if bytes.Contains(p, []byte("said ready")) {
							once.Do(func() {
								// If it is to end no job, it lasts a little longer than the first run takes to look.
								other.Go(func() { second.run(t.Context(), "s: {script: [sleep 0.2, 'touch "+opens+"']}\n") })
							})
						}
						return stdout.Write(p)
					}), stderr, func() {
						if end(); job == "b" {
							require.NoError(t, os.WriteFile(gate, nil, 0o600))
						}
					}
			}
			report := tr.run(t.Context(), tt.text)
			other.Wait()
			require.Equal(t, tt.want, told(report))
			if strings.Contains(tt.want, newer) {
				require.Equal(t, []any{whole.Cancelled, 125}, []any{report.Status, report.ExitCode})
			}
		})
	}
}

// A run of chosen jobs is not the pipeline of its commit: it ends no other one.
func TestARunOfChosenJobsMakesNothingRedundant(t *testing.T) {
	tr := newTrial(t, files{"f": ""}).of("main", "1")
	p := tr.read("a: {script: [':']}\nb: {script: [':']}\n")
	require.NotEmpty(t, p.Series)
	require.NoError(t, p.Choose(whole.Choice{}))
	require.NotEmpty(t, p.Series)
	require.NoError(t, p.Choose(whole.Choice{Skip: []string{"a"}}))
	require.Empty(t, p.Series)
}

func TestAFailureMayEndAllJobs(t *testing.T) {
	tr := newTrial(t, files{"f": ""})
	report := tr.run(t.Context(), `
workflow: {auto_cancel: {on_job_failure: all}}
a: {stage: build, script: [exit 3], allow_failure: true}
b: {stage: build, script: [sleep 0.2, exit 4]}
slow: {stage: build, script: [sleep 600]}
always: {stage: .post, script: [':'], when: always}
`)
	require.Equal(t, `a warning, b failed, slow cancelled ("b" failed), always cancelled ("b" failed)`, told(report))
	require.Equal(t, []any{whole.Failure, 4}, []any{report.Status, report.ExitCode})
}
