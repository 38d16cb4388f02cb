package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

func TestMain(m *testing.M) {
	if strings.HasPrefix(os.Args[0], "/proc/self/") { // a relay starts the program that it runs itself
		main()
	}
	dockertest.Main(m)
}

// quietT logs the scripts that fail, with the section that failed. With go test -v testscript logs all of each script.
type quietT struct{ *testing.T }

func (t quietT) Run(name string, script func(testscript.T)) {
	t.T.Run(name, func(t *testing.T) { script(quietT{t}) })
}

func (t quietT) Log(args ...any) {
	t.Cleanup(func() {
		if t.Failed() {
			t.T.Log(args...)
		}
	})
}

func (quietT) Verbose() bool { return false }

// dockerScripts is held by the script that uses the Docker daemon.
var dockerScripts sync.Mutex

//stepmux:faults executor | Every run warns of a program that is missing and is then put there, or says that it put
//stepmux:more there what was there
//stepmux:with connector.TestAStepmuxWithoutARelayIsReplacedIfAllowed
//stepmux:faults service | A step runner that its manager ends by SIGTERM reports a failure
//stepmux:faults fetch | Provenance is not signed: anybody can write or change it, and nothing tells what differs
//stepmux:with internal/standalone/provenance.TestVerifierOfInTotoAcceptsSignedLinks
//stepmux:with internal/standalone/provenance.TestSignedStatementListsDifferences
//stepmux:with internal/standalone/provenance.TestOnlyTheKeysOwnEnvelopesAreVerified
//stepmux:faults input | A line of a script fails, the script goes on, and the step succeeds; nothing warns the user
//stepmux:with cmd/stepmux.TestScriptsOfOurExamplesEndWithALineThatFails
//stepmux:faults input | A usage error names no remedy, or the help of another command; a foreign file is an unknown key
//stepmux:faults users | A script goes on after a line that fails, and only a checker tells
//stepmux:with remote/step/lang.TestEachWayToWriteAScriptIsVetted
//stepmux:with instance/manager.TestABuildHasTheWarningsAboutItsScriptsFromSubmitOn
//stepmux:with instance/manager.TestAManagerOfStrictScriptsRefusesJobsWithWarnings
func TestScripts(t *testing.T) { runScripts(t, "testdata/script", "") }

// runScripts runs the scripts in a directory. They find a mirror of actions in $MIRROR.
func runScripts(t *testing.T, dir, mirror string) {
	t.Helper()
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.RunT(quietT{t}, testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			tb, ok := env.T().(testing.TB)
			if !ok {
				t.Fatalf("testscript's %T is no testing.TB", env.T())
			}
			env.Values[tbKey{}] = tb
			env.Setenv("EXAMPLES", examples)
			// Short enough for sockets, and visible to the script.
			env.Setenv("TMPDIR", sshtest.SocketDir(tb))
			env.Setenv("HOME", env.WorkDir)
			env.Setenv(vmconfig.LevelVar, "off") // the scripts keep files in /tmp
			stepmux, bin := runnertest.Manager(tb), tb.TempDir()
			env.Setenv("STEPMUX", stepmux)
			env.Setenv("PATH", bin+":"+env.Getenv("PATH"))
			if err := os.Symlink(stepmux, filepath.Join(bin, "stepmux")); err != nil {
				return err
			}
			end, err := runnertest.Program()
			env.Setenv("VMS_END", end)
			env.Setenv("GITLAB_RUNNER", runnertest.GitLabRunner(tb)[0])
			env.Setenv("MIRROR", mirror)
			env.Setenv("PLATFORM", runtime.GOOS+"/"+runtime.GOARCH)
			return err
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Geteuid() == 0, nil
			case "namespaces":
				return namespaces()
			default:
				return false, fmt.Errorf("unknown condition %q", name)
			}
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"vm": startVM,
			"dockerd": func(ts *testscript.TestScript, _ bool, _ []string) {
				t := ts.Value(tbKey{}).(testing.TB)
				dockerScripts.Lock() // nocontainer looks at the whole daemon
				ts.Defer(dockerScripts.Unlock)
				d := dockertest.Start(t)
				d.Load(t, "web:1", "EXPOSE 8080",
					`CMD ["sh", "-c", "mkdir /w; echo $GREETING from the service >/w/text; exec httpd -f -p 8080 -h /w"]`)
				ts.Setenv("DOCKER_HOST", "unix://"+d.Socket)
				ts.Setenv("DAEMON_TCP", "tcp://"+d.TCP(t))
				ts.Setenv("DAEMON_CERTS", d.Certs())
			},
			"nocontainer": func(ts *testscript.TestScript, _ bool, _ []string) {
				t := ts.Value(tbKey{}).(testing.TB)
				if left := dockertest.Start(t).Containers(t); len(left) > 0 {
					ts.Fatalf("left: %v", left)
				}
			},
			"empty": requireEmpty,
			"exits": requireExit,
		},
	})
}

// namespaces reports whether the machine gives a build its own.
var namespaces = sync.OnceValues(func() (bool, error) {
	end, err := runnertest.Program()
	if err != nil {
		return false, err
	}
	out, err := exec.Command(end, "steps", "isolation", "--isolation", "processes").Output()
	return bytes.Contains(out, []byte(`"level":"processes"`)), err
})

// tbKey is the key of a script's testing.TB.
type tbKey struct{}

// startVM starts a VM and sets variables with its address: vm openssh|in-process [sshd_config lines].
func startVM(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: vm openssh|in-process [sshd_config line...]")
	}
	t, ok := ts.Value(tbKey{}).(testing.TB)
	if !ok {
		ts.Fatalf("no testing.TB")
	}
	var s *sshtest.Server
	switch args[0] {
	case "openssh":
		s = sshtest.OpenSSH(t, args[1:]...)
	case "in-process":
		s = sshtest.InProcess(t, embeddedvm.Config{})
	default:
		ts.Fatalf("unknown kind of VM %q", args[0])
	}
	ts.Setenv("VM", "ssh://"+s.User+"@"+s.Addr)
	ts.Setenv("ADDR", s.Addr)
	ts.Setenv("KEY", s.IdentityFile)
	ts.Setenv("KNOWN_HOSTS", s.KnownHosts)
}

// requireExit runs a command and checks its exit code: exits CODE COMMAND [ARG...].
func requireExit(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

// requireEmpty checks that nothing is left in a directory: empty DIR.
func requireEmpty(ts *testscript.TestScript, _ bool, args []string) {
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	var left []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "go-build") {
			left = append(left, e.Name())
		}
	}
	if len(left) > 0 {
		ts.Fatalf("left in %s: %v", args[0], left)
	}
}
