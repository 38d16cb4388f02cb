package engine

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// withProgram lets the built-in steps run the program itself.
func withProgram(t testing.TB) func(*Config) {
	t.Helper()
	program, err := runnertest.Program()
	require.NoError(t, err)
	return func(c *Config) { c.Program = program }
}

//stepmux:faults manager | `builtin://script_legacy`
//stepmux:with remote/step/engine.TestManagersScriptTakesTheOptionsOfTheManager
func TestManagersScriptShowsItsCommandsAndHasTheJobsVariables(t *testing.T) {
	tr := newTrial(t, `
- name: user_script
  step: builtin://script_legacy
  inputs:
    script:
      - 'export A="1 $PLAIN"'
      - "  echo \"$A $(cat $FILE)\"\ntrue"
      - ""
      - 'echo "it''s $PW ${{ vars.PW }}"'
      - 'false | true'
      - echo not reached
    debug_trace: false
    posix_escape: true
    check_for_errors: false
    trace_sections: false
`, func(c *Config) {
		c.Env = map[string]string{"PLAIN": "of the request"}
		c.Vars = []Variable{
			{Key: "PLAIN", Value: "of the job"},
			{Key: "FILE", Value: "content", File: true},
			{Key: "PW", Value: "geheim", Masked: true},
		}
	})
	res := tr.run()
	require.Equal(t, `step "user_script": exec: exit status 1`, res.Message)
	require.Empty(t, res.Steps[0].Warnings)
	require.Equal(t, `$ export A="1 $PLAIN"
$ echo "$A $(cat $FILE)" # collapsed multi-line command
1 of the job content

$ echo "it's $PW [MASKED]"
it's [MASKED] [MASKED]
$ false | true
`, tr.stdout.String())
}

func TestManagersScriptTakesTheOptionsOfTheManager(t *testing.T) {
	legacy := func(more, commands string) *trial {
		return newTrial(t, "- {name: s, step: builtin://script_legacy, inputs: {"+more+"script: ["+commands+"]}}\n")
	}
	tr := legacy("", "echo hi")
	tr.succeed()
	require.Equal(t, "\x1b[32;1m$ echo hi\x1b[0;m\nhi\n", tr.stdout.String())

	tr = legacy("debug_trace: true, ", "echo hi")
	tr.succeed()
	require.Contains(t, tr.stderr.String(), "+ echo hi")

	tr = legacy("posix_escape: true, trace_sections: true, ", `echo one, "echo two\necho three"`)
	tr.succeed()
	require.Regexp(t, "^\\$ echo one\none\n"+
		"section_start:[0-9]+:section_script_step_1\r\x1b\\[0K\\$ echo two\ntwo\nthree\n"+
		"section_end:[0-9]+:section_script_step_1\r\x1b\\[0K\n$", tr.stdout.String())

	// What set +e turns off, check_for_errors does again.
	for more, want := range map[string]string{"": "end\n", "check_for_errors: true, ": ""} {
		tr = legacy("posix_escape: true, "+more, `set +e, "false", echo end`)
		tr.run()
		_, after, _ := strings.Cut(tr.stdout.String(), "$ false\n")
		require.Equal(t, want, strings.TrimPrefix(after, "$ echo end\n"))
	}

	legacy("", "").fail(`step "s": the script is empty; write the commands for the shell`)
	legacy("", "1").fail(`step "s": every command of the script must be a text`)
	legacy("shell: sh, ", "a").fail(`step "s": the step takes no input "shell"; it takes check_for_errors, debug_trace, ` +
		`posix_escape, script, trace_sections`)
}

func TestPartsOfAManagersJobPassVariablesInAFile(t *testing.T) {
	dir := t.TempDir()
	tr := newTrial(t, `
- {name: one, step: builtin://script_legacy, inputs: {posix_escape: true, script: ['echo "A=x y" >> "$GITLAB_ENV"']}}
- {name: two, step: builtin://script_legacy, inputs: {posix_escape: true, script: ['echo "[$A]"']}}
`, func(c *Config) { c.Vars = []Variable{{Key: "RUNNER_TEMP_PROJECT_DIR", Value: dir}} })
	tr.succeed()
	require.True(t, strings.HasSuffix(tr.stdout.String(), "\n[x y]\n"), tr.stdout)
}

func TestCloneStepChecksOutTheJobsRepository(t *testing.T) {
	root := t.TempDir()
	repo := fetchtest.NewRepository(t, filepath.Join(root, "group", "project"))
	first := repo.Commit("main", fetchtest.Texts(map[string]string{"file": "first"}))
	repo.Commit("main", fetchtest.Texts(map[string]string{"file": "second"}))
	server := fetchtest.ServeGit(t, root)
	server.User, server.Password = "gitlab-ci-token", "t0ken-of-the-job"
	with := strings.Replace(server.URL, "://", "://gitlab-ci-token:t0ken-of-the-job@", 1) + "/group/project"
	vars := func(c *Config) {
		c.Vars = []Variable{
			{Key: "CI_REPOSITORY_URL", Value: with, Masked: true},
			{Key: "CI_COMMIT_SHA", Value: first},
			{Key: "CI_JOB_TOKEN", Value: "t0ken-of-the-job", Masked: true},
			{Key: "CI_SERVER_URL", Value: server.URL},
		}
	}
	for name, inputs := range map[string]string{
		"the job's":        "{}",
		"another":          "{url: " + server.URL + "/group/project, revision: main~0}",
		"with a directory": "{url: " + server.URL + "/group/project, revision: main, dir: sub/dir, depth: 1}",
		"with a token": "{url: " + server.URL + "/group/project, revision: main, user: gitlab-ci-token, token: '${{ " +
			"vars.CI_JOB_TOKEN }}'}",
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, "- {name: c, step: builtin://git/clone, inputs: "+inputs+"}\n"+
				"- {name: s, script: 'echo ${{ steps.c.outputs.commit }}; env'}\n", vars, withProgram(t))
			res := tr.run()
			require.NotContains(t, tr.stdout.String()+tr.stderr.String()+res.Message, "t0ken-of-the-job")
			switch name {
			case "the job's":
				require.Equal(t, Success, res.Status, "%s\n%s", res.Message, tr.stderr)
				require.Equal(t, first, res.Steps[0].Outputs["commit"].Text())
				data, err := os.ReadFile(filepath.Join(tr.place.WorkDir, "file"))
				require.NoError(t, err)
				require.Equal(t, "first", string(data))
			case "another":
				require.Equal(t, `step "c": input "revision": the revision of the reference is invalid; write a tag, a branch or `+
					`a commit`, res.Message)
			case "with a directory":
				require.Equal(t, Success, res.Status, "%s\n%s", res.Message, tr.stderr)
				require.FileExists(t, filepath.Join(tr.place.WorkDir, "sub", "dir", "file"))
			default:
				require.Equal(t, Success, res.Status, "%s\n%s", res.Message, tr.stderr)
			}
		})
	}
}

//stepmux:faults engine | The job's token goes to a server that a step names
func TestJobsTokenGoesToTheJobsServerAlone(t *testing.T) {
	root := t.TempDir()
	fetchtest.NewRepository(t, filepath.Join(root, "g", "p")).Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	server := fetchtest.ServeGit(t, root)
	server.User, server.Password = "gitlab-ci-token", "t0ken-of-the-job"
	tr := newTrial(t, "- {name: c, step: builtin://git/clone, inputs: {url: "+server.URL+"/g/p}}\n", func(c *Config) {
		c.Vars = []Variable{
			{Key: "CI_JOB_TOKEN", Value: "t0ken-of-the-job", Masked: true},
			{Key: "CI_SERVER_URL", Value: "https://gitlab.example.com"},
		}
	}, withProgram(t))
	tr.fail(`step "c": exec: exit status 1`)
	require.Contains(t, tr.stderr.String(), "could not read Username")
	for step, want := range map[string]string{
		"artifacts/upload, inputs: {url: https://elsewhere.example.com, paths: [a]}": "the token is missing",
		"artifacts/upload, inputs: {paths: [a]}":                                     "which job?",
		"artifacts/upload":                                                           "which job?",
		"artifacts/upload, inputs: {id: '1'}":                                        "there are no files",
		"artifacts/download":                                                         `the input "id" is required`,
		"cache/save, inputs: {paths: [a], key: ''}":                                  "the name of the cache is empty",
		"cache/save":                                          "where are the caches?",
		"cache/save, inputs: {dir: d}":                        "there are no files",
		"cache/save, inputs: {dir: d, paths: [1]}":            "every item must be a text",
		"git/clone":                                           "which repository?",
		"git/clone, inputs: {url: /tmp/x}":                    "the repository is not a URL",
		"git/clone, inputs: {url: https://h/p, dir: ../x}":    "it must be below the job's directory",
		"git/clone, inputs: {url: https://h/p, depth: 1.5}":   "use a whole number",
		"git/clone, inputs: {url: https://h/p, revision: -x}": "the revision of the reference is invalid",
	} {
		res := newTrial(t, "- {name: c, step: builtin://"+step+"}\n", func(c *Config) {
			c.Vars = []Variable{
				{Key: "CI_JOB_TOKEN", Value: "t0ken-of-the-job", Masked: true},
				{Key: "CI_SERVER_URL", Value: "https://gitlab.example.com"},
			}
		}, withProgram(t)).run()
		require.Equal(t, Failure, res.Status)
		require.Contains(t, res.Message, want)
	}
}

func TestNamesOfCachesAreNamesOfFiles(t *testing.T) {
	seen := map[string]bool{}
	for _, key := range []string{
		"main", "feature/x", "feature%2Fx", "..", ".", "...", "a b", "$X", "-x",
		strings.Repeat("x", 300), strings.Repeat("x", 301),
	} {
		name := fileName(key)
		require.Equal(t, name, filepath.Base(name))
		require.NotContains(t, []string{"", ".", "..", "/"}, name)
		require.LessOrEqual(t, len(name), 255)
		require.False(t, seen[name], name)
		seen[name] = true
	}
}

// Symptom: a job got the cache of a project that has the same number on another server.
func TestProjectsOfTwoServersHaveCachesOfTheirOwn(t *testing.T) {
	home := t.TempDir()
	for _, server := range []string{"https://one.example.com", "https://two.example.com"} {
		tr := newTrial(t, `
- {name: restore, step: builtin://cache/restore}
- {name: make, script: "echo x > f"}
- {name: save, step: builtin://cache/save, inputs: {paths: [f]}}
`, func(c *Config) {
			c.Env = map[string]string{"HOME": home}
			c.Vars = []Variable{{Key: "CI_PROJECT_ID", Value: "7"}, {Key: "CI_SERVER_URL", Value: server}}
		}, withProgram(t))
		res := tr.run()
		require.Equal(t, Success, res.Status, "%s\n%s", res.Message, tr.stderr)
		require.Equal(t, "false", res.Steps[0].Outputs["restored"].Text(), server)
	}
}

// artifactsServer keeps the artifacts of jobs, as a GitLab server does.
type artifactsServer struct {
	mu    sync.Mutex // guards the following
	kept  map[string][]byte
	query map[string]string
	wrong []string
}

func (s *artifactsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, found := strings.CutPrefix(r.URL.Path, "/api/v4/jobs/")
	id, found2 := strings.CutSuffix(id, "/artifacts")
	switch {
	case !found || !found2 || r.Header.Get("JOB-TOKEN") != "t0ken-of-the-job":
		s.wrong = append(s.wrong, r.Method+" "+r.URL.Path)
		w.WriteHeader(http.StatusForbidden)
	case r.Method == http.MethodPost:
		part, _, err := r.FormFile("file")
		if err == nil {
			s.kept[id], err = io.ReadAll(part)
		}
		if err != nil {
			s.wrong = append(s.wrong, err.Error())
		}
		s.query[id] = r.URL.RawQuery
		w.WriteHeader(http.StatusCreated)
	case s.kept[id] == nil:
		w.WriteHeader(http.StatusNotFound)
	default:
		_, _ = w.Write(s.kept[id])
	}
}

func TestWholeJobAsSteps(t *testing.T) {
	page, err := os.ReadFile("../../../docs/job-as-steps.md")
	require.NoError(t, err)
	text, err := os.ReadFile("../../../examples/whole-job.yml")
	require.NoError(t, err)
	_, steps, _ := strings.Cut(string(text), "\nrun:\n")
	require.Contains(t, string(page), "run:\n"+steps, "the page shows the example")

	root, home := t.TempDir(), t.TempDir()
	repo := fetchtest.NewRepository(t, filepath.Join(root, "group", "project"))
	commit := repo.Commit("main", fetchtest.Texts(map[string]string{"source": "x"}))
	git := fetchtest.ServeGit(t, root)
	git.User, git.Password = "gitlab-ci-token", "t0ken-of-the-job"
	api := &artifactsServer{kept: map[string][]byte{}, query: map[string]string{}}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	vars := []Variable{
		{
			Key: "CI_REPOSITORY_URL", Masked: true,
			Value: strings.Replace(git.URL, "://", "://gitlab-ci-token:t0ken-of-the-job@", 1) + "/group/project",
		},
		{Key: "CI_COMMIT_SHA", Value: commit},
		{Key: "CI_PROJECT_ID", Value: "7"},
		{Key: "CI_JOB_ID", Value: "42"},
		{Key: "CI_SERVER_URL", Value: server.URL},
		{Key: "CI_JOB_TOKEN", Value: "t0ken-of-the-job", Masked: true},
	}
	with := func(c *Config) { c.Vars, c.Env = vars, map[string]string{"HOME": home} }
	for _, c := range []struct{ first, restored, save string }{
		{"installing the tools\n", "false", "save success"}, {"", "true", "save skipped"},
	} {
		tr := newTrial(t, string(text), with, withProgram(t))
		res := tr.run()
		require.Equal(t, Success, res.Status, "%s\n%s", res.Message, tr.stderr)
		require.Equal(t, c.first, tr.stdout.String())
		require.Equal(t, c.restored, res.Steps[1].Outputs["restored"].Text(), "%s", tr.stderr)
		require.Equal(t, c.save, statuses(res.Steps)[3])
		require.Equal(t, c.restored == "false", len(res.Steps[1].Warnings) > 0)
		require.NotContains(t, tr.stderr.String(), "t0ken-of-the-job")
	}
	api.mu.Lock()
	require.Empty(t, api.wrong)
	require.Contains(t, api.query["42"], "expire_in=1+week")
	api.mu.Unlock()

	tr := newTrial(t, `
- {name: get, step: builtin://artifacts/download, inputs: {id: "42"}}
- {name: show, script: cat dist/app}
- {name: missing, step: builtin://artifacts/download, inputs: {id: "43"}}
`, with, withProgram(t))
	tr.fail(`step "missing": exec: exit status 1`)
	require.Equal(t, commit+" built by v1\n", tr.stdout.String())
}

//stepmux:faults engine | A build replaces the program that a later built-in step runs
func TestBuiltInStepsRunOurOwnProgramEvenIfABuildHasReplacedItsFile(t *testing.T) {
	tr := newTrial(t, `
- name: replace
  script: |
    set -e
    mkdir bin
    for name in steps stepmux stepmux-vm; do
      printf '#!/bin/sh\necho evil\n' > bin/$name
      chmod +x bin/$name
    done
- name: c
  step: builtin://git/clone
  inputs: {url: "https://example.com/a"}
  env: {PATH: "${{ work_dir }}/bin:${{ env.PATH }}"}
`)
	tr.run() // the output commit is missing
	require.Equal(t, "our own program\n", tr.stdout.String())
}
