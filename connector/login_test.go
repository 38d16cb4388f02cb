package connector_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// helloSaid is in the manager's hello to a relay, which another program has read.
const helloSaid = "stepmux-manager/1"

// Symptom: a login that ran another program in place of each command cost a build 63 s, and then was asked "is it a
// step runner?"; or the build ended as job_execution_timeout.
//
//stepmux:faults users | A login that runs another program in place of the command is blamed on the step runner, or on
//stepmux:more the job's timeout
//stepmux:with instance.TestATimeoutBeforeTheFirstStepIsTheMachines
//stepmux:with instance/doctor.TestALoginThatRunsNoCommandFailsWithTheAdviceThatFits
//stepmux:with connector/script.TestALoginThatRunsNoScriptIsNamedAtOnce
func TestALoginThatRunsNoCommandIsNamedAtOnce(t *testing.T) {
	for name, at := range map[string]struct {
		part, force, line string // line is of a start file
		said              string
		silent            bool // the login waits for input, so a relay's start takes 30 s
	}{
		"start file that starts zsh":        {part: "zsh", line: "exec zsh -f", said: helloSaid},
		"start file that starts a bash":     {line: "exec bash --norc", said: helloSaid},
		"start file that starts no shell":   {line: "exec no-such-shell", said: "no-such-shell: not found"},
		"start file that reads":             {line: "read -r x", silent: true},
		"start file that ends":              {line: "echo bye; exit", said: "bye"},
		"account that is not available":     {force: "echo 'not available'; exit 1", said: "not available"},
		"refusal on stderr":                 {force: "echo 'not here' >&2; exit 1", said: "not here"},
		"refusal on both streams":           {force: "echo out; echo err >&2; exit 3", said: "out | err"},
		"refusal that quotes the command":   {force: `echo "no: $SSH_ORIGINAL_COMMAND"; exit 1`, said: "no: "},
		"refusal that moves the cursor":     {force: `printf '\033[2Jgone'; exit 1`, said: "[2Jgone"},
		"program that copies":               {force: "cat", said: helloSaid},
		"program that prints without end":   {force: "yes", said: "y y y"},
		"program that waits":                {force: "echo menu; exec sleep 600", said: "menu", silent: true},
		"shell that is a command's program": {force: "sh", said: helloSaid},
		"shell that ends at once":           {force: "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			force := at.force
			if at.part != "" {
				sshtest.RequirePart(t, at.part, "/usr/bin/"+at.part)
			}
			if at.line != "" {
				force = sshtest.StartFile(t, at.line)
			}
			s := sshtest.OpenSSH(t, "ForceCommand "+force)
			for _, route := range []connector.Route{connector.Auto, connector.Streamlocal} {
				if at.silent && route == connector.Auto {
					continue
				}
				b := newBuild(t, s, "b1", runnertest.Command(t)[0], func(c *connector.Config) {
					c.Route = route
					if at.silent || at.said == helloSaid { // it never answers: without a relay nothing is sent to it
						c.ReadyTimeout = 300 * time.Millisecond
					}
				})
				_, err := b.Connect(sshtest.Within(t))
				require.ErrorIs(t, err, program.ErrNotRun)
				failed, ok := errors.AsType[*connector.ServeError](err)
				require.True(t, ok)
				require.False(t, failed.Ready)
				require.ErrorContains(t, err, "did not run the command \""+runnertest.Command(t)[0], "it names the command")
				require.NotContains(t, err.Error(), "step runner?", "the runner command is not to blame")
				require.Contains(t, failed.Hint, "ForceCommand")
				if route == connector.Auto || at.said != helloSaid {
					require.ErrorContains(t, err, at.said)
				}
				require.Less(t, len(err.Error()), 4<<10)
				require.NotContains(t, err.Error(), "\x1b")
			}
		})
	}
}

// Symptom: the error blamed ForceCommand, or asked whether the command is a step runner.
func TestALoginThatReachesALimitIsToldWhichOneToRaise(t *testing.T) {
	for name, at := range map[string]struct{ limit, hint string }{
		"processes, dash": {"prlimit --nproc=1 setpriv --reuid=54321 --regid=54321 --clear-groups sh", "raise ulimit -u"},
		"processes, bash": {"prlimit --nproc=1 setpriv --reuid=54321 --regid=54321 --clear-groups bash", "raise ulimit -u"},
		"open files":      {"prlimit --nofile=5 sh", "raise ulimit -n"},
		"memory":          {"prlimit --as=50000000 sh", "raise ulimit -v"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sshtest.RequirePart(t, "util-linux", "/usr/bin/prlimit")
			if strings.Contains(at.limit, "setpriv") {
				sshtest.RequirePart(t, "util-linux", "/usr/bin/setpriv")
				if os.Geteuid() != 0 {
					t.Skip("part missing: root, which starts processes of another user")
				}
			}
			s := sshtest.OpenSSH(t, "ForceCommand "+at.limit+` -c "$SSH_ORIGINAL_COMMAND"`)
			for _, route := range []connector.Route{connector.Auto, connector.Streamlocal} {
				b := newBuild(t, s, "b1", runnertest.Command(t)[0], func(c *connector.Config) { c.Route = route })
				_, err := b.Connect(sshtest.Within(t))
				require.ErrorContains(t, err, at.hint)
				require.NotContains(t, err.Error(), "ForceCommand")
				require.NotContains(t, err.Error(), "step runner?")
			}
		})
	}
}

// Symptom: "exit status 137 (is the runner command a step runner?); it said: Killed".
func TestAStartFileThatTakesStandardInputIsNamed(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"exec </dev/null", "exec 0<&-"} {
		s := sshtest.OpenSSH(t, "ForceCommand "+sshtest.StartFile(t, line))
		for _, route := range []connector.Route{connector.Auto, connector.Streamlocal} {
			b := newBuild(t, s, "b1", runnertest.Command(t)[0], func(c *connector.Config) { c.Route = route })
			_, err := b.Connect(sshtest.Within(t))
			require.ErrorContains(t, err, "its standard input had ended (do the start-up files of the login's shell take it")
			require.NotContains(t, err.Error(), "Killed")
		}
	}
}

// Symptom: "no answer within 30s", twice: the process of the start-up file kept the output of each command open. With a
// build, such a process makes its end take as long as StopTimeout.
func TestAProcessThatAStartFileLeavesHoldsNothingUp(t *testing.T) {
	t.Parallel()
	pids := filepath.Join(t.TempDir(), "pids")
	s := sshtest.OpenSSH(t, "ForceCommand "+sshtest.StartFile(t, "sleep 600 & echo $! >>"+pids))
	defer func() {
		text, _ := os.ReadFile(pids)
		require.NoError(t, exec.Command("kill", strings.Fields(string(text))...).Run())
	}()
	for _, route := range []connector.Route{connector.Auto, connector.Streamlocal} {
		b := newBuild(t, s, "b1", "no-such-program", func(c *connector.Config) { c.Route = route })
		_, err := b.Connect(sshtest.Within(t))
		require.ErrorContains(t, err, "exit status 127 (is \"no-such-program\" installed on the VM")
		b = newBuild(t, s, "b2", runnertest.Command(t)[0], func(c *connector.Config) { c.Route = route })
		_, err = b.Connect(sshtest.Within(t))
		require.NoError(t, err, route)
		require.NoError(t, b.Close(sshtest.Within(t)))
	}
}

// silentRelay is a connection whose relay has said nothing for the time that it has.
type silentRelay struct{ connector.Conn }

func (silentRelay) Relay(context.Context, mux.Command) (*relay.Relay, error) {
	return nil, &relay.Error{Op: "start", Err: errors.New("the relay did not say hello within 30s")}
}

func TestALoginThatWaitsDoesNotGetTheTimeTwice(t *testing.T) {
	conn := connect(t, sshtest.OpenSSH(t, "ForceCommand "+sshtest.StartFile(t, "read -r x")))
	_, _, err := program.Find(sshtest.Within(t), program.Config{
		Conn: silentRelay{conn}, Runner: []string{"stepmux"}, TempDir: "/tmp", Timeout: 600 * time.Millisecond,
	})
	require.ErrorIs(t, err, program.ErrNotRun)
	require.ErrorContains(t, err, `"stepmux --version": no answer within 100ms`)
}

func TestAStartThatIsGivenUpNamesTheCommandThatDidNotAnswer(t *testing.T) {
	sshtest.RequirePart(t, "bash", "/bin/bash")
	s := sshtest.OpenSSH(t, "ForceCommand echo please wait >&2; exec sleep 600")
	for route, command := range map[connector.Route]string{
		connector.Auto: "steps relay", connector.Streamlocal: "--version",
	} {
		b := newBuild(t, s, "b1", "stepmux", func(c *connector.Config) { c.Route = route })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := b.Connect(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `"stepmux `+command)
		require.ErrorContains(t, err, "had not answered; it said: please wait")
	}
}

// hangingRelay is a connection whose relay never says anything.
type hangingRelay struct{ connector.Conn }

// hangingLease is a share of such a connection.
type hangingLease struct{}

func (hangingLease) Conn() connector.Conn { return hangingRelay{} }
func (hangingLease) Release()             {}

func (hangingRelay) Relay(ctx context.Context, _ mux.Command) (*relay.Relay, error) {
	<-ctx.Done()
	return nil, &relay.Error{Op: "start", Err: context.Cause(ctx)}
}

// Symptom: a script that was cancelled while its relay started was a failure of the system.
func TestAStartOfARelayThatIsGivenUpSaysByWhom(t *testing.T) {
	start := func(ctx context.Context) error {
		_, err := connector.StartRelay(ctx, connector.Config{
			BuildID: "b1", Lease: hangingLease{}, VM: new(connector.VM), Logger: slog.New(slog.DiscardHandler),
		})
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, start(ctx), context.Canceled)
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := start(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "had not answered")
}
