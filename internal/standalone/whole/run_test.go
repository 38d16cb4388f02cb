package whole_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/standalone/gitlabpipeline"
	"github.com/stepmux/stepmux/internal/standalone/whole"
)

// trial is a pipeline under test. The files of its project are in a directory of their own.
type trial struct {
	t   testing.TB
	cfg whole.Config
	// given are predefined variables.
	given []gitlabci.Variable

	mu   sync.Mutex // guards the following
	logs map[string]*bytes.Buffer
	said []string
}

// files are files of a project, by their paths.
type files map[string]string

func newTrial(t testing.TB, project files) *trial {
	t.Helper()
	tr := &trial{t: t, logs: map[string]*bytes.Buffer{}}
	tr.cfg = whole.Config{
		Config: standalone.Config{WorkDir: t.TempDir(), TempDir: t.TempDir(), CacheDir: t.TempDir(), Grace: time.Minute},
		Slots:  4, Output: tr.output, Say: func(line string) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			tr.said = append(tr.said, line)
		},
	}
	for name, text := range project {
		path := filepath.Join(tr.cfg.WorkDir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		tr.cfg.Files = append(tr.cfg.Files, name)
	}
	return tr
}

func (tr *trial) output(job string) (stdout, stderr io.Writer, end func()) {
	var buffer bytes.Buffer
	return &buffer, io.Discard, func() {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if tr.logs[job] == nil {
			tr.logs[job] = &bytes.Buffer{}
		}
		_, _ = tr.logs[job].Write(buffer.Bytes())
	}
}

func (tr *trial) read(text string) *whole.Pipeline {
	tr.t.Helper()
	p, err := gitlabpipeline.Read(standalone.Source{
		Name: "ci.yml", Text: []byte(text), Format: standalone.GitLabCI, WorkDir: tr.cfg.WorkDir,
		Predefined: tr.given,
	})
	require.NoError(tr.t, err)
	return p
}

// run runs a pipeline to its end, and requires that nothing of it is left.
func (tr *trial) run(ctx context.Context, text string) *whole.Report {
	tr.t.Helper()
	report, err := whole.Run(ctx, tr.t.Context(), tr.read(text), tr.cfg)
	require.NoError(tr.t, err)
	left, err := os.ReadDir(tr.cfg.TempDir)
	require.NoError(tr.t, err)
	require.Empty(tr.t, left)
	return report
}

// told returns the states of all jobs.
func told(r *whole.Report) string {
	var list []string
	for _, j := range r.Jobs {
		text := j.Name + " " + j.Status
		if j.Why != "" {
			text += " (" + j.Why + ")"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// lines are the lines that the jobs print with "echo said ...", by job.
func (tr *trial) lines(job string) string {
	var list []string
	for line := range strings.Lines(tr.logs[job].String()) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "said "); ok {
			list = append(list, text)
		}
	}
	return strings.Join(list, "; ")
}

// Each job has a directory of its own, with the project and exactly the artifacts that the documents give it.
func TestJobsSeeTheArtifactsThatTheyNeed(t *testing.T) {
	tr := newTrial(t, files{"src/main.c": "int main;\n"})
	report := tr.run(t.Context(), `
default: {before_script: ["cat src/main.c > /dev/null"]}
a: {stage: build, script: [mkdir out, echo a > out/a.txt, echo t > out/a.tmp, echo junk > junk],
  artifacts: {paths: [$CI_PROJECT_DIR/out/], exclude: ["**/*.tmp"]}}
b: {stage: build, script: [echo b > b.txt, exit 3], allow_failure: true, artifacts: {paths: [b.txt], when: always}}
c: {stage: build, script: [echo c > c.txt], artifacts: {paths: [c.txt], when: on_failure}}
stage: {script: ['echo said $(ls) $(ls out)']}
needs: {needs: [b], script: ['echo said $(ls)']}
without: {needs: [{job: a, artifacts: false}], script: ['echo said $(ls)']}
empty: {needs: [], script: ['echo said $(ls)']}
dependencies: {dependencies: [a], script: ['echo said $(ls)']}
none: {dependencies: [], script: ['echo said $(ls)']}
writes: {stage: deploy, script: ['rm -r src out', 'echo said $(ls)'], needs: [stage, a]}
last: {stage: deploy, script: ['echo said $(ls)'], needs: [writes, a]}
`)
	require.Equal(t, "a success, b warning, c success, stage success, needs success, without success, empty success, "+
		"dependencies success, none success, writes success, last success", told(report))
	require.Equal(t, []any{whole.Success, 0}, []any{report.Status, report.ExitCode})
	for job, want := range map[string]string{
		"stage": "b.txt out src a.txt", "needs": "b.txt src", "without": "src", "empty": "src", "dependencies": "out src",
		"none": "src", "writes": "", "last": "out src",
	} {
		require.Equal(t, want, tr.lines(job), job)
	}
	require.NoFileExists(t, filepath.Join(tr.cfg.WorkDir, "out"))
	require.FileExists(t, filepath.Join(tr.cfg.WorkDir, "src/main.c"))
}

func TestReportedVariablesReachLaterJobs(t *testing.T) {
	tr := newTrial(t, files{"f": ""})
	report := tr.run(t.Context(), `
a: {stage: build, script: ['echo "URL=https://x.test" > a.env'], artifacts: {reports: {dotenv: a.env}}}
bad: {stage: build, script: ['echo nothing > a.env'], artifacts: {reports: {dotenv: a.env}}}
out: {stage: build, script: ['ln -s /etc/passwd a.env'], artifacts: {reports: {dotenv: a.env}}}
b: {script: ['echo said $LINK'], variables: {LINK: $URL/x}}
c: {script: ['echo said "<$URL>"'], dependencies: [bad]}
d: {script: ['echo said "<$URL>"'], needs: [{job: a, artifacts: false}]}
`)
	require.Equal(t, whole.Success, report.Status)
	require.Equal(t, []string{"https://x.test/x", "<>", "<>"}, []string{tr.lines("b"), tr.lines("c"), tr.lines("d")})
	slices.Sort(tr.said)
	require.Len(t, tr.said, 2, tr.said)
	require.Equal(t, `bad: artifacts: dotenv "a.env": line 1 is not NAME=VALUE`, tr.said[0])
	require.Contains(t, tr.said[1], `out: artifacts: dotenv "a.env": `)
}

func TestTheFirstJobThatFailsGivesTheExitCode(t *testing.T) {
	tr := newTrial(t, files{"f": ""})
	report := tr.run(t.Context(), `
a: {stage: build, script: [exit 7], retry: {max: 2, exit_codes: 7}}
b: {script: [":"]}
c: {script: ['echo said $CI_JOB_STAGE'], when: on_failure}
d: {stage: deploy, script: [":"], when: manual}
e: {stage: .post, script: [":"], when: always}
slow: {stage: build, script: [sleep 600], timeout: 1s, needs: [], allow_failure: true}
gone: {script: [":"], rules: [{if: $GONE}]}
`)
	require.Equal(t, `a failed, slow warning (timed out), b skipped ("a": failed), c success, d skipped ("a": failed), e success, `+
		`gone left out (rules)`, told(report))
	require.Equal(t, []any{whole.Failure, 7, 3}, []any{report.Status, report.ExitCode, report.Jobs[0].Attempts})
	require.Equal(t, 124, *report.Jobs[1].ExitCode)
	require.Equal(t, "test", tr.lines("c"))
	require.NotEmpty(t, report.CriticalPath)
	require.Positive(t, report.Busy)
}

func TestChildPipelinesRun(t *testing.T) {
	tr := newTrial(t, files{
		"good.yml": "c: {script: ['echo said $FROM']}\n", "bad.yml": "c: {script: [exit 4]}\n",
	})
	report := tr.run(t.Context(), `
good: {variables: {FROM: parent}, trigger: {include: good.yml, strategy: depend}}
bad: {trigger: {include: bad.yml, strategy: depend}}
loose: {trigger: {include: bad.yml}}
after: {stage: deploy, script: [":"]}
`)
	require.Equal(t, `good success, bad failed, loose success, after skipped ("bad": failed)`, told(report))
	require.Equal(t, 4, report.ExitCode)
	require.Equal(t, "parent", tr.lines("good / c"))
	require.Empty(t, tr.said)
	children := map[string]string{}
	for _, j := range report.Jobs {
		if j.Child != nil {
			children[j.Name] = j.Child.Status + " " + told(j.Child)
		}
	}
	require.Equal(t, map[string]string{
		"good": "success c success", "bad": "failure c failed", "loose": "failure c failed",
	}, children)
	report = tr.run(t.Context(), `
make:
  stage: build
  script: ["echo \"d: {script: ['echo said \\$FROM']}\" > made.yml", 'echo FROM=job > a.env', 'echo "[" > bad.yml']
  artifacts: {paths: ["*.yml"], reports: {dotenv: a.env}}
run: {trigger: {include: [{artifact: made.yml, job: make}], strategy: depend}}
bad: {trigger: {include: [{artifact: bad.yml, job: make}]}, allow_failure: true}
gone: {trigger: {include: [{artifact: made.yml, job: run}]}, allow_failure: true}
`)
	require.Equal(t, "make success, run success, bad warning, gone warning", told(report))
	require.Contains(t, tr.logs, "run / d")
	said := strings.Join(tr.said, "\n")
	require.Contains(t, said, "bad: ci.yml")
	require.Contains(t, said, `gone: ci.yml`)
	require.Contains(t, said, `the job "run" has made no artifacts, or is not before this one`)
	tr.said = nil
	report = tr.run(t.Context(), "empty: {trigger: {include: good.yml}}\nafter: {stage: deploy, script: [':']}\n"+
		"workflow: {rules: [{if: '$CI_PIPELINE_SOURCE != \"parent_pipeline\"'}]}\n")
	require.Equal(t, `empty success, after success`, told(report), "the workflow is the parent's")

	p := tr.read("j: {trigger: group/project}\nk: {script: [touch never]}\n")
	_, err := whole.Run(t.Context(), t.Context(), p, tr.cfg)
	require.ErrorContains(t, err, `the job "j" starts another pipeline, which is not possible here: project "group/`)
}

func TestACancelledPipelineLeavesNothing(t *testing.T) {
	tr := newTrial(t, files{"f": ""})
	ctx, cancel := context.WithCancel(t.Context())
	output := tr.cfg.Output
	tr.cfg.Output = func(job string) (io.Writer, io.Writer, func()) {
		stdout, stderr, end := output(job)
		return writer(func(p []byte) (int, error) {
			if bytes.Contains(p, []byte("said ready")) {
				cancel()
			}
			return stdout.Write(p)
		}), stderr, end
	}
	report := tr.run(ctx, `
a: {stage: build, script: [echo said ready, sleep 600], retry: 2}
b: {script: [":"], when: always}
`)
	require.Equal(t, "a cancelled (cancelled), b cancelled (cancelled)", told(report))
	require.Equal(t, whole.Cancelled, report.Status)
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// Many jobs in stages end, and never more than the slots run at once.
func TestManyJobs(t *testing.T) {
	tr := newTrial(t, files{"f": ""})
	var text strings.Builder
	text.WriteString("stages: [s0, s1]\n")
	for i := range 20 {
		fmt.Fprintf(&text, "j%d: {stage: s%d, script: [':']}\n", i, i%2)
	}
	running, most := 0, 0
	output := tr.cfg.Output
	tr.cfg.Slots = 3
	tr.cfg.Output = func(job string) (io.Writer, io.Writer, func()) {
		stdout, stderr, end := output(job)
		tr.mu.Lock()
		defer tr.mu.Unlock()
		running++
		most = max(most, running)
		return stdout, stderr, func() {
			end()
			tr.mu.Lock()
			defer tr.mu.Unlock()
			running--
		}
	}
	report := tr.run(t.Context(), text.String())
	require.Equal(t, whole.Success, report.Status)
	require.Len(t, report.Jobs, 20)
	require.LessOrEqual(t, most, 3)
}
