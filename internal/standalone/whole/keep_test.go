package whole_test

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/standalone/whole"
)

// keeping gives a trial the directories for caches and results.
func (tr *trial) keeping() *trial {
	tr.t.Helper()
	base := tr.t.TempDir()
	tr.cfg.CachesDir, tr.cfg.StateDir = filepath.Join(base, "caches", "p"), filepath.Join(base, "state", "p")
	tr.cfg.Name = "ci.yml"
	return tr
}

// write writes a file of the project.
func (tr *trial) write(name, text string) {
	tr.t.Helper()
	require.NoError(tr.t, os.WriteFile(filepath.Join(tr.cfg.WorkDir, name), []byte(text), 0o600))
}

// each runs a pipeline, and returns the lines of its jobs, by their names.
func (tr *trial) each(text string) map[string]string {
	tr.t.Helper()
	clear(tr.logs)
	tr.said = nil
	report := tr.run(tr.t.Context(), text)
	lines := map[string]string{}
	for _, j := range report.Jobs {
		if tr.logs[j.Name] != nil {
			lines[j.Name] = tr.lines(j.Name)
		}
	}
	return lines
}

func TestCachesAreKeptBetweenRuns(t *testing.T) {
	tr := newTrial(t, files{"lock": "1", "src": "x"}).keeping()
	const text = `
.s: {script: ['echo said $(cat c/* 2>/dev/null)', mkdir -p c, 'echo $CI_JOB_NAME > c/$CI_JOB_NAME']}
plain: {extends: .s, stage: build, cache: {paths: [c]}}
files: {extends: .s, stage: build, cache: {key: {files: [lock, gone], prefix: $CI_JOB_NAME}, paths: [c/]}}
pull: {extends: .s, cache: {key: default, paths: [c], policy: pull}}
push: {extends: .s, cache: {key: own, paths: [c], policy: $HOW}, variables: {HOW: push}}
fallback: {extends: .s, cache: {key: new, fallback_keys: [none, default], paths: [c], policy: pull}}
variable: {extends: .s, cache: {key: new, paths: [c], policy: pull}, variables: {CACHE_FALLBACK_KEY: default}}
without: {extends: .s, cache: {}}
two: {extends: .s, cache: [{key: default, paths: [c/plain], policy: pull}, {key: two, paths: [c/two], unprotect: true}]}
last: {extends: .s, stage: deploy, cache: {key: own, paths: [c], policy: pull}}
`
	require.Equal(t, map[string]string{
		"plain": "", "files": "", "pull": "plain", "push": "", "fallback": "plain", "variable": "plain", "without": "",
		"two": "plain", "last": "push",
	}, tr.each(text))
	require.Contains(t, tr.said, `plain: cache "default" does not exist yet`)
	require.Contains(t, tr.said, `plain: cache "default" is saved`)
	require.Contains(t, tr.said, `pull: cache "default" is restored`)
	again := tr.each(text)
	require.Equal(t, "plain", again["plain"])
	require.Equal(t, "files", again["files"])
	require.Equal(t, "", again["push"])
	require.Equal(t, "plain two", again["two"])
	tr.write("lock", "2")
	require.Equal(t, "", tr.each(text)["files"], "the key is another one")
	tr.write("lock", "1")
	require.Equal(t, "files", tr.each(text)["files"])
}

func TestACacheIsSavedAfterTheOutcomeThatItNames(t *testing.T) {
	tr := newTrial(t, files{"f": ""}).keeping()
	lines := tr.each(`
default: {before_script: ['echo x > c']}
success: {stage: build, script: [exit 1], allow_failure: true, cache: {key: s, paths: [c]}}
failure: {stage: build, script: [exit 1], allow_failure: true, cache: {key: f, paths: [c], when: on_failure}}
always: {stage: build, script: [exit 1], allow_failure: true, cache: {key: a, paths: [c], when: always}}
timeout:
  stage: build
  timeout: 1s
  allow_failure: true
  script: [sleep 600]
  cache: {key: t, paths: [c], when: always}
good: {stage: build, script: [':'], cache: {key: g, paths: [c], when: on_failure}}
look:
  before_script: []
  script: ['echo said $(ls)']
  parallel: {matrix: [{KEY: [s, f, a, t, g]}]}
  cache: {key: $KEY, paths: [c], policy: pull}
`)
	require.Equal(t, []string{"f", "c f", "c f", "f", "f"}, []string{
		lines["look: [s]"], lines["look: [f]"], lines["look: [a]"], lines["look: [t]"], lines["look: [g]"],
	})
}

// Untracked files are all files that are not files of the project, also those of artifacts.
func TestUntrackedFilesAreArtifactsAndCaches(t *testing.T) {
	tr := newTrial(t, files{"src/a": "old"}).keeping()
	const text = `
a: {stage: build, script: [mkdir new, echo 1 > new/f, echo 2 > src/b, echo 3 > src/a], artifacts: {untracked: true}}
b: {script: ['echo said $(ls new src) $(cat src/a)'], cache: {untracked: true}}
c: {stage: deploy, needs: [], script: ['echo said $(ls)'], cache: {untracked: true, policy: pull}}
`
	require.Equal(t, map[string]string{"a": "", "b": "new: f src: a b old", "c": "src"}, tr.each(text))
	require.Equal(t, "new src", tr.each(text)["c"])
}

func TestResumeRunsWhatFailedOrDidNotRun(t *testing.T) {
	tr := newTrial(t, files{"broken": "", "child.yml": "good: {script: [echo said c]}\n"}).keeping()
	const text = `
make:
  stage: build
  script: [echo said made, echo 1 > out, echo A=b > a.env]
  artifacts: {paths: [out], reports: {dotenv: a.env}}
child: {stage: build, trigger: {include: child.yml, strategy: depend}}
use: {script: ['echo said $(cat out) $A', '! test -e broken']}
skip: {stage: deploy, script: [echo said last]}
hand: {stage: .post, script: ['echo said hand $(cat out)'], when: manual}
`
	p := tr.read(text)
	tr.cfg.Resume = true
	_, err := whole.Run(t.Context(), t.Context(), p, tr.cfg)
	require.ErrorIs(t, err, whole.ErrNothingToResume)
	require.ErrorContains(t, err, "there is no earlier run of this file here, or it succeeded")

	tr.cfg.Resume = false
	lines := tr.each(text)
	require.Equal(t, map[string]string{"make": "made", "use": "1 b"}, lines)
	require.Contains(t, tr.logs, "child / good")
	require.NoError(t, os.Remove(filepath.Join(tr.cfg.WorkDir, "broken")))
	tr.cfg.Files = slices.DeleteFunc(tr.cfg.Files, func(name string) bool { return name == "broken" })
	tr.cfg.Resume = true
	clear(tr.logs)
	tr.said = nil
	report := tr.run(t.Context(), strings.ReplaceAll(text, "said last", "said better")) // another script, the same graph
	require.Equal(t, "make success (ran earlier), child success (ran earlier), use success, skip success, "+
		"hand blocked (manual)", told(report))
	require.Equal(t, []string{"1 b", "better"}, []string{tr.lines("use"), tr.lines("skip")})
	require.NotContains(t, tr.logs, "make")
	require.NotContains(t, tr.logs, "child / good")
	require.Equal(t, []string{`the jobs that ran earlier keep their results, and these files have changed or were ` +
		`written since: "broken"; without --resume all jobs run`}, tr.said)

	p = tr.read(text)
	require.NoError(t, p.Choose(whole.Choice{Manual: []string{"hand"}}))
	report, err = whole.Run(t.Context(), t.Context(), p, tr.cfg)
	require.NoError(t, err)
	require.Equal(t, whole.Success, report.Status)
	require.Equal(t, "hand 1", tr.lines("hand"))
	_, err = whole.Run(t.Context(), t.Context(), tr.read(text), tr.cfg)
	require.ErrorIs(t, err, whole.ErrNothingToResume, "all jobs have run")

	tr.cfg.Resume = false
	tr.each("a: {script: [exit 1]}\n")
	tr.cfg.Resume = true
	_, err = whole.Run(t.Context(), t.Context(), tr.read("b: {script: [exit 1]}\n"), tr.cfg)
	require.ErrorContains(t, err, "the jobs of the file, or their needs, have changed since the earlier run")
}

// A manual job that ran earlier does not have to be chosen again, and blocks nothing.
func TestResumeNeedsNoManualJobThatRan(t *testing.T) {
	tr := newTrial(t, files{"broken": ""}).keeping()
	const text = `
hand: {stage: build, script: [':'], when: manual, allow_failure: false}
later: {stage: build, script: [':'], when: delayed, start_in: 1 hour}
a: {script: ['! test -e broken']}
`
	p := tr.read(text)
	require.NoError(t, p.Choose(whole.Choice{Manual: []string{"hand"}}))
	report, err := whole.Run(t.Context(), t.Context(), p, tr.cfg)
	require.NoError(t, err)
	require.Equal(t, "hand success, later success, a failed", told(report))
	tr.cfg.Resume, tr.cfg.Files = true, nil
	report = tr.run(t.Context(), text)
	require.Equal(t, "hand success (ran earlier), later success (ran earlier), a success", told(report))
}

// A resumed run compares the files with those of the first run, and says no more than a few names.
func TestResumeNamesTheFilesThatHaveChanged(t *testing.T) {
	project := files{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		project[name] = "old"
	}
	tr := newTrial(t, project).keeping()
	const text = "a: {stage: build, script: [':']}\nb: {script: [exit 1]}\n"
	tr.each(text)
	tr.cfg.Resume = true
	tr.each(text)
	require.Empty(t, tr.said)
	for name := range project {
		tr.write(name, "newer")
	}
	for range 2 {
		tr.each(text)
		require.Len(t, tr.said, 1)
		require.Contains(t, tr.said[0], `have changed or were written since: "a", "b", "c", "d", "e" and 3 more; without`)
	}
	require.NoError(t, filepath.WalkDir(tr.cfg.StateDir, func(path string, _ os.DirEntry, err error) error {
		if filepath.Base(path) == "files" {
			return os.WriteFile(path, []byte("x"), 0o600)
		}
		return err
	}))
	tr.each(text)
	require.Contains(t, tr.said[0], "files of the project may have changed since the jobs ran that do not run again: ")
}

// A run that was killed may leave half a line, and archives may be gone.
func TestResumeReadsWhatAKilledRunLeft(t *testing.T) {
	tr := newTrial(t, files{"f": ""}).keeping()
	const text = `
a: {stage: build, script: [echo said a], artifacts: {paths: [f]}}
b: {stage: build, script: [echo said b]}
c: {script: [echo said c, exit 1]}
`
	tr.each(text)
	var done string
	require.NoError(t, filepath.WalkDir(tr.cfg.StateDir, func(path string, _ os.DirEntry, err error) error {
		switch {
		case filepath.Base(path) == "done":
			done = path
		case strings.HasSuffix(path, ".artifacts"):
			require.NoError(t, os.Remove(path))
		}
		return err
	}))
	data, err := os.ReadFile(done)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(done, append(data, `{"name":"c`...), 0o600))
	tr.cfg.Resume = true
	for range 2 { // the second time a is kept
		require.NotContains(t, tr.each(text), "b")
	}
	require.Equal(t, map[string]string{"c": "c"}, tr.each(text))
}

func TestTestReportsAreJoined(t *testing.T) {
	tr := newTrial(t, files{
		"a.xml": `<?xml version="1.0"?><!-- x --><testsuites time="1"><testsuite name="s&amp;1" tests="1">` +
			`<testcase name="&lt;t&gt;"><failure>no</failure></testcase></testsuite><testsuite/></testsuites>`,
		"b.xml": `<testsuite xmlns:x="u" x:y="z" name="s"><x:p/></testsuite>`, "bad.xml": "<testsuite><a></testsuite>",
		"other.xml": "<html/>", "bomb.xml": `<!DOCTYPE a [<!ENTITY b "c">]><testsuite name="&b;"/>`,
	})
	tr.cfg.WithTests = true
	report := tr.run(t.Context(), `
a: {script: [exit 1], allow_failure: true, artifacts: {reports: {junit: a.xml}}}
b: {script: [':'], artifacts: {reports: {junit: ["b*.xml", other.xml, gone.xml]}}}
`)
	require.NoError(t, xml.Unmarshal(report.Tests, new(struct{})))
	text := string(report.Tests)
	for _, want := range []string{
		`<testsuite name="a: s&amp;1" tests="1"><testcase name="&lt;t&gt;"><failure>no</failure></testcase></testsuite>`,
		`<testsuite name="a"></testsuite>`, `<testsuite xmlns:x="u" x:y="z" name="b: s"><x:p></x:p></testsuite>`,
	} {
		require.Contains(t, text, want)
	}
	require.Equal(t, 3, strings.Count(text, "<testsuite "))
	said := strings.Join(tr.said, "\n")
	for _, want := range []string{
		`b: tests: "bad.xml": not a report of JUnit: the element "testsuite" ends, and is not open`,
		`b: tests: "other.xml": not a report of JUnit: the element "html" is not a testsuite`,
		`b: tests: "bomb.xml": not a report of JUnit: XML syntax error`, `b: tests: gone.xml: no matching files`,
	} {
		require.Contains(t, said, want)
	}
}

// Jobs of two runs that have one resource group run one after another.
func TestAResourceGroupHoldsForAllRunsOnThisMachine(t *testing.T) {
	tr := newTrial(t, files{"f": ""}).keeping()
	other := newTrial(t, files{"f": ""})
	other.cfg.StateDir, other.cfg.Name = tr.cfg.StateDir, "other.yml"
	dir := t.TempDir()
	text := "j: {resource_group: prod, parallel: 3, script: ['mkdir $D/in', sleep 0.05, 'rmdir $D/in']}\n" +
		"variables: {D: " + dir + "}\n"
	done := make(chan *whole.Report)
	go func() {
		report, _ := whole.Run(t.Context(), t.Context(), other.read(text), other.cfg)
		done <- report
	}()
	require.Equal(t, whole.Success, tr.run(t.Context(), text).Status)
	require.Equal(t, whole.Success, (<-done).Status)
}

// Of two runs of one file at once, the second is not kept, and cannot resume the first.
func TestARunBesideAnotherOneOfItsFile(t *testing.T) {
	tr := newTrial(t, files{"f": ""}).keeping()
	second := newTrial(t, files{"f": ""})
	second.cfg.StateDir, second.cfg.Name = tr.cfg.StateDir, tr.cfg.Name
	output, once := tr.cfg.Output, sync.Once{}
	tr.cfg.Output = func(job string) (io.Writer, io.Writer, func()) {
		stdout, stderr, end := output(job)
		return writer(func(p []byte) (int, error) {
			once.Do(func() {
				require.Equal(t, whole.Failure, second.run(t.Context(), "a: {script: [exit 1]}\n").Status)
				second.cfg.Resume = true
				_, err := whole.Run(t.Context(), t.Context(), second.read("a: {script: [exit 1]}\n"), second.cfg)
				require.ErrorIs(t, err, filelock.ErrTaken)
				require.ErrorContains(t, err, "another run of this file")
			})
			return stdout.Write(p)
		}), stderr, end
	}
	require.Equal(t, whole.Failure, tr.run(t.Context(), "a: {script: [exit 1]}\n").Status)
	require.Equal(t, []string{"--resume will not find this run: another run of this file is under way"}, second.said)
	tr.cfg.Output, tr.cfg.Resume = output, true
	require.Equal(t, "a failed", told(tr.run(t.Context(), "a: {script: [exit 1]}\n")), "the first one is kept")
}

// Symptom: each job said of each of its caches that it could not be saved.
func TestADirectoryForCachesThatCannotBeIsToldOnce(t *testing.T) {
	tr := newTrial(t, files{"f": ""}).keeping()
	tr.cfg.CachesDir = filepath.Join(tr.cfg.WorkDir, "f", "caches")
	const text = "a: {parallel: 2, script: [mkdir c], cache: [{key: one, paths: [c]}, {key: two, paths: [c]}]}\n"
	require.Equal(t, "a 1/2 success, a 2/2 success", told(tr.run(t.Context(), text)))
	require.Len(t, tr.said, 1)
	require.Contains(t, tr.said[0], "caches: there is no directory for them: mkdir ")
}

// Symptom: the name of a cache was cut in a line without a sign, and in the middle of a secret, which was not masked.
func TestALongKeyOfACacheIsToldWithoutItsSecret(t *testing.T) {
	tr := newTrial(t, files{"f": ""}).keeping()
	tr.cfg.Masked = map[string]string{"SECRET": "geheim-1234567"}
	tr.given = append(tr.given, gitlabci.Variable{Name: "SECRET", Value: "geheim-1234567"})
	at := strings.Repeat("k", 75)
	tr.run(t.Context(), "a: {script: [mkdir c], cache: {key: "+at+"$SECRET-z, paths: [c]}}\n")
	require.Contains(t, tr.said, `a: cache "`+at+`[MASKED]-z" is saved`)
	tr.said = nil
	tr.run(t.Context(), "a: {script: [mkdir c], cache: {key: "+strings.Repeat("k", 990)+"$SECRET, paths: [c]}}\n")
	require.Regexp(t, `^a: cache "k{990}\.\.\.$`, tr.said[0], "it is cut with a sign")
}
