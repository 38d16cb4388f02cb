package connector_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// answering writes a stand-in for a step runner that answers --version with this shell text.
func answering(t testing.TB, text string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runner")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n[ \"$1\" = --version ] || exit 1\n"+text+"\n"), 0o700))
	return []string{path}
}

//stepmux:acceptance program | An error names a program that is no step runner
func TestWhatIsNoStepRunnerIsNamed(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		for text, want := range map[string]string{
			"echo nonsense":                             `printed "nonsense": no line of it begins with "Version:"`,
			"true":                                      `printed "": no line`,
			"head -c 40 /dev/zero":                      `no line of it begins with "Version:"`,
			"echo 'Version: <none>'":                    `the program's version "<none>" is not a valid version`,
			"echo Version: 1":                           `no line of it begins with "OS/Arch:"`,
			"echo Version: 1; echo OS/Arch: amd64":      "is not os/arch",
			"head -c 70000 /dev/zero":                   "the command printed more than 65536 bytes",
			"echo no such option >&2; exit 2":           "exit status 2",
			"echo Version: 1; echo OS/Arch: a/b; false": "exit status 1",
			"kill -SEGV $$":                             "remote process",
			"sleep 600; true":                           "no answer within 300ms",
			"exec 1>&-; sleep 600; true":                "no answer within 300ms",
			"trap '' TERM HUP; cat /dev/zero; true":     "the command printed more than 65536 bytes",
		} {
			for _, route := range []connector.Route{connector.Auto, connector.Streamlocal} {
				runner := answering(t, text)
				b := newBuild(t, s, "b1", "", func(c *connector.Config) {
					c.Runner, c.Route, c.ReadyTimeout = runner, route, 300*time.Millisecond
					if !strings.Contains(want, "no answer") {
						c.ReadyTimeout = sshtest.Bound
					}
				})
				_, err := b.Connect(sshtest.Within(t))
				failed := (*connector.ServeError)(nil)
				require.ErrorAs(t, err, &failed, "%q", text)
				require.ErrorContains(t, err, want, "%q", text)
				require.ErrorContains(t, err, runner[0], "it names the command")
				require.NoError(t, b.Close(sshtest.Within(t)))
				require.EqualValues(t, 1, b.lease.released.Load())
				entries, err := os.ReadDir(b.tmp)
				require.NoError(t, err)
				require.Empty(t, entries)
				gone := func() bool { return len(remotetest.Processes(runner[0])) == 0 }
				require.Eventually(t, gone, sshtest.Bound, time.Millisecond, "%q", text)
			}
		}
	})
}

func TestTheVersionIsFoundBehindALoginShellsGreeting(t *testing.T) {
	shell := filepath.Join(t.TempDir(), "shell")
	greets := "#!/bin/sh\nprintf 'Welcome to version 7\\nVersion: of the greeting\\n$ '\nexec /bin/sh \"$@\"\n"
	require.NoError(t, os.WriteFile(shell, []byte(greets), 0o700))
	b := newBuild(t, sshtest.InProcess(t, embeddedvm.Config{Shell: shell}), "b1", "", func(c *connector.Config) {
		c.Runner, c.Route = runnertest.GitLabRunner(t), connector.Streamlocal
	})
	_, err := b.Connect(sshtest.Within(t))
	require.NoError(t, err)
	require.Equal(t, "17.11.0", b.program().Version)
}

//stepmux:faults executor | One failed start of a relay keeps a VM at sessions for the connection's life
//stepmux:with connector.TestAProgramThatSaysItHasNoRelayIsTriedOncePerConnection
func TestARelayThatDidNotStartIsTriedAgainAndTakesTheBuilds(t *testing.T) {
	// Symptom: one failed start of a relay kept a VM at sessions, that is at eight builds, while its connection lived.
	connector.SetRelayRetry(t, time.Millisecond)
	s := embedded(t)
	conn, vm := connect(t, s), new(connector.VM)
	broken := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.WriteFile(broken, nil, 0o600))
	path := filepath.Join(t.TempDir(), "stepmux")
	command := "#!/bin/sh\n[ \"$2\" != relay ] || [ ! -e " + broken + " ] || exit 1\nexec " +
		runnertest.Command(t)[0] + " \"$@\"\n"
	require.NoError(t, os.WriteFile(path, []byte(command), 0o700))
	start := func() connector.Route {
		b := newBuild(t, s, "b1", path, func(c *connector.Config) {
			c.VM, c.Lease, c.Route = vm, &lease{conn: conn}, connector.Auto
		})
		_, err := b.Connect(sshtest.Within(t))
		require.NoError(t, err)
		defer b.Close(sshtest.Within(t)) //nolint:errcheck // the connection ends the rest
		return b.Choice().Start
	}
	require.Equal(t, connector.Session, start())
	require.NoError(t, os.Remove(broken))
	require.Eventually(t, func() bool { return start() == connector.Relay }, sshtest.Bound, time.Millisecond)
}

// Symptom: a VM whose sshd allowed forwarding from some time on had no streamlocal until its manager was started again.
func TestForwardingThatIsAllowedIsFoundOverTheNextConnection(t *testing.T) {
	vm, path := new(connector.VM), runnertest.Command(t)[0]
	for i, lines := range [][]string{{"AllowStreamLocalForwarding no"}, nil} {
		s := sshtest.OpenSSH(t, lines...)
		conn := connect(t, s)
		for range 2 {
			b := newBuild(t, s, "b1", path, func(c *connector.Config) {
				c.VM, c.Lease, c.Route = vm, &lease{conn: conn}, connector.Auto
			})
			_, err := b.Connect(sshtest.Within(t))
			require.NoError(t, err)
			require.Equal(t, []connector.Route{connector.Relay, connector.Streamlocal}[i], b.Choice().Bridge)
			require.NoError(t, b.Close(sshtest.Within(t)))
		}
	}
}

func TestAProgramThatSaysItHasNoRelayIsTriedOncePerConnection(t *testing.T) {
	connector.SetRelayRetry(t, 0)
	s := embedded(t)
	const version = `printf 'Version: 0.1\nName: stepmux\nProtocol: 0\nOS/Arch: linux/amd64\n'`
	for name, rest := range map[string]string{
		"of another make": "exec " + runnertest.GitLabRunner(t)[0],
		"too old":         `[ "$1" != --version ] || { ` + version + "; exit; }\nexec " + runnertest.Command(t)[0],
	} {
		t.Run(name, func(t *testing.T) {
			conn, vm, asked := connect(t, s), new(connector.VM), filepath.Join(t.TempDir(), "asked")
			path := filepath.Join(t.TempDir(), "runner")
			command := "#!/bin/sh\n[ \"$2\" != relay ] || { echo x >>" + asked + "; exit 1; }\n" + rest + " \"$@\"\n"
			require.NoError(t, os.WriteFile(path, []byte(command), 0o700))
			for i := range 3 {
				b := newBuild(t, s, "b"+strconv.Itoa(i), path, func(c *connector.Config) {
					c.VM, c.Lease, c.Route = vm, &lease{conn: conn}, connector.Auto
				})
				require.NoError(t, b.runs(t))
			}
			text, err := os.ReadFile(asked)
			require.NoError(t, err)
			require.Equal(t, "x\n", string(text))
		})
	}
}

//stepmux:faults executor | Asking for the version costs a session for each build
//stepmux:acceptance program | The VM's step runner and its version are found out once for each connection
//stepmux:with connector.TestAnErrorIsSharedByThoseWhoWaitForItAndTheNextOneAsksAgain
func TestAProgramIsAskedOncePerConnection(t *testing.T) {
	s := embedded(t)
	asked := filepath.Join(t.TempDir(), "asked")
	path := filepath.Join(t.TempDir(), "runner")
	command := "#!/bin/sh\necho \"$1 $2\" >>" + asked + "\n[ \"$2\" != relay ] || exit 1\nexec " +
		runnertest.Command(t)[0] + " \"$@\"\n"
	require.NoError(t, os.WriteFile(path, []byte(command), 0o700))
	vm := new(connector.VM)
	for connection := range 2 {
		conn := connect(t, s)
		for i := range 3 {
			b := newBuild(t, s, "b"+strconv.Itoa(i), path, func(c *connector.Config) {
				c.VM, c.Lease, c.Route = vm, &lease{conn: conn}, connector.Auto
			})
			require.NoError(t, b.runs(t))
		}
		text, err := os.ReadFile(asked)
		require.NoError(t, err)
		require.Equal(t, connection+1, strings.Count(string(text), "--version"), string(text))
		require.Equal(t, connection+1, strings.Count(string(text), "steps relay"), string(text))
	}
}

func TestAnErrorIsSharedByThoseWhoWaitForItAndTheNextOneAsksAgain(t *testing.T) {
	s := embedded(t)
	conn, vm := connect(t, s), new(connector.VM)
	dir := t.TempDir()
	gate, asked, mended := filepath.Join(dir, "gate"), filepath.Join(dir, "asked"), filepath.Join(dir, "mended")
	runner := answering(t, "echo x >>"+asked+"; until [ -e "+gate+" ]; do sleep 0.01; done\n"+
		"[ ! -e "+mended+" ] || exec "+runnertest.Command(t)[0]+" --version; echo broken")
	share := func(c *connector.Config) { c.Lease, c.VM, c.Runner = &lease{conn: conn}, vm, runner }
	errs := make(chan error, 5)
	for i := range cap(errs) {
		b := newBuild(t, s, "b"+strconv.Itoa(i), "", share)
		go func() { _, err := b.Connect(sshtest.Within(t)); errs <- err }()
	}
	require.Eventually(t, func() bool { _, err := os.Stat(asked); return err == nil }, sshtest.Bound, time.Millisecond)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	for range cap(errs) {
		require.ErrorContains(t, <-errs, "broken")
	}
	require.Zero(t, vm.Program())
	require.NoError(t, os.WriteFile(mended, nil, 0o600))
	_, err := newBuild(t, s, "last", "", share).Connect(sshtest.Within(t))
	require.ErrorContains(t, err, "exit status 1", "it is a stepmux now, with a serve that fails")
	require.Equal(t, program.Stepmux, vm.Program().Kind)
}

//stepmux:acceptance program | Another version is a warning
func TestAnotherVersionIsToldOnce(t *testing.T) {
	s := embedded(t)
	for _, route := range []connector.Route{connector.Relay, connector.Streamlocal} {
		logger, log := logs()
		vm := new(connector.VM)
		for i := range 3 { // each by a connection of its own
			b := newBuild(t, s, "b"+strconv.Itoa(i), runnertest.Command(t)[0], func(c *connector.Config) {
				c.VM, c.Logger, c.Route, c.Version = vm, logger, route, "v9.9.9"
			})
			require.NoError(t, b.runs(t))
			require.Equal(t, "devel", b.program().Version)
			require.Equal(t, binary(t).Platform(), b.program().Platform)
		}
		require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
		require.Contains(t, log.String(), "there=devel here=v9.9.9")
	}
	logger, log := logs()
	b := newBuild(t, s, "b1", runnertest.Command(t)[0], func(c *connector.Config) {
		c.Logger, c.Version = logger, "devel"
	})
	require.NoError(t, b.runs(t))
	require.NotContains(t, log.String(), "level=WARN", "the same")
}

func TestWhereNoRunnerIsConfiguredAnotherMakesIsTaken(t *testing.T) {
	bin := onlyPrograms(t, "sh", "ls", "id", "uname", "od", "tr", "chmod", "mkdir", "rm", "rmdir", "setsid", "sleep",
		"cat")
	v := newBareVM(t, "PATH="+bin)
	none := func(c *connector.Config) { c.Runner, c.Bootstrap = nil, nil }
	err := v.build(t, "b1", none).runs(t)
	require.ErrorContains(t, err, `is "stepmux" installed on the VM`)

	require.NoError(t, os.Symlink(runnertest.GitLabRunner(t)[0], filepath.Join(bin, "gitlab-runner")))
	b := v.build(t, "b2", none)
	require.NoError(t, b.runs(t))
	require.Equal(t, program.Program{
		Kind: program.StepRunner, Version: "17.11.0", Platform: binary(t).Platform(), Command: []string{"gitlab-runner"},
	}, b.program())

	err = v.build(t, "b3", func(c *connector.Config) { c.Runner, c.Bootstrap = []string{"stepmux"}, nil }).runs(t)
	require.ErrorContains(t, err, `is "stepmux" installed on the VM`, "not if stepmux was asked for")

	b = v.build(t, "b4", func(c *connector.Config) { c.Runner = nil })
	require.ErrorContains(t, b.runs(t), "head", "a stepmux is preferred where one may be put there")

	require.NoError(t, os.Symlink(runnertest.Command(t)[0], filepath.Join(bin, "stepmux")))
	b = v.build(t, "b5", none)
	require.NoError(t, b.runs(t))
	require.Equal(t, []string{"stepmux"}, b.program().Command)
}

func TestAServeThatIsGoneSaysNothingAboutForwarding(t *testing.T) {
	command := runnertest.Command(t)[0]
	// A stand-in says that it listens where nothing does, if it is for the build gone. Its argument is where a real one
	// has the socket's path.
	path := filepath.Join(t.TempDir(), "runner")
	text := `#!/bin/sh
case "$2 $4" in serve*/gone/*) echo "step-runner is listening on socket $4" >&2; exec cat >/dev/null;; esac
case $2 in relay) exit 1;; esac
exec ` + command + " \"$@\"\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		conn, vm := connect(t, s), new(connector.VM)
		tmp := sshtest.SocketDir(t)
		share := func(c *connector.Config) {
			c.Lease, c.VM, c.Route, c.TempDir = &lease{conn: conn}, vm, connector.Auto, tmp
		}
		gone := newBuild(t, s, "gone", path, share)
		_, err := gone.Connect(sshtest.Within(t))
		require.ErrorContains(t, err, "bridge to the step runner")
		require.Empty(t, vm.Choice().Bridge)
		require.NoError(t, gone.Close(sshtest.Within(t)))

		b := newBuild(t, s, "b1", path, share)
		require.NoError(t, b.runs(t))
		require.Equal(t, connector.Streamlocal, b.Choice().Bridge)
	})
}
