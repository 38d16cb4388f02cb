//go:build gitea

package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/doctor"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/giteatest"
	"github.com/stepmux/stepmux/internal/testing/npmtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

func TestCheckOfARealGitea(t *testing.T) {
	g, off := giteatest.Real(t), giteatest.Real(t, "ENABLED = false") // the last section is that of actions
	dir := t.TempDir()
	inventory, _ := newInventory(t, dir, 2)
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte(g.RegistrationToken), 0o600))
	file := filepath.Join(dir, "manager.yml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "state: %s\ninventory: %s\ngitea:\n"+
		"- {name: one, url: %q, token-file: %s}\n- {name: off, url: %q, token-file: %s}\n",
		filepath.Join(dir, "state"), inventory, g.URL, token, off.URL, token), 0o600))

	check := func(args ...string) (text string, code int) {
		cmd := exec.Command(runnertest.Manager(t), append([]string{"gitea", "check", "--config", file}, args...)...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run() // the code tells it
		return out.String(), cmd.ProcessState.ExitCode()
	}
	text, code := check("one")
	t.Log(text)
	require.Equal(t, 0, code)
	require.Contains(t, text, "1.26.0")
	require.Regexp(t, `ok +VMs +\S+ reaches 127\.0\.0\.1:`, text)
	require.Empty(t, g.Runners())
	require.NoDirExists(t, filepath.Join(dir, "state"))

	text, code = check("--output", "json")
	t.Log(text)
	require.Equal(t, 1, code)
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	for _, usable := range []bool{true, false} {
		var r doctor.Report
		require.NoError(t, d.Decode(&r))
		require.Equal(t, usable, r.Usable, "%+v", r)
	}
	_, code = check("other")
	require.Equal(t, 2, code)
	off.Stop()
	text, code = check("off")
	require.Equal(t, 1, code)
	require.Regexp(t, `fail +answer +.*refused`, text)
	require.Regexp(t, `warn +VMs +\S+ does not reach 127\.0\.0\.1:`, text)
}

// serveKeys starts a manager for a server, with more keys of its configuration.
func serveKeys(t *testing.T, g *giteatest.Gitea, vms int, keys string) *serversRunner {
	t.Helper()
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte(g.RegistrationToken), 0o600))
	return serveConfig(t, dir, vms,
		fmt.Sprintf("gitea:\n  name: one\n  url: %q\n  token-file: %s\n%s", g.URL, token, keys))
}

func TestEphemeralRunnersOfARealGitea(t *testing.T) {
	g := giteatest.Real(t)
	m := serveKeys(t, g, 1, "  ephemeral: true\n")
	r := g.Repo("ephemeral", workflow(`  a:
    runs-on: ubuntu-latest
    strategy: {matrix: {n: [1, 2, 3, 4, 5, 6]}}
    steps: [{run: 'echo job ${{ matrix.n }}; sleep 1'}]
`))
	for name, job := range r.Ended(6) {
		require.Equal(t, "success", job.Conclusion, "%s: %q", name, r.Rows(job.ID))
	}
	require.Eventually(t, func() bool { return len(g.Runners()) <= 1 }, bound, 100*time.Millisecond)
	require.NoError(t, m.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, m.cmd.Wait())
	require.Len(t, g.Runners(), 1, "that of the next manager")
	m.start()
	r.Push(map[string]string{"more": "text"})
	r.Ended(12)
	require.Eventually(t, func() bool { return len(g.Runners()) <= 1 }, bound, 100*time.Millisecond)
}

func TestImagesAndVariablesOfJobsOfARealGitea(t *testing.T) {
	d := dockertest.Start(t)
	g := giteatest.Real(t)
	serveKeys(t, g, 1, "  labels: ['box:docker://busybox:1', 'here:host']\n  environment: {LEVEL: low, PLACE: here}\n"+
		"docker: unix://"+d.Socket+"\n")
	r := g.Repo("images", workflow(`  box:
    runs-on: box
    outputs: {level: "${{ steps.s.outputs.level }}"}
    steps:
    - {id: s, shell: sh, run: 'echo "level=$LEVEL" >> $GITHUB_OUTPUT; test -x /bin/busybox && ls /bin/bash'}
    - {shell: sh, if: always(), run: 'echo "$LEVEL $PLACE"', env: {PLACE: mine}}
  here:
    runs-on: here
    steps: [{run: 'echo "$LEVEL $PLACE ${{ env.LEVEL }}"; test -e /bin/bash'}]
`))
	jobs := r.Ended(2)
	rows := r.Rows(jobs["box"].ID)
	t.Logf("%q", rows)
	require.Equal(t, "failure: success failure success failure", conclusions(r, jobs)["box"],
		"there is no bash in the image")
	require.Contains(t, rows, "low mine")
	rows = r.Rows(jobs["here"].ID)
	t.Logf("%q", rows)
	require.Equal(t, "success", jobs["here"].Conclusion)
	require.Contains(t, strings.Join(rows, "\n"), "low here")
}

// The VMs do not know the name in the URL of the server, which the manager reaches by another one.
func TestJobsReachARealGiteaThroughTheManager(t *testing.T) {
	packages, err := npmtest.Install(t.TempDir(), map[string]string{"artifact-1": npmtest.Clients["artifact-1"]})
	require.NoError(t, err)
	g := giteatest.Real(t, "[server]", "ROOT_URL = http://gitea.invalid:3000/")
	serveKeys(t, g, 1, "  reach: manager\n")
	addClients(g, packages)
	g.Repo("checkout", map[string]string{"action.yml": strings.Replace(checkoutAction, "http.extraHeader",
		"http.$GITHUB_SERVER_URL/.extraHeader", 1)})
	files := workflow(`  first:
    runs-on: ubuntu-latest
    steps:
    - uses: ann/checkout@main
    - uses: ann/clients@main
      with: {do: 'upload:artifact-1:one'}
    - run: cat text; echo "$GITHUB_SERVER_URL"
  script:
    runs-on: ubuntu-latest
    steps:
    - run: git ls-remote --heads "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY"
`)
	files["text"] = "of the commit\n"
	r := g.Repo("uses", files)
	jobs := r.Ended(2)
	first, script := strings.Join(r.Rows(jobs["first"].ID), "\n"), strings.Join(r.Rows(jobs["script"].ID), "\n")
	t.Logf("%s\n%s", first, script)
	require.Equal(t, "success", jobs["first"].Conclusion)
	require.Contains(t, first, "artifact: an artifact of artifact-1\n")
	require.Contains(t, first, "of the commit\nhttp://gitea.invalid:3000\n")
	require.Contains(t, script, "refs/heads/main")
}

// With https, git speaks TLS with the server itself, whose name only the manager's URL replaces.
func TestGitOfJobsSpeaksTLSWithARealGiteaThroughTheManager(t *testing.T) {
	g := giteatest.Real(t, "[server]", "ROOT_URL = https://example.com/")
	inner, err := url.Parse(g.URL)
	require.NoError(t, err)
	front := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(inner)) // its certificate has that name
	t.Cleanup(front.Close)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{
		Type: "CERTIFICATE", Bytes: front.Certificate().Raw,
	}), 0o600))
	t.Setenv("SSL_CERT_FILE", authority)
	t.Setenv("no_proxy", "")
	outer := *g
	outer.URL = front.URL
	serveKeys(t, &outer, 1, "  reach: manager\n  environment: {GIT_SSL_CAINFO: "+authority+"}\n")
	r := g.Repo("tls", workflow(`  a:
    runs-on: ubuntu-latest
    steps: [{run: 'git ls-remote --heads "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY"; echo "$GITHUB_SERVER_URL"'}]
`))
	rows := strings.Join(r.Rows(r.Ended(1)["a"].ID), "\n")
	require.Contains(t, rows, "refs/heads/main\nhttps://example.com\n")
}
