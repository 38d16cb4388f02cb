package instance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// lingers returns an executor of a build that lingers on v, which is prepared, and its log.
func lingers(t *testing.T, p *instance.Provider, id string, linger time.Duration) (*instance.Executor, *sshtest.Log) {
	t.Helper()
	log := &sshtest.Log{}
	e := p.Executor(instance.Build{ID: id, Log: log, Linger: &linger})
	t.Cleanup(func() { _ = e.Cleanup(context.Background()) })
	require.NoError(t, e.Prepare(t.Context()))
	return e, log
}

// jobLines returns the lines of a log that are the job's.
func jobLines(log *sshtest.Log) string { return withoutRemarks(log.String()) }

// withoutRemarks drops the lines of a log that are not the job's.
func withoutRemarks(text string) string {
	var all []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "step runner: ") {
			all = append(all, line)
		}
	}
	return strings.Join(all, "")
}

// counting is a script that says n numbers, one each time the file turn has become longer, and fails with 7.
const counting = `i=0
while [ $i -lt %d ]; do
	i=$((i+1)); echo "line $i"; echo "err $i" >&2
	until [ "$(wc -l <%s)" -ge $i ]; do sleep 0.01; done
done
exit 7`

func countedTo(n int) (text string) {
	for i := range n {
		text += fmt.Sprintf("line %d\n", i+1)
	}
	return text
}

// onlyStdout drops the lines of stderr, which come in no order with those of stdout.
func onlyStdout(text string) (out string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "line ") {
			out += line
		}
	}
	return out
}

//stepmux:reliability promises | A lingering build continues when its connection is lost; its log has no gap and repeats
//stepmux:more nothing, and it keeps its own exit code
//stepmux:with instance.TestABuildThatLingersOutlivesItsRelay, remote/relay.TestLingeringServeOutlivesItsRelay
//stepmux:with remote/relay.TestLingeringServeOutlivesARelayThatEndsBeforeTheMarkerIsRead
//stepmux:with cmd/stepmux.TestARunWithLingerGoesOnAfterItsLinkWasAway
//stepmux:with bench/faults.TestFaultsOfEachKindLeaveBuildsTrueAndVMsClean
func TestABuildThatLingersOutlivesItsLink(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		const cuts = 6
		proxy := sshtest.Proxy(t, v.Addr)
		p := v.via(t, proxy.Addr()).provider(t, 1, nil)
		e, log := lingers(t, p, "build-1", time.Minute)
		_, err := e.Connect(t.Context())
		require.NoError(t, err)
		turn := filepath.Join(t.TempDir(), "turn")
		require.NoError(t, os.WriteFile(turn, nil, 0o600))
		next := func() {
			f, err := os.OpenFile(turn, os.O_APPEND|os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteString("x\n")
			require.NoError(t, errors.Join(err, f.Close()))
		}
		ended := make(chan error, 1)
		var steps []string
		go func() {
			job := script(fmt.Sprintf(counting, cuts, turn))
			job.OnStep = func(s connector.StepEvent) { steps = append(steps, s.Name+" "+s.Status) }
			ended <- e.Execute(t.Context(), job)
		}()
		for i := range cuts {
			log.Await(t, fmt.Sprintf("line %d\n", i+1))
			proxy.Cut()
			next()
		}
		err = <-ended
		failed := (*instance.BuildError)(nil)
		require.ErrorAs(t, err, &failed)
		require.Equal(t, instance.ScriptFailure, failed.Reason, "%v", err)
		require.Equal(t, 7, failed.ExitCode)
		require.Equal(t, countedTo(cuts), onlyStdout(jobLines(log)), "no line is missing, none comes twice")
		require.Equal(t, cuts, strings.Count(jobLines(log), "err "))
		require.Contains(t, log.String(), "step runner: the connection to the VM is lost (")
		require.Contains(t, log.String(), "step runner: the connection to the VM is back after ")
		require.Equal(t, []string{"script running", "script failure"}, steps, "no event comes twice")
		require.NoError(t, e.Cleanup(t.Context()))
		require.Empty(t, e.Left())
		v.requireClean(t)
	})
}

// Symptom: the build was lost, because its VM was dialled by TCP.
func TestABuildThatLingersComesBackByTheDialNetOfItsVM(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	proxy := sshtest.Proxy(t, v.Addr)
	p := v.provider(t, 1, func(_ *instance.Config, in *instance.Instance) {
		in.Addr = "vm.invalid:22"
		in.SSH.DialNet = func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", proxy.Addr())
		}
	})
	e, log := lingers(t, p, "build-1", time.Minute)
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	proxy.Cut()
	log.Await(t, "step runner: the connection to the VM is back after ")
	require.NoError(t, e.Execute(t.Context(), script("true")))
	require.NoError(t, e.Cleanup(t.Context()))
}

//stepmux:reliability promises | A build that could not be reached for the time of its linger is lost, and nothing of it
//stepmux:more is left
//stepmux:with remote.TestLingeringServeWaitsForItsManagerAndThenEndsWithAllOfItsJobs
//stepmux:with cmd/stepmux.TestABuildThatLingersEndsByItselfAfterItsManagerWasKilled
func TestABuildIsLostAfterItsLinger(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t))
	proxy := sshtest.Proxy(t, v.Addr)
	p := v.via(t, proxy.Addr()).provider(t, 1, nil)
	e, log := lingers(t, p, "build-1", 2*time.Second)
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		ended <- e.Execute(t.Context(), connector.Job{Job: &pb.Job{Script: "echo begun; exec sleep 1000"}})
	}()
	log.Await(t, "begun\n")
	proxy.Close()
	err = <-ended
	failed := (*instance.BuildError)(nil)
	require.ErrorAs(t, err, &failed)
	require.Equal(t, instance.RunnerSystemFailure, failed.Reason)
	require.ErrorContains(t, err, "the build is lost: the step runner could not be reached for 2s")
	require.Zero(t, failed.ExitCode)
	v.requireClean(t) // the step runner ends by itself
	require.NoError(t, e.Cleanup(t.Context()))
	require.Contains(t, fmt.Sprint(e.Left()), "it ends by itself")
}

// waiting starts a build that waits until proceed is called, and then fails with 7. It has begun.
func waiting(
	t *testing.T, p *instance.Provider, id string, linger time.Duration,
) (e *instance.Executor, log *sshtest.Log, ended chan error, proceed func()) {
	t.Helper()
	e, log = lingers(t, p, id, linger)
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	wait, proceed := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	ended = make(chan error, 1)
	go func() {
		ended <- e.Execute(t.Context(), connector.Job{Job: &pb.Job{Script: "echo begun; " + wait + "; echo done; exit 7"}})
	}()
	log.Await(t, "begun\n")
	return e, log, ended, proceed
}

func TestABuildThatLingersOutlivesItsRelay(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t))
	p := v.provider(t, 1, func(cfg *instance.Config, _ *instance.Instance) { cfg.Route = connector.Relay })
	e, log, ended, proceed := waiting(t, p, "build-1", time.Minute)
	require.NoError(t, syscall.Kill(relayPID(t, v), syscall.SIGKILL))
	log.Await(t, "is back after")
	proceed()
	requireReason(t, <-ended, instance.ScriptFailure, 7)
	require.Equal(t, "begun\ndone\n", jobLines(log))
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left())
	v.requireClean(t)
}

//stepmux:reliability promises | A build whose step runner is gone, as after a reboot of its VM, fails as soon as the VM
//stepmux:more can be reached
func TestABuildWhoseStepRunnerIsGoneFailsAtOnce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		route    connector.Route
		rebooted bool // the VM was: the socket is gone, and its directory is there
	}{
		{"killed", connector.Auto, false},
		{"killed, without a relay", connector.Session, false},
		{"rebooted", connector.Auto, true},
		{"rebooted, without a relay", connector.Session, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := newVM(t, sshtest.OpenSSH(t))
			proxy := sshtest.Proxy(t, v.Addr)
			p := v.via(t, proxy.Addr()).provider(t, 1, func(cfg *instance.Config, _ *instance.Instance) {
				cfg.Route = test.route
			})
			e, log, ended, _ := waiting(t, p, "build-1", time.Hour)
			serve := servePID(t, v, "build-1")
			proxy.Stall()
			proxy.Cut() // nobody learns of what follows
			require.NoError(t, syscall.Kill(serve, syscall.SIGKILL))
			if test.rebooted {
				require.NoError(t, os.RemoveAll(v.socket("build-1"))) // its init may remove the directory at the same time
			}
			proxy.Cut()
			proxy.Resume()
			err := <-ended
			requireReason(t, err, instance.RunnerSystemFailure, 0)
			require.ErrorContains(t, err, "the step runner ended or was killed while no client was attached")
			require.Equal(t, "begun\n", jobLines(log))
			require.NoError(t, e.Cleanup(t.Context()))
			require.Empty(t, e.Left())
			v.requireClean(t)
		})
	}
}

// Symptom: the build was lost if its linger was shorter than a silence of its link that began in its first second.
func TestABuildWithAShortLingerOutlivesALongerSilence(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	proxy := sshtest.Proxy(t, v.Addr)
	e, log := lingers(t, v.via(t, proxy.Addr()).provider(t, 1, nil), "build-1", 2*time.Second)
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	proxy.Stall()
	defer time.AfterFunc(4*time.Second, proxy.Resume).Stop()
	require.NoError(t, e.Execute(t.Context(), script("echo done")))
	require.Equal(t, "done\n", log.String(), "its link was not lost")
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left())
}

func TestACancelledBuildThatLingersLeavesNothing(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t))
	p := v.provider(t, 2, nil)
	e, log := lingers(t, p, "build-1", time.Hour)
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- e.Execute(ctx, connector.Job{Job: &pb.Job{Script: "echo begun; exec sleep 1000"}}) }()
	log.Await(t, "begun\n")
	cancel()
	requireReason(t, <-ended, instance.JobCanceled, 0)
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left())
	// And one that is cut short while it runs.
	e, _, ended, _ = waiting(t, p, "build-2", time.Hour)
	require.NoError(t, e.Cleanup(t.Context()))
	requireReason(t, <-ended, instance.RunnerSystemFailure, 0)
	require.Empty(t, e.Left())
	v.requireClean(t)
}

//stepmux:reliability promises | If two managers have the same build, the later one wins, and the earlier one can
//stepmux:more neither cancel nor end it
//stepmux:with remote.TestLaterManagerWinsAndTheEarlierIsTold
func TestASecondManagerOfABuildThatLingersWins(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t))
	p := v.provider(t, 1, nil)
	e, _, ended, proceed := waiting(t, p, "build-1", time.Hour)
	client, err := grpc.NewClient("unix:"+v.socket("build-1"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(e.Credentials()))
	require.NoError(t, err)
	defer client.Close()
	// The first manager's credentials have its name too. The second one has another, with the same secret.
	md, err := e.Credentials().GetRequestMetadata(t.Context())
	require.NoError(t, err)
	bare, err := grpc.NewClient("unix:"+v.socket("build-1"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer bare.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", md["authorization"], "stepmux-manager", "second")
	second, err := pb.NewAttachmentClient(bare).Attach(ctx, &pb.AttachRequest{})
	require.NoError(t, err)
	_, err = second.Recv()
	require.NoError(t, err)
	err = <-ended
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "another manager has attached")
	require.NoError(t, e.Cleanup(t.Context()))
	_, err = pb.NewStepRunnerClient(client).List(t.Context(), &pb.ListRequest{})
	require.Equal(t, codes.Aborted, status.Code(err))
	proceed()
	follow, err := pb.NewStepRunnerClient(bare).FollowIO(ctx, &pb.FollowIORequest{Id: "build-1", ReadStdout64: 6})
	require.NoError(t, err)
	msg, err := follow.Recv()
	require.NoError(t, err)
	require.Equal(t, "done\n", string(msg.GetStream()), "the clean-up of the first has not ended it")
	_, err = pb.NewAttachmentClient(bare).End(ctx, &pb.EndRequest{})
	require.NoError(t, err)
	v.requireClean(t)
}

func TestAnOlderStepRunnerIsRefusedToABuildThatLingers(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t))
	path := filepath.Join(t.TempDir(), "runner.sh")
	text := fmt.Sprintf("#!/bin/sh\n%s \"$@\" 2>&1 | grep -v Features\n", v.runner[0])
	require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
	v.runner = []string{path}
	p := v.provider(t, 3, func(cfg *instance.Config, _ *instance.Instance) { cfg.Route = connector.Session })
	e, _ := lingers(t, p, "build-1", time.Hour)
	_, err := e.Connect(t.Context())
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "does not know --linger: install this version there")
	require.NoError(t, e.Cleanup(t.Context()))
	for _, impossible := range []time.Duration{-1, instance.MaxLinger + 1} {
		e, _ := lingers(t, p, "build-2", impossible)
		_, err = e.Connect(t.Context())
		require.ErrorContains(t, err, "a build cannot linger for")
	}
}

//stepmux:reliability promises | So does a lingering script or command of a Go program; if the VM does not support that,
//stepmux:more it is refused before it starts
//stepmux:with instance.TestScriptsThatCannotLingerAreRefusedByName
func TestScriptsAndCommandsOfABuildThatLingersOutliveTheirLink(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t))
	proxy := sshtest.Proxy(t, v.Addr)
	p := v.via(t, proxy.Addr()).provider(t, 1, nil)
	e, log := lingers(t, p, "build-1", time.Minute)
	ledger := filepath.Join(t.TempDir(), "ledger")
	file := filepath.Join(t.TempDir(), "go")
	ended := make(chan error, 1)
	go func() {
		ended <- e.Run(t.Context(), fmt.Appendf(nil, `echo began >>%s
[ "$PWD" -ef "$HOME" ] && echo at home '${{ x }}'; printf 'a\377\n'; echo "${BASH_VERSION:+it is bash}" >&2
until [ -e %s ]; do sleep 0.01; done
echo done; exit 9`, ledger, file))
	}()
	log.Await(t, "it is bash\n")
	proxy.Cut()
	log.Await(t, "is back after")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	requireReason(t, <-ended, instance.ScriptFailure, 9)
	lines := strings.SplitAfter(jobLines(log), "\n")
	slices.Sort(lines)
	require.Equal(t, []string{"", "at home ${{ x }}\n", "a\xff\n", "done\n", "it is bash\n"}, lines)

	// Commands use the same step runner.
	client, err := e.Client(t.Context())
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	input := "\x00\xff binary ${{ y }}\n"
	err = client.Run(t.Context(), instance.RunOptions{
		Command: "cat; echo err >&2; echo ran >>" + ledger + "; exit 3", Stdin: strings.NewReader(input),
		Stdout: &stdout, Stderr: &stderr,
	})
	requireReason(t, err, instance.ScriptFailure, 3)
	require.Equal(t, input, stdout.String())
	require.Equal(t, "err\n", stderr.String())
	require.NoError(t, client.Run(t.Context(), instance.RunOptions{Command: "! read -r x"}), "no input is an empty one")
	err = client.Run(t.Context(), instance.RunOptions{
		Command: "cat", Stdin: io.LimitReader(neverEnds{}, 8<<20+1),
	})
	requireReason(t, err, instance.ConfigurationError, 0)
	ctx, cancel := context.WithCancel(t.Context())
	log2 := &sshtest.Log{}
	go func() {
		ended <- client.Run(ctx, instance.RunOptions{Command: "echo up; exec sleep 1000", Stdout: log2})
	}()
	log2.Await(t, "up\n")
	cancel()
	requireReason(t, <-ended, instance.JobCanceled, 0)
	text, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.Equal(t, "began\nran\n", string(text), "nothing was run twice")
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left())
	v.requireClean(t)
}

// All later commands of the build failed with the end of the first one's context.
func TestACommandThatIsCancelledWhileTheStepRunnerStartsDoesNotFailTheNext(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	starting, goOn := filepath.Join(t.TempDir(), "starting"), filepath.Join(t.TempDir(), "go")
	wrapper := filepath.Join(t.TempDir(), "runner.sh")
	require.NoError(t, os.WriteFile(wrapper, fmt.Appendf(nil, `#!/bin/sh
case $* in *serve*) echo >%s; until [ -e %s ]; do sleep 0.01; done;; esac
exec %s "$@"
`, starting, goOn, v.runner[0]), 0o700))
	v.runner = []string{wrapper}
	p := v.provider(t, 1, func(c *instance.Config, _ *instance.Instance) {
		c.Route, c.ReadyTimeout = connector.Session, sshtest.Bound
	})
	e, _ := lingers(t, p, "build-1", time.Minute)
	client, err := e.Client(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- client.Run(ctx, instance.RunOptions{Command: "true"}) }()
	require.Eventually(t, func() bool { _, err := os.Stat(starting); return err == nil }, sshtest.Bound, time.Millisecond)
	cancel()
	requireReason(t, <-ended, instance.JobCanceled, 0)
	require.NoError(t, os.WriteFile(goOn, nil, 0o600))
	require.NoError(t, client.Run(t.Context(), instance.RunOptions{Command: "true"}))
	require.NoError(t, e.Cleanup(t.Context()))
	v.requireClean(t)
}

// Symptom: Cleanup waited for as long as it may, and the start went on for the rest of the linger.
func TestCleanupEndsTheStartOfAScriptWhoseVMIsGone(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	tries := make(chan int, 999)
	p := v.provider(t, 1, func(c *instance.Config, _ *instance.Instance) {
		c.StopTimeout, c.DialStart = sshtest.Bound, func(_ string, n int) { tries <- n }
	})
	e, _ := lingers(t, p, "build-1", time.Hour)
	v.Stop()
	suspect := func() bool { return statOf(p, "vm-1").State == instance.Suspect }
	require.Eventually(t, suspect, sshtest.Bound, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx, []byte("true")) }()
	for range 2 { // the first was Prepare's
		<-tries
	}
	cancel()
	requireReason(t, <-ended, instance.JobCanceled, 0)
	require.NoError(t, e.Cleanup(t.Context()), "it ends the start, and does not wait for StopTimeout")
}

// neverEnds is an input without end.
type neverEnds struct{}

func (neverEnds) Read(p []byte) (int, error) { return len(p), nil }

func TestScriptsThatCannotLingerAreRefusedByName(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t))
	p := v.provider(t, 2, nil)
	minute := time.Minute
	e := p.Executor(instance.Build{ID: "build-1", Shell: []string{"no-such-shell"}, Linger: &minute})
	require.NoError(t, e.Prepare(t.Context()))
	err := e.Run(t.Context(), []byte("exit 0"))
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "no-such-shell is not installed")
	require.NoError(t, e.Cleanup(t.Context()))

	v.runner = []string{"/bin/no-stepmux"}
	e, _ = lingers(t, v.provider(t, 2, nil), "build-2", time.Minute)
	ledger := filepath.Join(t.TempDir(), "ledger")
	err = e.Run(t.Context(), []byte("echo began >"+ledger))
	requireReason(t, err, instance.RunnerSystemFailure, 127)
	require.ErrorContains(t, err, "to linger, a script needs a step runner on the instance")
	require.NoFileExists(t, ledger)
	require.NoError(t, e.Cleanup(t.Context()))
	v.requireClean(t)
}
