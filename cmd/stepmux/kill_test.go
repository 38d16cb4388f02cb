package main

import (
	"bufio"
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

const bound = sshtest.Bound

// The state of the VM after any end of the manager. The job has children in its process
// group, out of it, and in sessions of their own.
//
//stepmux:faults executor | The manager dies in the middle of a job: the step runner, the job and the directory stay
//stepmux:more until the job ends by itself
//stepmux:acceptance executor | Nothing is left when the manager is killed either
func TestManagerThatEndsLeavesNothingOnTheVM(t *testing.T) {
	kill := func(t *testing.T, p *os.Process) { require.NoError(t, p.Kill()) }
	for name, test := range map[string]struct {
		end   func(*testing.T, *os.Process)
		code  int
		route connector.Route
	}{
		"killed":                 {kill, -1, connector.Auto},
		"killed, by relay":       {kill, -1, connector.Relay},
		"killed, by streamlocal": {kill, -1, connector.Streamlocal},
		"killed, by session":     {kill, -1, connector.Session},
		"interrupted": {func(t *testing.T, p *os.Process) {
			require.NoError(t, p.Signal(syscall.SIGINT))
		}, 130, connector.Auto},
		"terminated": {func(t *testing.T, p *os.Process) {
			require.NoError(t, p.Signal(syscall.SIGTERM))
		}, 143, connector.Auto},
		"interrupted twice": {func(t *testing.T, p *os.Process) {
			require.NoError(t, p.Signal(syscall.SIGINT))
			require.NoError(t, p.Signal(syscall.SIGINT))
		}, 130, connector.Auto},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sshtest.OpenSSH(t)
			program := runnertest.Manager(t)
			job := filepath.Join(t.TempDir(), "job.yml")
			require.NoError(t, os.WriteFile(job, []byte(`run:
  - script: |
      sleep 600 &
      (sleep 600 &)
      setsid sh -c 'trap "" TERM; while :; do sleep 600; done' &
      echo "started in $(pwd)"
      wait
`), 0o600))
			cmd := exec.Command(program, "run", "--instance", "ssh://"+s.User+"@"+s.Addr, "--identity", s.IdentityFile,
				"--known-hosts", s.KnownHosts, "--runner-command", program, "--route", string(test.route), "--capacity", "3",
				"--builds", "3", job)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			dirs := startedIn(t, stdout, 3)
			require.Len(t, dirs, 3)
			test.end(t, cmd.Process)
			err = cmd.Wait()
			exit := (*exec.ExitError)(nil)
			require.True(t, errors.As(err, &exit), "%v", err)
			require.Equal(t, test.code, exit.ExitCode(), stderr.String())
			for _, dir := range dirs {
				requireNothingIn(t, dir)
			}
		})
	}
}

// The daemon removes the containers of a manager that was killed at any moment, with their anonymous volumes, once
// their jobs have ended: of the SIGTERM that serve sends them, or a second later of SIGKILL. Services, networks, and
// containers that were created and not started are left to the next manager.
//
//stepmux:reliability promises | A manager that is killed leaves no container
func TestAManagerThatIsKilledLeavesNoContainer(t *testing.T) {
	d := dockertest.Start(t)
	d.Load(t, "idle:1", `CMD ["sleep","600"]`)
	program := runnertest.Manager(t)
	scripts := [...]string{"sleep 600 & sleep 600", "sleep 600 & trap '' TERM; sleep 600"}
	var jobs [len(scripts)]string
	for i, script := range scripts {
		jobs[i] = filepath.Join(t.TempDir(), "job.yml")
		require.NoError(t, os.WriteFile(jobs[i], []byte("run: [{script: \""+script+"\"}]\n"), 0o600))
	}
	manager := func(job string, more ...string) *exec.Cmd {
		cmd := exec.Command(program, append([]string{"run", "--image", dockertest.Image, "--capacity", "2", job}, more...)...)
		cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+d.Socket)
		return cmd
	}
	// A kill may come at any moment of a build's start, or of as long a time after that, however busy the machine is.
	first, began := manager(jobs[0], "--network", "none"), time.Now()
	require.NoError(t, first.Start())
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(d.Containers(t), func(what string) bool { return strings.HasSuffix(what, " running") })
	}, bound, 10*time.Millisecond)
	start := time.Since(began)
	require.NoError(t, first.Process.Kill())
	_ = first.Wait() // it was killed
	random := rand.New(rand.NewPCG(1, 2))
	busy, toNext := 0, 0
	var longest [len(jobs)]time.Duration
	rounds := 5
	if text := os.Getenv("STEPMUX_KILLS"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	for i := range rounds {
		kind := i % len(jobs)
		cmd := manager(jobs[kind], "--builds", "2", "--network", "none")
		if i%4 > 1 {
			cmd = manager(jobs[kind], "--builds", "2", "--service", "idle:1")
		}
		require.NoError(t, cmd.Start())
		timer := time.NewTimer(time.Duration(random.Int64N(int64(2 * start))))
		<-timer.C
		if len(d.Containers(t)) > 0 {
			busy++
		}
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		killed := time.Now()
		var left, next []string
		require.Eventually(t, func() bool {
			next = d.Containers(t)
			left = slices.DeleteFunc(slices.Clone(next), func(what string) bool {
				return strings.HasSuffix(what, " created") || strings.Contains(what, "-idle ") ||
					strings.HasPrefix(what, "network ")
			})
			return len(left) == 0
		}, bound, 10*time.Millisecond, "left: %v", &left)
		longest[kind] = max(longest[kind], time.Since(killed))
		if len(next) > 0 || i == rounds-1 {
			toNext++
			job := filepath.Join(t.TempDir(), "next.yml")
			require.NoError(t, os.WriteFile(job, []byte("run: [{script: sleep 1}]\n"), 0o600))
			var said []byte
			// A start that the dead manager asked for may still have been under way when the next one looked.
			for range 3 {
				out, err := manager(job, "--network", "none").CombinedOutput()
				require.NoError(t, err, "%s", out)
				said = append(said, out...)
				if len(d.Containers(t)) == 0 {
					break
				}
			}
			require.Empty(t, d.Containers(t), "what the next managers are to remove: %v\nthey said: %s", next, said)
		}
	}
	t.Logf("%d kills, %d of them with containers, which were gone %v after their manager at the latest, %v if their job "+
		"ignores SIGTERM; a next manager's build removed what was left %d times", rounds, busy, longest[0], longest[1],
		toNext)
}

// startedIn waits until n builds have started, and returns their directories.
func startedIn(t *testing.T, stdout interface{ Read([]byte) (int, error) }, n int) []string {
	t.Helper()
	var dirs []string
	lines := bufio.NewScanner(stdout)
	for len(dirs) < n && lines.Scan() {
		if _, dir, ok := strings.Cut(lines.Text(), "started in "); ok {
			build, _, ok := strings.Cut(dir, "/jobs/")
			require.True(t, ok, dir)
			dirs = append(dirs, build)
		}
	}
	return dirs
}

// requireNothingIn waits until a build's directory and all processes that use it are gone.
func requireNothingIn(t *testing.T, dir string) {
	t.Helper()
	var left []string
	require.Eventually(t, func() bool {
		left = remotetest.Processes(dir)
		if _, err := os.Lstat(dir); err == nil {
			left = append(left, dir)
		}
		return len(left) == 0
	}, bound, 50*time.Millisecond, "left: %v", &left) // a look at all processes costs milliseconds
}
