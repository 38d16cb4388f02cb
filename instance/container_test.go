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
	"strings"
	"testing"
	"time"

	moby "github.com/moby/moby/client"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// containers returns a provider whose VM has the daemon's socket.
func containers(t *testing.T, d *dockertest.Daemon, changes ...func(*instance.Config)) *instance.Provider {
	t.Helper()
	return containersOn(t, newVM(t, sshtest.InProcess(t, embeddedvm.Config{})), d, changes...)
}

func containersOn(t *testing.T, v *vm, d *dockertest.Daemon, changes ...func(*instance.Config)) *instance.Provider {
	t.Helper()
	return v.provider(t, 4, func(cfg *instance.Config, in *instance.Instance) {
		in.Runner = []string{"/no/stepmux"} // a container needs none
		cfg.Docker.Socket, cfg.ContainerPrograms = d.Socket, programs(t)
		for _, change := range changes {
			change(cfg)
		}
	})
}

// programs are what is put into containers.
func programs(t *testing.T) []*program.Binary {
	t.Helper()
	end, err := runnertest.Program()
	require.NoError(t, err)
	bin, err := program.LoadBinary(end)
	require.NoError(t, err)
	return []*program.Binary{bin}
}

var inBusybox = &docker.Spec{Spec: place.Spec{Image: dockertest.Image}, Network: "none"}

func TestABuildInAContainerThatIsCancelledLeavesNothing(t *testing.T) {
	d := dockertest.Start(t)
	p := containers(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e := p.Executor(instance.Build{ID: "c1", Place: inBusybox, Log: writer(func(text []byte) {
		if bytes.Contains(text, []byte("started")) {
			cancel()
		}
	})})
	require.NoError(t, e.Prepare(ctx))
	_, err := e.Connect(ctx)
	require.NoError(t, err)
	err = e.Execute(
		ctx,
		connector.Job{Job: &stepmuxv1.Job{Script: "echo started; sleep 600", Grace: durationpb.New(time.Second)}},
	)
	requireReason(t, err, instance.JobCanceled, 0)
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left())
	require.Empty(t, d.Containers(t))
}

// writer is a log that is shown to a function.
type writer func(text []byte)

func (w writer) Write(text []byte) (int, error) {
	w(text)
	return len(text), nil
}

func TestABuildGoesElsewhereWhenTheDaemonOfItsVMCannotBeReached(t *testing.T) {
	d := dockertest.Start(t)
	broken := newVM(t, sshtest.OpenSSH(t, "AllowStreamLocalForwarding no")).instance(t, 4)
	broken.ID = "broken"
	works := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	p := works.provider(t, 4, func(cfg *instance.Config, in *instance.Instance) {
		in.ID, cfg.Docker.Socket, cfg.ContainerPrograms = "works", d.Socket, programs(t)
	}, broken)
	for i := range 3 {
		e := p.Executor(instance.Build{ID: fmt.Sprint("c", i), Place: inBusybox})
		require.NoError(t, e.Prepare(t.Context()))
		if i == 0 {
			require.Equal(t, "broken", e.Instance())
		}
		_, err := e.Connect(t.Context())
		require.NoError(t, err)
		require.Equal(t, "works", e.Instance())
		require.NoError(t, e.Cleanup(t.Context()))
	}
	require.Zero(t, statOf(p, "broken").Uses)
	require.Zero(t, statOf(p, "broken").Used)
	e := p.Executor(instance.Build{ID: "c6", Place: inBusybox, On: "broken"})
	require.NoError(t, e.Prepare(t.Context()))
	_, err := e.Connect(t.Context())
	require.ErrorIs(t, err, place.ErrUnusable)
	require.NoError(t, e.Cleanup(t.Context()))
	require.Zero(t, statOf(p, "broken").Used)
}

// Cleanup may come while the container starts, at any moment.
func TestCleanupDuringTheStartOfAContainerLeavesNothing(t *testing.T) {
	d := dockertest.Start(t)
	p := containers(t, d)
	for wait := time.Duration(0); ; wait += 20*time.Millisecond + wait/8 {
		e := p.Executor(instance.Build{ID: "c2", Place: inBusybox})
		require.NoError(t, e.Prepare(t.Context()))
		cleaned := make(chan error, 1)
		timer := time.AfterFunc(wait, func() { cleaned <- e.Cleanup(context.Background()) })
		_, err := e.Connect(t.Context())
		early := timer.Stop() // the start was over before
		if early {
			require.NoError(t, err)
			cleaned <- e.Cleanup(t.Context())
		} else if err != nil {
			require.ErrorIs(t, err, instance.ErrCleanedUp)
		}
		require.NoError(t, <-cleaned)
		require.Empty(t, d.Containers(t))
		if early {
			break
		}
	}
}

// Symptom: the end of a step runner that does not answer took all the time there was, and the container stayed.
func TestAContainerThatIsFrozenIsRemoved(t *testing.T) {
	d := dockertest.Start(t)
	p := containers(t, d, func(cfg *instance.Config) { cfg.StopTimeout = 3 * time.Second })
	e := p.Executor(instance.Build{ID: "c4", Place: inBusybox})
	require.NoError(t, e.Prepare(t.Context()))
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	found, err := d.Client.ContainerList(t.Context(), moby.ContainerListOptions{})
	require.NoError(t, err)
	for _, c := range found.Items {
		_, err := d.Client.ContainerPause(t.Context(), c.ID, moby.ContainerPauseOptions{})
		require.NoError(t, err)
	}
	_ = e.Cleanup(t.Context())
	require.Empty(t, d.Containers(t))
}

func TestABuildWhoseContainerIsKilledIsASystemFailureThatSaysSo(t *testing.T) {
	d := dockertest.Start(t)
	p := containers(t, d)
	e := p.Executor(instance.Build{ID: "c3", Place: inBusybox, Log: writer(func(text []byte) {
		if !bytes.Contains(text, []byte("started")) {
			return
		}
		found, err := d.Client.ContainerList(context.Background(), moby.ContainerListOptions{})
		require.NoError(t, err)
		for _, c := range found.Items {
			_, err := d.Client.ContainerKill(context.Background(), c.ID, moby.ContainerKillOptions{Signal: "KILL"})
			require.NoError(t, err)
		}
	})})
	require.NoError(t, e.Prepare(t.Context()))
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	err = e.Execute(t.Context(), connector.Job{Job: &stepmuxv1.Job{Script: "echo started; sleep 600"}})
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "the container was killed")
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left(), "the container is gone, and all that was in it")
	require.Empty(t, d.Containers(t))
}

func TestAScriptOfARunnerDoesNotRunInAContainer(t *testing.T) {
	d := dockertest.Start(t)
	e := containers(t, d).Executor(instance.Build{ID: "c4", Place: inBusybox})
	require.NoError(t, e.Prepare(t.Context()))
	require.ErrorContains(t, e.Run(t.Context(), []byte("true")), "only steps run there")
	require.NoError(t, e.Cleanup(t.Context()))
}

// lingersInContainer starts a build that lingers in a container, behind a proxy. Its script has the directory dir.
func lingersInContainer(
	t *testing.T, d *dockertest.Daemon, linger time.Duration, script string,
) (e *instance.Executor, log *sshtest.Log, proxy *sshtest.TCPProxy, dir string, ended chan error) {
	t.Helper()
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	proxy = sshtest.Proxy(t, v.Addr)
	dir, log = t.TempDir(), &sshtest.Log{}
	e = containersOn(t, v.via(t, proxy.Addr()), d).Executor(instance.Build{
		ID: "c5", Log: log, Linger: &linger,
		Place: &docker.Spec{Spec: place.Spec{Image: dockertest.Image}, Network: "none", Volumes: []string{dir + ":/shared"}},
	})
	t.Cleanup(func() { _ = e.Cleanup(context.Background()) })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "turn"), nil, 0o600))
	require.NoError(t, e.Prepare(t.Context()))
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	ended = make(chan error, 1)
	go func() { ended <- e.Execute(t.Context(), connector.Job{Job: &stepmuxv1.Job{Script: script}}) }()
	return e, log, proxy, dir, ended
}

// addLine makes the file turn of a build longer.
func addLine(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "turn"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("x\n")
	require.NoError(t, errors.Join(err, f.Close()))
}

//stepmux:reliability promises | So does a lingering build in a container; the container ends by itself after the linger
//stepmux:with instance.TestAContainerEndsByItselfAfterItsLinger, instance.TestABuildThatLingersIsLostWithItsDaemon
func TestABuildInAContainerThatLingersOutlivesItsLinks(t *testing.T) {
	const cuts = 3
	d := dockertest.Start(t)
	e, log, proxy, dir, ended := lingersInContainer(t, d, time.Minute, fmt.Sprintf(counting, cuts, "/shared/turn"))
	for i := range cuts {
		log.Await(t, fmt.Sprintf("line %d\n", i+1))
		proxy.Cut()
		addLine(t, dir)
	}
	requireReason(t, <-ended, instance.ScriptFailure, 7)
	require.Equal(t, countedTo(cuts), onlyStdout(jobLines(log)), "no line is missing, none comes twice")
	require.Contains(t, log.String(), "step runner: the connection to the VM is back after ")
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left())
	require.Empty(t, d.Containers(t))
}

// Another provider, as in another process, goes on with the build in its container.
//
//stepmux:reliability promises | A build in a container continues without its manager, and the next manager has the
//stepmux:more complete log
//stepmux:with instance/manager.TestABuildInAContainerOutlivesItsManager
func TestABuildInAContainerGoesOnInAnotherProcess(t *testing.T) {
	const rounds = 3
	d := dockertest.Start(t)
	v, dir := newVM(t, sshtest.InProcess(t, embeddedvm.Config{})), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "turn"), nil, 0o600))
	linger, log := time.Minute, &stateLog{}
	build := instance.Build{
		ID: "c7", Log: log, Linger: &linger, Secret: strings.Repeat("s", 43),
		Place: &docker.Spec{Spec: place.Spec{Image: dockertest.Image}, Network: "none", Volumes: []string{dir + ":/shared"}},
	}
	var vm, socket string
	var e *instance.Executor
	ended := make(chan error, 1)
	for i := range rounds {
		_, build.LogState = log.get()
		e = containersOn(t, v, d).Executor(build)
		if i == 0 {
			require.NoError(t, e.Prepare(t.Context()))
			_, err := e.Connect(t.Context())
			require.NoError(t, err)
			vm, socket = e.Place()
		} else {
			require.NoError(t, e.Resume(t.Context(), vm, socket))
		}
		go func() {
			ended <- e.Execute(t.Context(), script(fmt.Sprintf(counting, rounds, "/shared/turn")))
		}()
		log.await(t, fmt.Sprintf("line %d\n", i+1))
		if i < rounds-1 {
			require.NoError(t, e.Leave(t.Context()))
			requireReason(t, <-ended, instance.RunnerSystemFailure, 0)
		}
		addLine(t, dir)
	}
	requireReason(t, <-ended, instance.ScriptFailure, 7)
	text, _ := log.get()
	require.Equal(t, countedTo(rounds), onlyStdout(withoutRemarks(text)), "no line is missing, none comes twice")
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left())
	require.Empty(t, d.Containers(t))

	again := containersOn(t, v, d).Executor(build)
	err := again.Resume(t.Context(), vm, socket)
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "has ended (was the Docker daemon restarted?")
	require.NoError(t, again.Cleanup(t.Context()))
}

// Symptom: a build in a container was lost if the connection broke just while the next manager came back to it.
func TestTheWayBackToAContainerIsTriedAgain(t *testing.T) {
	d, linger := dockertest.Start(t), time.Minute
	v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	proxy := sshtest.Proxy(t, v.Addr)
	build := instance.Build{ID: "c8", Linger: &linger, Secret: strings.Repeat("s", 43), Place: inBusybox}
	e := containersOn(t, v, d).Executor(build)
	require.NoError(t, e.Prepare(t.Context()))
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	vm, socket := e.Place()
	require.NoError(t, e.Leave(t.Context()))

	daemon, err := net.Listen("unix", filepath.Join(v.tmp, "docker"))
	require.NoError(t, err)
	defer daemon.Close()
	go func() { // ends with the listener
		for calls := 0; ; calls++ {
			conn, err := daemon.Accept()
			if err != nil {
				return
			}
			if calls == 0 {
				proxy.Cut()
			}
			to, err := net.Dial("unix", d.Socket)
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(to, conn); _ = to.(*net.UnixConn).CloseWrite() }()
			go func() { _, _ = io.Copy(conn, to); _ = conn.Close() }()
		}
	}()
	e = containersOn(t, v.via(t, proxy.Addr()), d, func(cfg *instance.Config) {
		cfg.Docker.Socket = daemon.Addr().String()
	}).Executor(build)
	require.NoError(t, e.Resume(t.Context(), vm, socket))
	require.NoError(t, e.Execute(t.Context(), connector.Job{Job: &stepmuxv1.Job{Script: "true"}}))
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left())
	require.Empty(t, d.Containers(t))
}

// Nobody is there to remove the container: it ends with its step runner, which ends with its linger.
func TestAContainerEndsByItselfAfterItsLinger(t *testing.T) {
	d := dockertest.Start(t)
	e, log, proxy, _, ended := lingersInContainer(t, d, 2*time.Second, "echo begun; exec sleep 1000")
	log.Await(t, "begun\n")
	proxy.Close()
	err := <-ended
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "the build is lost: the step runner could not be reached for 2s")
	require.Eventually(t, func() bool { return len(d.Containers(t)) == 0 }, sshtest.Bound, 10*time.Millisecond)
	_ = e.Cleanup(t.Context()) // it could not reach the daemon
}

// A daemon ends its containers when it starts, also those of one that was killed.
func TestABuildThatLingersIsLostWithItsDaemon(t *testing.T) {
	d := dockertest.Start(t)
	e, log, _, _, ended := lingersInContainer(t, d, time.Hour, "echo begun; exec sleep 1000")
	log.Await(t, "begun\n")
	d.Kill()
	log.Await(t, "the connection to the VM is lost")
	require.NoError(t, d.Launch())
	err := <-ended
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "has ended (was the Docker daemon restarted?")
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left())
	require.Empty(t, d.Containers(t))
}

func TestABuildThatLingersWhoseContainerIsKilledFailsAtOnce(t *testing.T) {
	d := dockertest.Start(t)
	e, log, _, _, ended := lingersInContainer(t, d, time.Hour, "echo begun; exec sleep 1000")
	log.Await(t, "begun\n")
	d.RemoveAll(t)
	err := <-ended
	requireReason(t, err, instance.RunnerSystemFailure, 0)
	require.ErrorContains(t, err, "the container was killed")
	require.NoError(t, e.Cleanup(t.Context()))
	require.Empty(t, e.Left())
	require.Empty(t, d.Containers(t))
}
