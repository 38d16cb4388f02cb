package engine

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// Symptom: a built-in step whose server could not be reached, or failed, and a full disk were the script's failure,
// with exit code 1.
func TestABuiltInStepThatTheSystemFailsIsNoFailureOfTheScript(t *testing.T) {
	t.Parallel()
	closed := httptest.NewServer(nil)
	closed.Close()
	secure := httptest.NewUnstartedServer(nil)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	status := func(code int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(code)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	hangup := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(hangup.Close)
	root := t.TempDir()
	fetchtest.NewRepository(t, filepath.Join(root, "g", "p")).Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	git := fetchtest.ServeGit(t, root)
	const (
		clone    = "git/clone, inputs: {url: "
		upload   = "artifacts/upload, inputs: {paths: [file], url: "
		download = "artifacts/download, inputs: {id: '7', url: "
	)
	type failure struct {
		step, url string
		system    bool
	}
	failures := map[string]failure{
		"clone, does not resolve":    {clone, "http://stepmux.invalid/g/p", true},
		"clone, refuses":             {clone, closed.URL + "/g/p", true},
		"clone, unknown certificate": {clone, secure.URL + "/g/p", true},
		"clone, hangs up":            {clone, hangup.URL + "/g/p", true},
		"clone, no git":              {"git/clone, env: {PATH: /none}, inputs: {url: ", git.URL + "/g/p", true},
		"clone, no such repository":  {clone, git.URL + "/g/none", false},
		"clone, no such revision":    {clone, git.URL + "/g/p, revision: none", false},
		"upload, unknown authority":  {upload, secure.URL, true},
		"download, certificate":      {download, secure.URL, true},
	}
	for name, step := range map[string]string{"clone": clone, "upload": upload, "download": download} {
		for code, system := range map[string]bool{
			"500": true, "503": true, "504": true, "429": true, "401": false, "403": false, "404": false, "410": false,
		} {
			number := int(code[0]-'0')*100 + int(code[1]-'0')*10 + int(code[2]-'0')
			failures[name+", "+code] = failure{step, status(number), system}
		}
	}
	for name, f := range failures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := "- {name: s, step: builtin://" + f.step + f.url + "}}\n- {name: after, when: always, script: echo after}\n"
			given := func(c *Config) {
				c.Vars = []Variable{{Key: "CI_JOB_ID", Value: "7"}, {Key: "CI_JOB_TOKEN", Value: "t0ken-of-the-job"}}
			}
			token := func(c *Config) { // the job's token is for the job's server
				c.Vars = append(c.Vars, Variable{Key: "CI_SERVER_URL", Value: f.url})
			}
			tr := newTrial(t, text, given, token, withProgram(t)).files(map[string]string{"file": "x"})
			res := tr.run()
			require.Equal(t, Failure, res.Status)
			require.Equal(t, f.system, res.System, "%s\n%s", res.Message, tr.stderr)
			require.Equal(t, f.system, res.Steps[0].System)
			want := `step "s": exec: exit status 1`
			if f.system {
				want = `step "s": the network, a server or this machine is at fault, as the log says: exit status 3`
			}
			require.Equal(t, want, res.Message)
			require.Equal(t, "after\n", tr.stdout.String())
			if name == "clone, refuses" {
				mayFail := func(c *Config) { c.MayFail = []string{"s"} }
				res = newTrial(t, text, given, token, withProgram(t), mayFail).run()
				require.Equal(t, Success, res.Status, "the job goes on without it")
				require.False(t, res.System)
			}
		})
	}
}

func TestABuiltInStepThatFindsAFullDiskIsNoFailureOfTheScript(t *testing.T) {
	full := t.TempDir()
	if err := unix.Mount("tmpfs", full, "tmpfs", 0, "size=4k,nr_inodes=2"); err != nil {
		t.Skipf("part missing: the right to mount: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(full, unix.MNT_DETACH)) })
	root := t.TempDir()
	fetchtest.NewRepository(t, filepath.Join(root, "g", "p")).Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	git := fetchtest.ServeGit(t, root)
	for name, step := range map[string]string{
		"cache/save": "cache/save, inputs: {paths: [file], dir: " + full + "}",
		"git/clone":  "git/clone, inputs: {url: " + git.URL + "/g/p}",
	} {
		tr := newTrial(t, "- {name: s, step: builtin://"+step+"}\n", withProgram(t))
		tr.files(map[string]string{"file": "x"})
		if name == "git/clone" {
			tr.place.WorkDir = full
		}
		res := tr.run()
		require.Equal(t, Failure, res.Status, name)
		require.True(t, res.System, "%s: %s\n%s", name, res.Message, tr.stderr)
	}
}

// The exit code by which a command of this program says so is a script's own matter.
func TestAScriptCannotSayThatTheSystemIsAtFault(t *testing.T) {
	for _, step := range []string{
		"script: exit 3", "step: builtin://script, inputs: {script: exit 3}",
		"step: builtin://legacy/script, inputs: {script: exit 3}", "step: ./own",
	} {
		tr := newTrial(t, "- {name: s, "+step+"}\n")
		tr.files(map[string]string{"own/step.yml": "spec:\n---\nexec: {command: [sh, -c, exit 3]}\n"})
		res := tr.fail(`step "s": exec: exit status 3`)
		require.False(t, res.System)
	}
}
