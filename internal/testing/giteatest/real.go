package giteatest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// ProgramsVar names an environment variable with the directory of the programs that make prove WHAT=gitea builds:
// gitea, its files in static, and runner, its own runner.
const ProgramsVar = "STEPMUX_GITEA"

// User owns the repositories of a [Gitea], and administers it.
const User = "ann"

const password = "password-of-ann"

// Gitea is a real server. Its methods fail the test if the server refuses a call. They are for the goroutine of the
// test, as those of [Repo] are.
type Gitea struct {
	// URL is that of the server, without a slash at its end.
	URL string
	// RegistrationToken lets runners register.
	RegistrationToken string

	t        testing.TB
	program  string
	dir      string
	lines    []string     // of its configuration
	token    string       // of the API
	session  *http.Client // of a browser
	loggedIn bool         // of session
	cmd      *exec.Cmd
	log      bytes.Buffer // read after the process has ended
}

// Program returns the path of a program of [ProgramsVar]. It skips the test if that is missing, or fails it if
// STEPMUX_REQUIRE_PARTS is 1.
func Program(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv(ProgramsVar), name)
	sshtest.RequirePart(t, "gitea, run make prove WHAT=gitea", path)
	return path
}

// Real starts a Gitea, which ends with the test. lines are added to its configuration.
func Real(t testing.TB, lines ...string) *Gitea {
	t.Helper()
	dir := t.TempDir()
	port := freePort(t)
	g := &Gitea{
		URL: fmt.Sprintf("http://127.0.0.1:%d", port), t: t, program: Program(t, "gitea"), dir: dir, lines: append([]string{
			"RUN_MODE = prod", "WORK_PATH = " + dir,
			"[server]", "HTTP_ADDR = 127.0.0.1", fmt.Sprintf("HTTP_PORT = %d", port),
			fmt.Sprintf("ROOT_URL = http://127.0.0.1:%d/", port), "STATIC_ROOT_PATH = " + Program(t, "static"),
			"OFFLINE_MODE = true", "DISABLE_SSH = true", "LFS_START_SERVER = false",
			"[database]", "DB_TYPE = sqlite3", "PATH = " + filepath.Join(dir, "gitea.db"),
			"[security]", "INSTALL_LOCK = true", "PASSWORD_HASH_ALGO = pbkdf2_v1",
			"[service]", "DISABLE_REGISTRATION = true",
			"[log]", "LEVEL = warn", "MODE = console",
			"[indexer]", "ISSUE_INDEXER_TYPE = db",
			"[repository]", "DEFAULT_BRANCH = main",
			"[actions]", "DEFAULT_ACTIONS_URL = self",
		}, lines...),
	}
	require.NoError(t, os.WriteFile(g.config(), []byte(strings.Join(g.lines, "\n")+"\n"), 0o600))
	t.Cleanup(func() {
		g.Stop()
		if t.Failed() {
			t.Logf("the log of Gitea:\n%s", g.log.String())
		}
	})
	g.Run("migrate")
	g.Run("admin", "user", "create", "--admin", "--username", User, "--password", password, "--email", User+"@example.com",
		"--must-change-password=false")
	g.token = g.Run("admin", "user", "generate-access-token", "--username", User, "--scopes", "all", "--raw")
	g.Start()
	var registration struct{ Token string }
	g.call(http.MethodPost, "/admin/actions/runners/registration-token", nil, &registration)
	g.RegistrationToken = registration.Token
	return g
}

func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func (g *Gitea) config() string { return filepath.Join(g.dir, "app.ini") }

func (g *Gitea) command(args ...string) *exec.Cmd {
	cmd := exec.Command(g.program, append([]string{"--config", g.config()}, args...)...)
	cmd.Dir = g.dir
	// It refuses root by default. Here nobody else reaches it.
	cmd.Env = append(os.Environ(), "HOME="+g.dir, "GITEA_WORK_DIR="+g.dir, "GITEA_I_AM_BEING_UNSAFE_RUNNING_AS_ROOT=true")
	return cmd
}

// Run runs a command of the program, and returns the last line of its output.
func (g *Gitea) Run(args ...string) string {
	g.t.Helper()
	cmd := g.command(args...)
	var out, diagnostics bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	require.NoError(g.t, cmd.Run(), "gitea %s: %s%s", strings.Join(args, " "), &out, &diagnostics)
	text := strings.TrimSpace(out.String())
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// Start starts the server after a Stop, and returns when it answers.
func (g *Gitea) Start() {
	g.t.Helper()
	g.cmd = g.command("web")
	g.cmd.Stdout, g.cmd.Stderr = &g.log, &g.log
	require.NoError(g.t, g.cmd.Start())
	ctx, cancel := context.WithTimeout(g.t.Context(), sshtest.Bound)
	defer cancel()
	for {
		err := g.try(ctx, http.MethodGet, "/version", nil, nil)
		if err == nil {
			break
		}
		require.NoError(g.t, ctx.Err(), "gitea does not answer: %v", err)
		timer := time.NewTimer(20 * time.Millisecond)
		<-timer.C
	}
	jar, err := cookiejar.New(nil)
	require.NoError(g.t, err)
	g.session, g.loggedIn = &http.Client{Jar: jar}, false
}

// Stop ends the server. Its data stay.
func (g *Gitea) Stop() {
	if g.cmd == nil {
		return
	}
	_ = g.cmd.Process.Kill() // its database bears that, and a graceful end takes seconds
	_ = g.cmd.Wait()         // it was killed
	g.cmd = nil
	http.DefaultClient.CloseIdleConnections()
	if g.session != nil {
		g.session.CloseIdleConnections()
	}
}
