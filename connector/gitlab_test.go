package connector_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// The step runner of these tests is a stand-in for gitlab-runner, see runnertest.GitLabRunner.

// gitlabBuild is a build on a VM that has a gitlab-runner, made with these words before its arguments.
func gitlabBuild(t testing.TB, s *sshtest.Server, id string, change func(*connector.Config), words ...string) *build {
	t.Helper()
	return newBuild(t, s, id, "", func(c *connector.Config) {
		c.Runner = append(runnertest.GitLabRunner(t), words...)
		c.Route = connector.Auto
		if change != nil {
			change(c)
		}
	})
}

// requireNothingLeft waits until nothing of a build is left in its temporary directory, and no process that
// names it.
func (b *build) requireNothingLeft(t testing.TB) {
	t.Helper()
	var left []string
	require.Eventually(t, func() bool {
		left = remotetest.Processes(b.tmp)
		err := filepath.WalkDir(b.tmp, func(path string, d fs.DirEntry, err error) error {
			if err == nil && path != b.tmp && d.Name() != "gitlab-runner-steps" {
				left = append(left, path)
			}
			return nil
		})
		return err == nil && len(left) == 0
	}, sshtest.Bound, 50*time.Millisecond, "left on the VM: %v", &left) // a look at all processes costs milliseconds
}

// pidsOf returns the processes of a build whose command line has these words, in order of their PIDs.
func (b *build) pidsOf(t testing.TB, words string) []int {
	t.Helper()
	var pids []int
	for _, text := range remotetest.Processes(b.tmp) {
		number, line, _ := strings.Cut(text, " ")
		if strings.Contains(line, words) {
			pid, err := strconv.Atoi(number)
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

//stepmux:acceptance program | On a VM that has only a `gitlab-runner` or `step-runner`, builds run by that program
//stepmux:with connector.TestJobOfAGitLabRunnerIsCancelledAndTimedOut, connector.TestNothingIsLeftOfAGitLabRunner
func TestGitLabRunnerIsDrivenByItsOwnServeAndProxy(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		for _, route := range []connector.Route{connector.Auto, connector.Streamlocal, connector.Session} {
			b := gitlabBuild(t, s, "b1", func(c *connector.Config) { c.Route = route })
			_, err := b.Connect(sshtest.Within(t))
			require.NoError(t, err)
			require.Nil(t, b.Credentials(), "it knows no secret")
			found := b.program()
			require.Equal(t, program.StepRunner, found.Kind)
			require.Equal(t, "17.11.0", found.Version)
			require.False(t, found.Uploaded)
			require.Equal(t, connector.Session, b.Choice().Start)
			var out sshtest.Log
			success := connector.Result{Status: connector.Succeeded}
			failure := func(code int) connector.Result { return connector.Result{Status: connector.Failed, ExitCode: code} }
			steps := func(text string) *stepmuxv1.Job { return &stepmuxv1.Job{Steps: []byte(text)} }
			for i, test := range []struct {
				job  *stepmuxv1.Job
				want connector.Result
				out  string
			}{
				{
					&stepmuxv1.Job{
						Script: "echo \"hällo\t$WHO\" '\"\\'; pwd; echo problem >&2", Env: map[string]string{"WHO": "wörld 🙂"},
					}, success, "hällo\twörld 🙂 \"\\\n",
				},
				{&stepmuxv1.Job{Script: "exit 42"}, failure(42), ""},
				{&stepmuxv1.Job{Script: "kill -KILL $$"}, failure(137), ""},
				{steps("# steps\nrun:\n- name: one\n  script: echo of a step\n"), success, "of a step\n"},
				{
					&stepmuxv1.Job{
						Steps:     []byte("run:\n- name: one\n  script: echo of ${{ job.WHO }}\n"),
						Variables: []*stepmuxv1.Variable{{Key: "WHO", Value: "a variable"}},
					}, success, "of a variable\n",
				},
				{steps("---\nrun:\n- name: one\n  script: echo after a mark\n"), success, "after a mark\n"},
				{steps("spec: {}\n---\nrun:\n- name: one\n  script: echo after a spec\n"), success, "after a spec\n"},
			} {
				job := connector.Job{Job: test.job, ID: fmt.Sprintf("job-%d", i)}
				got, err := b.Execute(sshtest.Within(t), job, &out)
				require.NoError(t, err, "%s", out.String())
				require.Equal(t, test.want.Status, got.Status, got.Message)
				require.Equal(t, test.want.ExitCode, got.ExitCode, got.Message)
				require.Contains(t, out.String(), test.out)
			}
			require.Contains(t, out.String(), filepath.Join(b.tmp, "gitlab-runner-steps", "b1", "work")+"\n")
			require.Contains(t, out.String(), "problem\n")
			require.NoError(t, b.Close(sshtest.Within(t)))
			b.requireNothingLeft(t)
		}
	})
}

func TestJobOfAGitLabRunnerIsCancelledAndTimedOut(t *testing.T) {
	for _, words := range [][]string{nil, {"old"}} { // with Cancel, without
		s := embedded(t)
		b := gitlabBuild(t, s, "b1", nil, words...)
		_, err := b.Connect(sshtest.Within(t))
		require.NoError(t, err)
		var out sshtest.Log
		ctx, cancel := context.WithCancel(sshtest.Within(t))
		ended := make(chan error, 1)
		go func() {
			_, err := b.Execute(ctx, connector.Job{Job: &stepmuxv1.Job{Script: "echo started; sleep 600"}, ID: "1"}, &out)
			ended <- err
		}()
		out.Await(t, "started\n")
		cancel()
		require.Equal(t, context.Canceled, <-ended)
		slow := connector.Job{
			Job: &stepmuxv1.Job{Script: "sleep 600", Timeout: durationpb.New(50 * time.Millisecond)},
			ID:  "2",
		}
		result, err := b.Execute(sshtest.Within(t), slow, &out)
		require.NoError(t, err)
		require.Equal(t, connector.Failed, result.Status)
		require.True(t, result.TimedOut)
		require.Contains(t, result.Message, "longer than 50ms")
		require.NoError(t, b.Close(sshtest.Within(t)))
		b.requireNothingLeft(t)
	}
}

func TestAJobThatAGitLabRunnerRefusesIsNotValidAndItsVariablesAreNotTold(t *testing.T) {
	b := gitlabBuild(t, embedded(t), "b1", nil)
	_, err := b.Connect(sshtest.Within(t))
	require.NoError(t, err)
	job := connector.Job{
		Job: &stepmuxv1.Job{Steps: []byte("run:\n- s3cr3t: 1\n"), Env: map[string]string{"TOKEN": "s3cr3t"}},
	}
	_, err = b.Execute(sshtest.Within(t), job, &sshtest.Log{})
	refused := (*connector.RequestError)(nil)
	require.ErrorAs(t, err, &refused)
	require.Contains(t, err.Error(), "[TOKEN]")
	require.NotContains(t, err.Error(), "s3cr3t")
	// A job whose after_script failed would fail.
	job = connector.Job{
		Job: &stepmuxv1.Job{
			Steps:   []byte("run:\n- {name: a, script: 'true'}\n- {name: b, script: exit 7}\n"),
			MayFail: []string{"b"},
		},
	}
	_, err = b.Execute(sshtest.Within(t), job, &sshtest.Log{})
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "does not know the option may-fail")
	_, err = b.Execute(sshtest.Within(t), connector.Job{Job: &stepmuxv1.Job{Script: "echo \xff"}}, &sshtest.Log{})
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "not UTF-8")
}

func TestLogOfAGitLabRunnerGoesOnOverAnotherBridge(t *testing.T) {
	b := gitlabBuild(t, sshtest.OpenSSH(t), "b1", func(c *connector.Config) { c.Route = connector.Session })
	_, err := b.Connect(sshtest.Within(t))
	require.NoError(t, err)
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "gate"))
	var out sshtest.Log
	ended := make(chan error, 1)
	go func() {
		job := connector.Job{Job: &stepmuxv1.Job{Script: "echo one; " + wait + "; echo two"}}
		_, err := b.Execute(sshtest.Within(t), job, &out)
		ended <- err
	}()
	out.Await(t, "one\n")
	proxies := b.pidsOf(t, "gitlab-runner steps proxy")
	require.NotEmpty(t, proxies)
	for _, pid := range proxies {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	open()
	require.NoError(t, <-ended)
	require.Equal(t, 1, strings.Count(out.String(), "one\n"))
	require.Equal(t, 1, strings.Count(out.String(), "two\n"))
}

// What becomes of a gitlab-runner, which neither watches its stdin nor ends its jobs, when something of its
// build is gone. In each case a job runs, with children in other process groups of its session.
//
//stepmux:faults executor | The process that holds the leash is killed: the step runner and its directory leak
//stepmux:with instance.TestARelayThatDiesFailsItsBuildsAndTheNextGoesOn
func TestNothingIsLeftOfAGitLabRunner(t *testing.T) {
	kill := func(words string) func(*testing.T, *build, *sshtest.TCPProxy) {
		return func(t *testing.T, b *build, _ *sshtest.TCPProxy) {
			pids := b.pidsOf(t, words)
			require.NotEmpty(t, pids, words)
			require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL))
		}
	}
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		for name, test := range map[string]struct {
			words []string
			end   func(*testing.T, *build, *sshtest.TCPProxy)
			seen  bool // the build fails by itself
		}{
			"closed":                 {nil, func(*testing.T, *build, *sshtest.TCPProxy) {}, false},
			"closed, deaf to a TERM": {[]string{"deaf"}, func(*testing.T, *build, *sshtest.TCPProxy) {}, false},
			"cut off":                {nil, func(_ *testing.T, _ *build, p *sshtest.TCPProxy) { p.Cut() }, true},
			"serve killed":           {nil, kill("gitlab-runner steps serve --socket /"), true},
			"leash killed":           {nil, kill("stepmux-leash"), true},
			"watcher killed":         {nil, kill(" leash "), false},
			"TERM for the leash": {nil, func(t *testing.T, b *build, _ *sshtest.TCPProxy) {
				require.NoError(t, syscall.Kill(b.pidsOf(t, "stepmux-leash")[0], syscall.SIGTERM))
			}, true},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				proxy := sshtest.Proxy(t, s.Addr)
				slowly := func(c *connector.Config) { c.StopTimeout = 15 * time.Second }
				b := gitlabBuild(t, s.Via(t, proxy.Addr()), "b1", slowly, test.words...)
				_, err := b.Connect(sshtest.Within(t))
				require.NoError(t, err)
				var out sshtest.Log
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _ = b.Execute(
						sshtest.Within(t),
						connector.Job{Job: &stepmuxv1.Job{Script: "sleep 600 & (sleep 600 &)\necho started; wait"}},
						&out,
					)
				}()
				out.Await(t, "started\n")
				test.end(t, b, proxy)
				if test.seen {
					<-ended
				}
				_ = b.Close(sshtest.Within(t)) // it may say that the connection was lost
				<-ended
				b.requireNothingLeft(t)
			})
		}
	})
}

func TestNoStepmuxSweepsTheDirectoryOfAGitLabRunnerThatStarts(t *testing.T) {
	// Symptom: serves of stepmux on the same VM took a directory for a dead one's, as nobody listened yet.
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "gate"))
		slow := newBuild(t, s, "b1", "", func(c *connector.Config) {
			c.Runner = otherRunner(t, "echo begun >&2; "+wait+"; "+
				`[ -d "${socket%/*}" ] || exit 1; `+otherReady+"exec sleep 600")
			c.ReadyTimeout = sshtest.Bound
		})
		ended := make(chan error, 1)
		go func() { _, err := slow.Connect(sshtest.Within(t)); ended <- err }()
		slow.log.Await(t, "begun")
		base := filepath.Join(slow.tmp, "gitlab-runner-steps")
		require.NoError(t, os.Mkdir(filepath.Join(base, "dead"), 0o700))
		other := newBuild(t, s, "b2", runnertest.Command(t)[0], func(c *connector.Config) { c.TempDir = slow.tmp })
		_, err := other.Connect(sshtest.Within(t))
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			names, err := filepath.Glob(filepath.Join(base, "[d~]*")) // a sweep renames a directory before it removes it
			return err == nil && len(names) == 0
		}, sshtest.Bound, time.Millisecond, "it has swept")
		require.NoError(t, other.Close(sshtest.Within(t)))
		open()
		require.NoError(t, <-ended)
		require.NoError(t, slow.Close(sshtest.Within(t)))
		slow.requireNothingLeft(t)
	})
}

// otherRunner writes a stand-in for a step runner of another make whose serve is this text.
func otherRunner(t testing.TB, serve string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "step-runner")
	const version = `[ "$1" != --version ] || { printf 'Version: 1.0\nOS/Arch: linux/amd64\n'; exit; }
[ "$2" != relay ] || { echo "unknown command" >&2; exit 1; }`
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+version+"\nsocket=$4\n"+serve+"\n"), 0o700))
	return []string{path}
}

const otherReady = `echo "step-runner is listening on socket $socket" >&2; `

func TestProcessesThatAServeOfAnotherMakeLeavesBehindAreKilled(t *testing.T) {
	// Symptom: SIGTERM ended serve and left its jobs running.
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		for name, end := range map[string]string{
			"by itself": "exit 1", "at the end of the build": "exec sleep 600",
		} {
			b := newBuild(t, s, "b1", "", func(c *connector.Config) {
				c.Runner = otherRunner(t, `set -m
sh -c 'trap "" TERM HUP; while :; do sleep 600; done' "a b) $socket" &
( sh -c 'trap "" TERM HUP; while :; do sleep 600; done' "$socket" & )
`+otherReady+end)
			})
			_, err := b.Connect(sshtest.Within(t))
			if name == "at the end of the build" {
				require.NoError(t, err)
			}
			require.NoError(t, b.Close(sshtest.Within(t)))
			b.requireNothingLeft(t)
		}
	})
}

func TestServeOfAnotherMakeHasItsGrace(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		file := filepath.Join(t.TempDir(), "bye")
		b := newBuild(t, s, "b1", "", func(c *connector.Config) {
			c.Runner = otherRunner(t, `trap 'sleep 0.5; echo bye >`+file+`; exit' TERM
`+otherReady+"while :; do sleep 0.1; done")
			c.StopTimeout = sshtest.Bound
		})
		_, err := b.Connect(sshtest.Within(t))
		require.NoError(t, err)
		require.NoError(t, b.Close(sshtest.Within(t)))
		require.FileExists(t, file)
		b.requireNothingLeft(t)
	})
}

func TestServeOfAnotherMakeThatIsNeverReadyLeavesNothing(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		for serve, want := range map[string]string{
			"exec sleep 600": "was not ready within 300ms",
			// no newline
			`printf 'step-runner is listening on socket %s' "$socket" >&2; exec sleep 600`: "was not ready within 300ms",
			"echo 'step-runner is listening on socket /tmp/x' >&2; exec sleep 600":         `listens on "/tmp/x" instead of`,
			"echo cannot >&2; exit 7": "exit status 7; it said: cannot",
			"no-such-program":         "exit status 127",
		} {
			conn, vm, runner := connect(t, s), new(connector.VM), otherRunner(t, "case $socket in */b0/*) exit;; esac; "+serve)
			share := func(c *connector.Config) { c.Lease, c.VM, c.Runner = &lease{conn: conn}, vm, runner }
			// What it is takes its time to find out; for the build that is to wait only for a moment it is known.
			_, err := newBuild(t, s, "b0", "", share).Connect(sshtest.Within(t))
			require.ErrorContains(t, err, "exit status 0")
			b := newBuild(t, s, "b1", "", func(c *connector.Config) {
				share(c)
				if strings.Contains(want, "not ready") {
					c.ReadyTimeout = 300 * time.Millisecond
				}
			})
			_, err = b.Connect(sshtest.Within(t))
			failed := (*connector.ServeError)(nil)
			require.ErrorAs(t, err, &failed)
			require.ErrorContains(t, err, want)
			require.NoError(t, b.Close(sshtest.Within(t)))
			b.requireNothingLeft(t)
		}
	})
}

// umask is that of this process, and of logins of an in-process VM.
func umask() int {
	mask := syscall.Umask(0o022)
	syscall.Umask(mask)
	return mask
}

func TestServeOfAnotherMakeGetsADirectoryOfItsOwn(t *testing.T) {
	runner := func(t *testing.T) func(*connector.Config) {
		return func(c *connector.Config) {
			c.Runner = otherRunner(t, `ls -ld "${socket%/*}" >&2; echo "stdin: $(readlink /proc/self/fd/0)" >&2
echo "umask: $(umask)" >&2; env | grep '^CI' >&2; `+otherReady+"exec sleep 600")
			c.ReadyTimeout = sshtest.Bound
		}
	}
	connect := func(t *testing.T, b *build) error {
		_, err := b.Connect(sshtest.Within(t))
		return err
	}
	s := embedded(t)
	t.Run("private, and nothing else of ours", func(t *testing.T) {
		b := newBuild(t, s, "b1", "", runner(t))
		require.NoError(t, connect(t, b))
		b.log.Await(t, "umask: ")
		require.Contains(t, b.log.String(), "drwx------ ")
		require.Contains(t, b.log.String(), "stdin: /dev/null\n")
		require.Contains(t, b.log.String(), fmt.Sprintf("umask: %04o\n", umask()), "that of the login")
		require.NotContains(t, b.log.String(), "CI")
	})
	t.Run("one build at a time", func(t *testing.T) {
		b := newBuild(t, s, "b1", "", runner(t))
		require.NoError(t, connect(t, b))
		again := newBuild(t, s, "b1", "", func(c *connector.Config) { runner(t)(c); c.TempDir = b.tmp })
		require.ErrorContains(t, connect(t, again), "build b1 is already being served")
		require.NoError(t, again.Close(sshtest.Within(t)))
		require.DirExists(t, filepath.Join(b.tmp, "gitlab-runner-steps", "b1"), "the first is not disturbed")
		require.NoError(t, b.Close(sshtest.Within(t)))
		b.requireNothingLeft(t)
	})
	for name, test := range map[string]struct {
		prepare func(t *testing.T, b *build) // makes the state before the build
		want    string                       // part of the error, empty for none
	}{
		"a dead one's is replaced": {func(t *testing.T, b *build) {
			dir := filepath.Join(b.tmp, "gitlab-runner-steps", "b1")
			require.NoError(t, os.MkdirAll(dir, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, ".leash"), []byte("4194305\n"), 0o600)) // no PID is that high
		}, ""},
		"one nobody knows is not": {func(t *testing.T, b *build) {
			require.NoError(t, os.MkdirAll(filepath.Join(b.tmp, "gitlab-runner-steps", "b1", "jobs"), 0o700))
		}, "is another's"},
		"one that is locked is not": {func(t *testing.T, b *build) {
			path := filepath.Join(b.tmp, "gitlab-runner-steps", "b1")
			require.NoError(t, os.MkdirAll(path, 0o700))
			dir, err := os.Open(path)
			require.NoError(t, err)
			t.Cleanup(func() { dir.Close() })
			require.NoError(t, unix.Flock(int(dir.Fd()), unix.LOCK_EX))
		}, "is already being served"},
		"an empty one nobody locks is taken": {func(t *testing.T, b *build) {
			require.NoError(t, os.MkdirAll(filepath.Join(b.tmp, "gitlab-runner-steps", "b1"), 0o755))
		}, ""},
		"the base is a link": {func(t *testing.T, b *build) {
			require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(b.tmp, "gitlab-runner-steps")))
		}, ""}, // then it is the user's own base
		"both bases are files": {func(t *testing.T, b *build) {
			for _, name := range []string{"gitlab-runner-steps", "gitlab-runner-steps-" + strconv.Itoa(os.Getuid())} {
				require.NoError(t, os.WriteFile(filepath.Join(b.tmp, name), nil, 0o600))
			}
		}, "is no directory of this user's"},
		"others may rename": {func(t *testing.T, b *build) {
			require.NoError(t, os.Chmod(b.tmp, 0o777)) // that is the point
		}, "chmod +t"},
		"no such directory": {func(t *testing.T, b *build) { require.NoError(t, os.RemoveAll(b.tmp)) }, "is no directory"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBuild(t, s, "b1", "", runner(t))
			test.prepare(t, b)
			err := connect(t, b)
			if test.want == "" {
				require.NoError(t, err)
			} else {
				ended := (*connector.ServeError)(nil)
				require.ErrorAs(t, err, &ended)
				require.Equal(t, 3, ended.ExitCode)
				require.ErrorContains(t, err, test.want)
			}
			require.NoError(t, b.Close(sshtest.Within(t)))
			require.Empty(t, b.pidsOf(t, "step-runner"))
		})
	}
}
