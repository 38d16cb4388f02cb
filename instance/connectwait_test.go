package instance_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// Symptom: nothing listened yet on the port of a VM that started, and its build was lost after 1.1 s. Of four builds
// the first was.
//
//stepmux:faults users | A refusal that passes counts as final: a VM that starts, a server with too many logins
//stepmux:with instance.TestABuildWaitsForAServerWithTooManyLogins, instance.TestHowLongABuildWaitsForVMs
//stepmux:with cmd/stepmux.TestCommandsWaitForAVMThatStartsAndSaySo
func TestABuildWaitsForAVMThatStarts(t *testing.T) {
	t.Parallel()
	for _, builds := range []int{1, 4} {
		s := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
		addr, open := sshtest.Late(t, s.Addr)
		var log sshtest.Log
		p := providerOf(t, instance.Config{
			ConnectWait: sshtest.Bound, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			DialDone: func(_ string, attempt int, _ time.Duration, err error) {
				if err != nil && attempt == 3 { // the dial has failed
					open()
				}
			},
		}, 4, s.via(t, addr))
		requireSuccess(t, runAll(t, p, builds, "true"))
		require.Equal(t, instance.Ready, statOf(p, "vm-1").State)
		require.Equal(t, 1, strings.Count(log.String(), "instance takes no connections"), log.String())
	}
}

// An sshd refuses connections beyond its MaxStartups.
func TestABuildWaitsForAServerWithTooManyLogins(t *testing.T) {
	t.Parallel()
	v := newVM(t, sshtest.OpenSSH(t, "MaxStartups 1"))
	held, err := net.Dial("tcp", v.Addr)
	require.NoError(t, err)
	defer held.Close()
	_, err = io.ReadFull(held, make([]byte, len("SSH-2.0-"))) // it counts
	require.NoError(t, err)
	p := providerOf(t, instance.Config{
		ConnectWait: sshtest.Bound,
		DialDone: func(_ string, attempt int, _ time.Duration, err error) {
			if err != nil && attempt == 3 {
				held.Close()
			}
		},
	}, 1, v)
	requireSuccess(t, runAll(t, p, 1, "true"))
}

// While a VM starts, another takes its builds, and each VM is tried as soon as it may have started.
func TestOtherVMsTakeTheBuildsOfAVMThatStarts(t *testing.T) {
	t.Parallel()
	works := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
	addr, _ := sshtest.Late(t, works.Addr)
	p := providerOf(t, instance.Config{ConnectWait: sshtest.Bound}, 4, works.via(t, addr), works)
	for _, r := range runAll(t, p, 6, "true") {
		require.Nil(t, r.Err)
		require.Equal(t, "vm-2", r.Instance)
	}
}

// Symptom: beside a VM that was free, two of six builds waited 30 s for one that accepted connections and said nothing.
// A packet filter that drops packets is the same.
//
//stepmux:faults users | A VM that accepts connections and says nothing keeps builds that others could take;
//stepmux:more doctor says nothing either
//stepmux:with instance/doctor.TestExamineTellsThatTheVMIsSilent
func TestABuildLeavesAVMThatIsSilent(t *testing.T) {
	silent := func(context.Context, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go io.Copy(io.Discard, theirs) //nolint:errcheck // until ours is closed
		return ours, nil
	}
	dropped := func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	absent := func(context.Context, string) (net.Conn, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}
	}
	type dial = func(context.Context, string) (net.Conn, error)
	for name, c := range map[string]struct {
		dials       []dial
		least, most time.Duration
		first       []time.Duration // the first attempts take
	}{
		"it accepts": {[]dial{silent, absent}, 5 * time.Second, 10 * time.Second, []time.Duration{5 * time.Second}},
		"no answer":  {[]dial{dropped, absent}, 5 * time.Second, 10 * time.Second, []time.Duration{5 * time.Second}},
		"alone": {
			[]dial{silent}, 35 * time.Second, time.Minute, []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all []instance.Instance
				for i, dial := range c.dials {
					all = append(all, instance.Instance{ID: string(rune('a' + i)), Addr: "x:22", SSH: mux.Config{
						User: "ci", Auth: []login.Auth{login.Password("x")}, HostKeys: login.InsecureHostKeys(), DialNet: dial,
					}})
				}
				group, err := instance.NewGroup(all...)
				require.NoError(t, err)
				var took []time.Duration
				p, err := instance.NewProvider(instance.Config{
					Group: group, ConnectWait: 30 * time.Second,
					DialDone: func(id string, _ int, d time.Duration, err error) {
						if id == "a" {
							require.ErrorContains(t, err, "no answer within ")
							took = append(took, d)
						}
					},
				})
				require.NoError(t, err)
				defer p.Close()
				start := time.Now()
				e := p.Executor(instance.Build{ID: "b"})
				requireReason(t, e.Prepare(t.Context()), instance.RunnerSystemFailure, 0)
				require.NoError(t, e.Cleanup(t.Context()))
				require.Equal(t, c.first, took[:min(len(c.first), len(took))])
				require.GreaterOrEqual(t, time.Since(start), c.least)
				require.Less(t, time.Since(start), c.most)
			})
		})
	}
}

// The time that a build waits for VMs, and which failures it waits for.
func TestHowLongABuildWaitsForVMs(t *testing.T) {
	const wait = 30 * time.Second
	for name, c := range map[string]struct {
		wait        time.Duration
		vms         int
		dial        func() (net.Conn, error)
		least, most time.Duration
	}{
		"nothing listens":                {wait, 1, fails(syscall.ECONNREFUSED), wait, wait + 5*time.Second},
		"nothing listens on any of five": {wait, 5, fails(syscall.ECONNREFUSED), wait, wait + 5*time.Second},
		"no route":                       {wait, 1, fails(syscall.EHOSTUNREACH), wait, wait + 5*time.Second},
		"the server closes connections": {wait, 1, func() (net.Conn, error) {
			ours, theirs := net.Pipe()
			theirs.Close()
			return ours, nil
		}, wait, wait + 5*time.Second},
		"no such name": {
			wait, 1, fails(&net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}), 0, 3 * time.Second,
		},
		"no resolver":   {wait, 1, fails(&net.DNSError{Err: "server misbehaving", Name: "x"}), wait, wait + 5*time.Second},
		"wait for none": {0, 1, fails(syscall.ECONNREFUSED), 0, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all []instance.Instance
				for i := range c.vms {
					all = append(all, instance.Instance{ID: string(rune('a' + i)), Addr: "x:22", SSH: mux.Config{
						User: "ci", Auth: []login.Auth{login.Password("x")},
						HostKeys: login.InsecureHostKeys(),
						DialNet:  func(context.Context, string) (net.Conn, error) { return c.dial() },
					}})
				}
				group, err := instance.NewGroup(all...)
				require.NoError(t, err)
				var log sshtest.Log
				attempts := map[string][]time.Time{}
				p, err := instance.NewProvider(instance.Config{
					Group: group, ConnectWait: c.wait, Logger: slog.New(slog.NewTextHandler(&log, nil)),
					DialStart: func(id string, _ int) { attempts[id] = append(attempts[id], time.Now()) },
				})
				require.NoError(t, err)
				defer p.Close()
				start := time.Now()
				e := p.Executor(instance.Build{ID: "b"})
				requireReason(t, e.Prepare(t.Context()), instance.RunnerSystemFailure, 0)
				took := time.Since(start)
				require.NoError(t, e.Cleanup(t.Context()))
				require.GreaterOrEqual(t, took, c.least)
				require.Less(t, took, c.most)
				if c.least == 0 {
					return
				}
				require.Len(t, attempts, c.vms, "all are tried")
				require.Equal(t, c.vms, strings.Count(log.String(), `level=WARN msg="not connected"`), log.String())
				require.Equal(t, c.vms, strings.Count(log.String(), `level=WARN msg="instance takes no connections`), log.String())
				for id, at := range attempts {
					require.GreaterOrEqual(t, len(at), int(wait/time.Second)/2, id)
				}
			})
		})
	}
}

func fails(err error) func() (net.Conn, error) {
	return func() (net.Conn, error) { return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err} }
}
