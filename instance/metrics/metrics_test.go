package metrics_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/instance/metrics"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

func TestMain(m *testing.M) { runnertest.Main(m) }

// scrape returns the answer of a server at a path.
func scrape(t testing.TB, s *metrics.Server, path string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + s.Addr() + path)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	return string(body)
}

func serve(t testing.TB, m *metrics.Metrics) *metrics.Server {
	t.Helper()
	s, err := metrics.Serve(":0", m)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// nothing is a log.
type nothing struct{ io.Writer }

func (nothing) Close() error { return nil }

func TestMetricsTellOfBuilds(t *testing.T) {
	s := sshtest.OpenSSH(t, "MaxSessions 2")
	m := metrics.New("v1.2.3")
	group, err := instance.NewGroup(instance.Instance{
		ID: "vm-1", Addr: s.Addr, Capacity: 3, Runner: runnertest.Command(t),
		Options: vmconfig.Options{TempDir: sshtest.SocketDir(t)},
		SSH: mux.Config{
			User:     s.User,
			Auth:     []login.Auth{login.Key("of the test", s.Signer)},
			HostKeys: login.PinnedHostKeys(s.HostKey),
			// The same as sshd's own limit, so that the refused session is not left to chance.
			SessionLimit: 2,
		},
	})
	require.NoError(t, err)
	p, err := instance.NewProvider(instance.Config{
		Group: group, Route: connector.Streamlocal,
		ConnTrace: m.ConnTrace(), DialDone: m.Dialed, Retired: m.Retired,
	})
	require.NoError(t, err)
	defer p.Close()
	m.Watch(p)
	server := serve(t, m)
	require.Contains(t, scrape(t, server, "/metrics"), `stepmux_connections{state="none"} 1`)

	all := batch.Batch{OnEnd: m.Ended}
	for _, script := range []string{"true", "sleep 0.1", "exit 3"} {
		all.Builds = append(all.Builds, batch.Build{
			ID: "b-" + strings.ReplaceAll(
				script,
				" ",
				"-",
			), Job: connector.Job{Job: &stepmuxv1.Job{Script: script}}, Log: nothing{io.Discard},
		})
	}
	batch.Run(sshtest.Within(t), sshtest.Within(t), p, all)
	text := scrape(t, server, "/metrics")
	for _, want := range []string{
		`stepmux_builds_total{result="success"} 2`,
		`stepmux_builds_total{result="script_failure"} 1`,
		`stepmux_builds_total{result="runner_system_failure"} 0`,
		`stepmux_connections{state="up"} 1`,
		`stepmux_instances{state="ready"} 1`,
		`stepmux_slots 3`,
		`stepmux_builds_running 0`,
		`stepmux_builds_left_total 0`,
		`stepmux_instance_isolation{instance="vm-1",level="off"} 1`,
		`stepmux_builds_waiting 0`,
		`stepmux_dial_seconds_count{result="ok"} 1`,
		`stepmux_dial_phase_seconds_count{phase="prepare"} 1`,
		`stepmux_dial_phase_seconds_count{phase="connect"} 1`,
		`stepmux_dial_phase_seconds_count{phase="handshake"} 1`,
		`stepmux_dial_phase_seconds_count{phase="login"} 1`,
		`stepmux_sessions_limit{instance="vm-1",source="configured"} 2`,
		`stepmux_sessions_waiting{instance="vm-1"} 0`,
		`stepmux_build_largest_process_bytes_count 3`,
		`stepmux_build_peak_memory_bytes_count 0`,
		`stepmux_channel_open_seconds_count{result="ok",route="streamlocal"} 3`,
	} {
		require.True(t, strings.Contains(text, want+"\n"), "no %s in\n%s", want, text)
	}
	require.Regexp(t, `stepmux_builds_cpu_seconds_total (0\.0*[1-9]|[1-9])`, text)
	// One for each build, one that finds the step runner, and some for serves that are prestarted.
	require.Regexp(t, `stepmux_channel_open_seconds_count\{result="ok",route="session"\} ([4-9]|\d\d)\n`, text)
	require.NotContains(t, text, "b-true", "no build has a label of its own")

	require.NoError(t, p.Close())
	text = scrape(t, server, "/metrics")
	require.Contains(t, text, `stepmux_connections_closed_total{reason="shutdown"} 1`)
	require.NotContains(t, text, `stepmux_sessions_open{`, "nothing is told of a connection that is closed")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestMetricsCountRefusals(t *testing.T) {
	s := sshtest.OpenSSH(t, "MaxSessions 1")
	m := metrics.New("v1.2.3")
	conn, err := mux.Dial(sshtest.Within(t), s.Addr, &mux.Config{
		User:     s.User,
		Auth:     []login.Auth{login.Key("of the test", s.Signer)},
		HostKeys: login.PinnedHostKeys(s.HostKey),
		Trace:    m.ConnTrace(),
	})
	require.NoError(t, err)
	defer conn.Close()
	p, err := conn.Start(sshtest.Within(t), mux.Command{Line: "exec cat"})
	require.NoError(t, err)
	defer p.Close()
	_, err = conn.TryStart(sshtest.Within(t), mux.Command{Line: "exec cat"})
	require.ErrorIs(t, err, mux.ErrSaturated)
	_, err = conn.Ping(sshtest.Within(t))
	require.NoError(t, err)
	text := scrape(t, serve(t, m), "/metrics")
	for _, want := range []string{
		`stepmux_session_refusals_total 1`,
		`stepmux_channel_open_seconds_count{result="error",route="session"} 1`,
		`stepmux_keepalive_rtt_seconds_count 1`,
	} {
		require.True(t, strings.Contains(text, want+"\n"), "no %s in\n%s", want, text)
	}
}

func TestMetricsTellWhyADialFailed(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	other := sshtest.InProcess(t, embeddedvm.Config{})
	m := metrics.New("v1.2.3")
	group, err := instance.NewGroup(instance.Instance{ID: "vm-1", Addr: s.Addr, SSH: mux.Config{
		User:     s.User,
		Auth:     []login.Auth{login.Key("of a stranger", other.Signer)},
		HostKeys: login.PinnedHostKeys(s.HostKey),
	}})
	require.NoError(t, err)
	p, err := instance.NewProvider(instance.Config{
		Group: group, ConnTrace: m.ConnTrace(), DialDone: m.Dialed, Retired: m.Retired,
	})
	require.NoError(t, err)
	defer p.Close()
	m.Watch(p)
	e := p.Executor(instance.Build{ID: "b"})
	require.Error(t, e.Prepare(sshtest.Within(t)))
	require.NoError(t, e.Cleanup(sshtest.Within(t)))
	text := scrape(t, serve(t, m), "/metrics")
	require.Contains(t, text, `stepmux_dial_seconds_count{result="login"} 1`)
	require.Contains(t, text, `stepmux_instances{state="aside"} 1`)
}

// A VM that another manager of a cluster has was in no state of stepmux_instances.
func TestEachInstanceIsCountedInItsState(t *testing.T) {
	m := metrics.New("v1.2.3")
	ssh := mux.Config{User: "ci", Auth: []login.Auth{login.Password("x")}, HostKeys: login.InsecureHostKeys()}
	group, err := instance.NewGroup(
		instance.Instance{ID: "vm-1", Addr: "vm-1:22", SSH: ssh}, instance.Instance{ID: "vm-2", Addr: "vm-2:22", SSH: ssh},
	)
	require.NoError(t, err)
	group.Share()
	require.NoError(t, group.Hold("vm-1"))
	p, err := instance.NewProvider(instance.Config{Group: group})
	require.NoError(t, err)
	defer p.Close()
	m.Watch(p)
	text := scrape(t, serve(t, m), "/metrics")
	require.Contains(t, text, `stepmux_instances{state="ready"} 1`)
	require.Contains(t, text, `stepmux_instances{state="elsewhere"} 1`)
}

func TestEndedCountsBuildsByReason(t *testing.T) {
	m := metrics.New("v1.2.3")
	m.Ended(batch.Report{Err: &instance.BuildError{Reason: instance.JobCanceled, Err: errors.New("x")}})
	m.Ended(batch.Report{Left: []string{"process 7"}})
	text := scrape(t, serve(t, m), "/metrics")
	require.Contains(t, text, `stepmux_builds_total{result="job_canceled"} 1`)
	require.Contains(t, text, `stepmux_builds_total{result="success"} 1`)
	require.Contains(t, text, `stepmux_builds_left_total 1`)
}

func TestServeIsForThisMachineUnlessToldOtherwise(t *testing.T) {
	for addr, want := range map[string]string{
		":0": "127.0.0.1", "0": "127.0.0.1", "127.0.0.2:0": "127.0.0.2",
		"[::1]:0": "::1",
	} {
		s, err := metrics.Serve(addr, metrics.New("v1.2.3"))
		if err != nil && addr == "[::1]:0" {
			continue // a machine without IPv6
		}
		require.NoError(t, err)
		host, _, err := net.SplitHostPort(s.Addr())
		require.NoError(t, err)
		require.Equal(t, want, host)
		s.Close()
		s.Close()
	}
}

func TestServeSaysWhatIsWrongWithAnAddress(t *testing.T) {
	s := serve(t, metrics.New("v1.2.3"))
	require.Equal(t, "ok\n", scrape(t, s, "/healthz"))
	_, err := metrics.Serve(s.Addr(), metrics.New("v1.2.3"))
	require.ErrorContains(t, err, "address already in use (name another address, or port 0 for any)")
	require.Equal(t, "ok\n", scrape(t, s, "/healthz"), "what has it goes on")
	for _, addr := range []string{"a:b:c", "127.0.0.1:http-alt-x", ":99999"} {
		_, err := metrics.Serve(addr, metrics.New("v1.2.3"))
		require.ErrorContains(t, err, "serve metrics", addr)
	}
}

func TestASlowReaderDoesNotHoldUpTheEnd(t *testing.T) {
	s := serve(t, metrics.New("v1.2.3"))
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /metrics HTTP/1.1\r\n")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Close()
	}()
	select {
	case <-ended:
	case <-time.After(sshtest.Bound): //nolint:forbidigo // a bound, not a wait
		require.Fail(t, "Close waits for a client")
	}
}
