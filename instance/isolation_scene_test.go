package instance_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// isolationRoutes are the routes on which isolation is tested.
var isolationRoutes = []connector.Route{connector.Relay, connector.Streamlocal, connector.Session}

// site is a VM whose builds run at a level of isolation, with a home of its own.
type site struct {
	*vm
	home string
	p    *instance.Provider
}

// newSite starts such a VM. The isolation of root's builds differs from that of an ordinary user's, so the test is
// skipped for root: .ci/run runs the tests as an ordinary user.
func newSite(t testing.TB, level vmconfig.Level, route connector.Route, environ ...string) *site {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Skip("this is a test of isolation between builds of an ordinary user, and this user is root")
	}
	s := &site{home: newHome(t)}
	env := append(environ, "SHLVL=1", "HOME="+s.home, vmconfig.LevelVar+"="+level.String())
	s.vm = newVM(t, sshtest.OpenSSH(t, "SetEnv "+strings.Join(env, " ")))
	program := filepath.Join(s.home, ".cache/stepmux/0123/stepmux")
	require.NoError(t, os.MkdirAll(filepath.Dir(program), 0o700))
	runnertest.Copy(t, s.runner[0], program)
	beside := filepath.Join(filepath.Dir(s.runner[0]), wire.FetchProgram)
	runnertest.Copy(t, beside, filepath.Join(filepath.Dir(program), wire.FetchProgram))
	s.runner = []string{program}
	s.p = s.provider(t, 8, func(c *instance.Config, _ *instance.Instance) { c.Route = route })
	return s
}

// newHome makes a directory in the user's home, which is mostly not below a directory that isolation hides.
func newHome(t testing.TB) string {
	t.Helper()
	if self, err := user.Current(); err == nil && unix.Access(self.HomeDir, unix.W_OK) == nil {
		return dirIn(t, self.HomeDir)
	}
	return t.TempDir()
}

// dirIn makes a directory in parent, of which isolation hides some.
func dirIn(t testing.TB, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "stepmux-test-") //nolint:usetesting // its place matters
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rmtree.Remove(dir)) }) // components of steps cannot be written
	return dir
}

// tool puts this test binary into the home, as a program that scripts call with a verb, and returns its path.
func (s *site) tool(t testing.TB) string {
	t.Helper()
	path := filepath.Join(s.home, toolName)
	runnertest.Copy(t, os.Args[0], path)
	return path
}

// run runs a script as a build of its own, and returns its output and its result.
func (s *site) run(t testing.TB, id, text string, env map[string]string) (string, error) {
	t.Helper()
	out := &sshtest.Log{}
	job := script(text)
	job.Env = env
	err := build(sshtest.Within(t), s.p, id, job, out)
	return out.String(), err
}

// scene is a site with a build that is attacked.
type scene struct {
	*site
	env    map[string]string // of the attacker's jobs
	victim *instance.Executor
	out    *sshtest.Log
	ended  chan error // receives the result of the victim
	pids   []int      // the victim's processes: shell, inits, serve, relay
	script string     // the text of the victim's script file
	serial int
}

const (
	// secretOfVictim is in the environment of the victim.
	secretOfVictim = "VICTIM_SECRET=hunter2"
	// victimExit is the exit status of the victim, which no attack may change.
	victimExit = 7
	// victimText is the victim's script: it has the things that an attacker looks for.
	victimText = `
set -e
umask 077
echo text >/tmp/$MARK; echo text >/var/tmp/$MARK; echo text >/dev/shm/$MARK
ssh-agent -D -a /tmp/$MARK.agent >/dev/null &

trap 'rm -f /tmp/$MARK* /var/tmp/$MARK /dev/shm/$MARK; ipcrm -m $shm || :' EXIT
shm=$(ipcmk -M 4096 | sed 's/.*: //')
$TOOL key-add $MARK || :
echo shm=$shm
mkdir step action
echo text >secret
printf 'spec: {}\n---\nexec: {command: [echo, LOOT]}\n' >step/step.yml
echo LOOT >loot
$TOOL zip step.zip
printf 'name: a\nruns: {using: composite, steps: [{run: echo LOOT, shell: sh}]}\n' >action/action.yml
echo work=$PWD
$TOOL queue-hold $MARK &
until [ -S /tmp/$MARK.agent ]; do sleep 0.01; done
echo started
set +e
until [ -e $HOME/gate ]; do sleep 0.02; done
kill %1 %2
exit 7
`
)

// newScene starts the victim.
func newScene(t testing.TB, level vmconfig.Level, route connector.Route) *scene {
	t.Helper()
	sshtest.RequirePart(t, "openssh-client", "/usr/bin/ssh-agent")
	sshtest.RequirePart(t, "util-linux", "/usr/bin/ipcmk")
	s := &scene{site: newSite(t, level, route), out: &sshtest.Log{}, ended: make(chan error, 1)}
	tool := s.tool(t)
	require.NoError(t, os.Mkdir(filepath.Join(s.home, ".ssh"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(s.home, ".ssh/script"), []byte(sshScript), 0o600))
	for _, dir := range []string{"dotfiles/fish", ".config"} {
		require.NoError(t, os.MkdirAll(filepath.Join(s.home, dir), 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.home, "dotfiles/aliases"), nil, 0o600))
	for link, to := range map[string]string{".bash_aliases": "dotfiles/aliases", ".config/fish": "../dotfiles/fish"} {
		require.NoError(t, os.Symlink(to, filepath.Join(s.home, link)))
	}
	s.victim = prepared(t, s.p, "victim", s.out)
	name, value, _ := strings.Cut(secretOfVictim, "=")
	mark := "stepmux-test-" + filepath.Base(s.tmp)
	job := script(victimText)
	job.Env = map[string]string{name: value, "MARK": mark, "TOOL": tool}
	go func() { s.ended <- s.victim.Execute(sshtest.Within(t), job) }()
	s.out.Await(t, "started")
	said := func(name string) string {
		_, rest, _ := strings.Cut(s.out.String(), name+"=")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}

	if level == vmconfig.Off { // an attack may kill the victim before it removes them
		t.Cleanup(func() {
			left, _ := filepath.Glob("/tmp/" + mark + "*") // the pattern is right
			for _, file := range append(left, "/var/tmp/"+mark, "/dev/shm/"+mark) {
				_ = os.Remove(file) // it may be gone
			}
			if id, err := strconv.Atoi(said("shm")); err == nil {
				_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) // it may be gone
			}
		})
	}

	serve := servePID(t, s.vm, "victim")
	inits := childrenOf(t, serve)
	shell := childrenOf(t, initPID(t, s.vm, "victim"))
	s.pids = append(append(shell, inits...), serve)
	jobs, err := filepath.Glob(filepath.Dir(s.socket("victim")) + "/jobs/*")
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	text, err := os.ReadFile(filepath.Join(jobs[0], "script"))
	require.NoError(t, err)
	s.script = string(text)
	if route == connector.Relay {
		s.pids = append(s.pids, relayPID(t, s.vm))
	}
	s.env = map[string]string{
		"TOOL": tool, "MARK": mark, "SHM": said("shm"),
		"SHELL_PID": strconv.Itoa(shell[0]), "SERVE_PID": strconv.Itoa(serve), "PIDS": words(s.pids),
		"BASE": filepath.Join(s.tmp, "gitlab-runner-steps"), "PROGRAM": s.runner[0],
		"VICTIM_JOB": jobs[0], "VICTIM_WORK": said("work"), "HIDDEN": dirIn(t, "/tmp"), "TERMINAL": terminal(t),
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.env["HIDDEN"], "loot"), []byte(loot), 0o600))
	return s
}

// terminal opens a terminal, as a login of our user has one, and returns its path.
func terminal(t testing.TB) string {
	t.Helper()
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, main.Close()) })
	require.NoError(t, unix.IoctlSetPointerInt(int(main.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(main.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	return fmt.Sprintf("/dev/pts/%d", n)
}

// attack runs the attack as a build of its own, and returns that build's output and result.
func (s *scene) attack(t testing.TB, a *isolationAttack) (string, error) {
	t.Helper()
	s.serial++
	id := fmt.Sprintf("evil%d", s.serial)
	out := &sshtest.Log{}
	job := script(a.text)
	if a.steps != "" {
		job = connector.Job{Job: &stepmuxv1.Job{Steps: []byte(a.steps)}}
	}
	job.Env = map[string]string{"OWN": filepath.Dir(s.socket(id)), "ID": id}
	for key, value := range s.env {
		job.Env[key] = value
	}
	var got bytes.Buffer // the script is in the trace
	if a.traced {
		job.Trace = &got
	}
	if a.packed {
		job.Artifacts = &files.Artifacts{Paths: []string{"loot"}, Take: func(_ context.Context, archive *os.File) error {
			r, err := zstd.NewReader(archive)
			if err == nil {
				defer r.Close()
				_, err = io.Copy(&got, r)
			}
			return err
		}}
	}
	err := build(sshtest.Within(t), s.p, id, job, out)
	return out.String() + got.String(), err
}

// end ends the victim, which must not know that anything has happened.
func (s *scene) end(t testing.TB) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(s.home, "gate"), nil, 0o600))
	requireReason(t, <-s.ended, instance.ScriptFailure, victimExit)
	require.NoError(t, s.victim.Cleanup(sshtest.Within(t)))
	require.Empty(t, s.victim.Left())
	require.NoError(t, s.p.Close())
	s.requireClean(t)
}

// reset ends a victim that may have been harmed.
func (s *scene) reset(t testing.TB) {
	t.Helper()
	for _, pid := range s.pids {
		if process, err := os.FindProcess(pid); err == nil {
			_ = process.Signal(syscall.SIGCONT) // it may be gone
		}
	}
	_ = os.WriteFile(filepath.Join(s.home, "gate"), nil, 0o600)
	s.Stop()
	killNamed(t, s.env["MARK"])
	<-s.ended
	_ = s.victim.Cleanup(sshtest.Within(t))
}

//stepmux:reliability promises | An isolated build cannot see or harm other builds, and leaves no process
//stepmux:with instance.TestHostileEndsLeaveNothing, instance.TestALevelThatCannotBeHadIsAnErrorAndAutoGoesOnWithout
func TestNoAttackSucceedsThroughIsolation(t *testing.T) {
	t.Parallel()
	// Streamlocal starts the step runner as Session does.
	for _, route := range []connector.Route{connector.Relay, connector.Session} {
		t.Run(string(route), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, vmconfig.Processes, route)
			tried := 0
			for i := range isolationAttacks {
				a := &isolationAttacks[i]
				if a.with == stands {
					continue
				}
				t.Run(a.name, func(t *testing.T) {
					out, err := s.attack(t, a)
					require.Equal(t, a.with == open, a.succeeded(s, out), "output: %s, result: %v", out, err)
					tried++
				})
			}
			s.end(t)
			t.Logf("%d attacks by %s", tried, route)
		})
	}
}

func TestAttacksThatSucceedWithoutIsolation(t *testing.T) {
	t.Parallel()
	shared := newScene(t, vmconfig.Off, connector.Relay)
	defer shared.reset(t)
	for i := range isolationAttacks {
		a := &isolationAttacks[i]
		if a.without == stands {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			s := shared
			if a.has != nil && !a.shares {
				t.Parallel()
				s = newScene(t, vmconfig.Off, connector.Relay)
				defer s.reset(t)
			}
			out, err := s.attack(t, a)
			require.Equal(t, a.without == open, a.succeeded(s, out), "output: %s, result: %v", out, err)
		})
	}
}

func TestEveryAttackIsInTheDocumentation(t *testing.T) {
	t.Parallel()
	words := map[outcome]string{closed: "fails", open: "succeeds", stands: "-"}
	page, err := os.ReadFile("../docs/security.md")
	require.NoError(t, err)
	table := ""
	for _, a := range isolationAttacks {
		table += fmt.Sprintf("| %s | %s | %s |\n", a.name, words[a.without], words[a.with])
	}
	if !strings.Contains(string(page), "|---|---|---|\n"+table+"\n") {
		t.Errorf("the table of attacks is this one:\n%s", table)
	}
}
