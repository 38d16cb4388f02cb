package kubernetes_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/kubernetes"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/faultconn"
	"github.com/stepmux/stepmux/internal/testing/kubetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// load returns the cluster of a server.
func load(t *testing.T, s *kubetest.Server) *kubernetes.Cluster {
	t.Helper()
	c, err := kubernetes.Load(kubernetes.ClusterConfig{Kubeconfig: s.Kubeconfig})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// through puts a proxy before the server.
func through(t *testing.T, s *kubetest.Server, link faultconn.Config) *sshtest.TCPProxy {
	t.Helper()
	text, err := os.ReadFile(s.Kubeconfig)
	require.NoError(t, err)
	_, server, _ := strings.Cut(string(text), "https://")
	server, _, _ = strings.Cut(server, `"`)
	proxy := sshtest.ProxyOver(t, server, link)
	text = bytes.ReplaceAll(text, []byte(server), []byte(proxy.Addr()))
	require.NoError(t, os.WriteFile(s.Kubeconfig, text, 0o600))
	return proxy
}

// config returns the configuration of a build.
func config(t *testing.T, c *kubernetes.Cluster) kubernetes.Config {
	t.Helper()
	path, err := runnertest.Program()
	require.NoError(t, err)
	bin, err := program.LoadBinary(path)
	require.NoError(t, err)
	return kubernetes.Config{
		Config:  place.Config{BuildID: "b1", Programs: []*program.Binary{bin}, Linger: time.Minute},
		Cluster: c, Spec: kubernetes.Spec{Spec: place.Spec{Image: "busybox:1"}},
	}
}

// start starts a pod, which ends with the test.
func start(t *testing.T, cfg kubernetes.Config) *kubernetes.Pod {
	t.Helper()
	p, err := kubernetes.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	return p
}

// connect returns a Connector for a step runner in the pod.
func connect(
	t *testing.T, s *kubetest.Server, p *kubernetes.Pod, change ...func(*connector.Config),
) *connector.Connector {
	t.Helper()
	cfg := connector.Config{BuildID: "b1", Options: vmconfig.Options{Isolation: vmconfig.Off}}
	for _, set := range change {
		set(&cfg)
	}
	p.Configure(&cfg)
	cfg.TempDir, cfg.Runner = s.Home(p.Name())+"/run", []string{s.Home(p.Name()) + "/bin/stepmux"}
	c, err := connector.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) }) // the tests that end well look at its error
	_, err = c.Connect(t.Context())
	require.NoError(t, err)
	return c
}

// lines is a log. It calls on for each line, and then keeps it.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	on   func(n int)
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if l.on != nil {
		l.on(bytes.Count(l.text.Bytes(), []byte("\n")))
	}
	return len(p), nil
}

// The main promise: an exec that is cut costs nothing. The API server says nothing of the command's end then, and the
// next exec goes on from the offset of the last line.
func TestABuildGoesOnWhenItsExecIsCutAndLosesNoLine(t *testing.T) {
	t.Run("WebSocket", func(t *testing.T) { cutBuild(t, nil) })
	t.Run("SPDY", func(t *testing.T) { cutBuild(t, noWebSockets) })
}

func cutBuild(t *testing.T, answer func(http.ResponseWriter, *http.Request) bool) {
	t.Helper()
	s := kubetest.Serve(t)
	s.Answer = answer
	p := start(t, config(t, load(t, s)))
	c := connect(t, s, p)
	const all = 300
	cuts := 0
	log := &lines{on: func(n int) {
		if n > (cuts+1)*all/4 && cuts < 3 {
			cuts++
			s.Cut()
		}
	}}
	result, err := c.Execute(t.Context(), connector.Job{Job: &stepmuxv1.Job{Steps: []byte(fmt.Sprintf(`run:
  - name: count
    script: |
      i=0
      while [ $i -lt %d ]; do i=$((i+1)); echo line $i; sleep 0.002; done
      exit 7
`, all))}}, log)
	require.NoError(t, err)
	require.Equal(t, connector.Failed, result.Status)
	require.Equal(t, 7, result.ExitCode)
	require.Equal(t, 3, cuts)
	var want strings.Builder
	for i := range all {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	require.Equal(t, want.String(), log.text.String())
	require.NoError(t, c.Close(t.Context()))
	require.Empty(t, c.Left())
	require.NoError(t, p.Close(t.Context()))
	require.Empty(t, s.Pods())
}

func TestAPodThatIsDeletedByHandEndsItsBuildAtOnce(t *testing.T) {
	s := kubetest.Serve(t)
	p := start(t, config(t, load(t, s)))
	c := connect(t, s, p)
	log := &lines{on: func(int) { s.Delete(p.Name()) }}
	_, err := c.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{name: a, script: echo here; sleep 60}]")}},
		log,
	)
	require.ErrorIs(t, err, connector.ErrGone)
	require.ErrorContains(t, err, "pod "+p.Name()+": the pod was deleted (container build: exit status 0)")
	require.Equal(t, err, p.Explain(t.Context(), err), "the reason comes twice")
}

func TestAPodOfANodeThatIsDrainedSaysSo(t *testing.T) {
	s := kubetest.Serve(t)
	p := start(t, config(t, load(t, s)))
	c := connect(t, s, p)
	log := &lines{on: func(int) {
		s.SetStatus(p.Name(), kubetest.Object{"phase": "Running", "conditions": []any{kubetest.Object{
			"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
		}}})
		s.Delete(p.Name())
	}}
	_, err := c.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{name: a, script: echo here; sleep 60}]")}},
		log,
	)
	require.ErrorContains(t, err, "the pod was deleted (EvictionByEvictionAPI: Eviction API: evicting; container build: ")
}

// Symptom: the step runner of a drained pod ends first. If the rest of the pod took more than five seconds to end, the
// error did not tell of the drain.
func TestAPodThatIsBeingDeletedIsNamedBeforeItHasEnded(t *testing.T) {
	s := kubetest.Serve(t)
	p := start(t, config(t, load(t, s)))
	s.SetStatus(p.Name(), kubetest.Object{"phase": "Running", "conditions": []any{kubetest.Object{
		"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
	}}})
	s.Terminate(p.Name())
	gone := &connector.ServeError{Stderr: "there is no such socket"}
	err := p.Explain(t.Context(), gone)
	require.ErrorIs(t, err, gone)
	require.ErrorContains(t, err, "the pod was deleted (EvictionByEvictionAPI: Eviction API: evicting)")
}

// Symptom: the error of a build whose node was gone said only that its step runner could not be reached.
func TestABuildWhoseNodeIsGoneSaysWhyItCannotBeReached(t *testing.T) {
	s := kubetest.Serve(t)
	var gone atomic.Bool
	s.RefuseIf(http.StatusInternalServerError, "error dialing backend: no route to host", func(r *http.Request) bool {
		return gone.Load() && strings.HasSuffix(r.URL.Path, "/exec")
	})
	cfg := config(t, load(t, s))
	cfg.Linger = 4 * time.Second
	p := start(t, cfg)
	c := connect(t, s, p)
	log := &lines{on: func(int) {
		gone.Store(true)
		s.Cut()
	}}
	_, err := c.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{name: a, script: echo here; sleep 60}]")}},
		log,
	)
	require.ErrorContains(t, err, "the step runner could not be reached for 4s; last attempt: no link to pod "+p.Name())
	require.ErrorContains(t, err, "the API server says: error dialing backend: no route to host")
}

// The build goes on in its pod for the time of its linger, in which its Connector asks again.
func TestALoginThatExpiresInTheMiddleIsNamed(t *testing.T) {
	s := kubetest.Serve(t)
	var expired atomic.Bool
	s.RefuseIf(http.StatusUnauthorized, "Unauthorized", func(*http.Request) bool { return expired.Load() })
	p := start(t, config(t, load(t, s)))
	var place connector.Config
	p.Configure(&place)
	expired.Store(true)
	_, err := place.Reconnect(t.Context())
	require.ErrorContains(t, err, "Unauthorized (is the login of the kubeconfig's user still valid?)")
	require.NotErrorIs(t, err, connector.ErrGone)
	expired.Store(false)
	lease, err := place.Reconnect(t.Context())
	require.NoError(t, err)
	lease.Release()
}

// Symptom: a plugin that does not tell when its token expires is run again after a refusal, which failed a build.
func TestAPluginWhoseTokenHasExpiredIsRunAgain(t *testing.T) {
	s := kubetest.Serve(t)
	token := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		require.NoError(t, os.WriteFile(token, []byte(`{"kind": "ExecCredential", "apiVersion": `+
			`"client.authentication.k8s.io/v1", "status": {"token": "`+text+`"}}`), 0o600))
	}
	write("old")
	var expired atomic.Bool
	s.RefuseIf(http.StatusUnauthorized, "Unauthorized", func(r *http.Request) bool {
		return expired.Load() && r.Header.Get("Authorization") != "Bearer new"
	})
	text, err := os.ReadFile(s.Kubeconfig)
	require.NoError(t, err)
	plugin := fmt.Sprintf(
		"exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: cat, args: [%q]}", token)
	text = bytes.Replace(text, []byte("token: secret"), []byte(plugin), 1)
	require.NoError(t, os.WriteFile(s.Kubeconfig, text, 0o600))
	c := load(t, s)
	_, err = c.Check(t.Context())
	require.NoError(t, err)
	write("new")
	expired.Store(true)
	rights, err := c.Rights(t.Context()) // by requests with a body
	require.NoError(t, err)
	require.True(t, rights[0].Allowed)
}

// A container that ran out of memory ends with all its processes.
func TestTheEndOfThePodIsInTheErrorOfItsBuild(t *testing.T) {
	s := kubetest.Serve(t)
	p := start(t, config(t, load(t, s)))
	c := connect(t, s, p)
	log := &lines{on: func(int) {
		s.SetStatus(p.Name(), kubetest.Status("Failed", "build", "terminated",
			kubetest.Object{"reason": "OOMKilled", "exitCode": 137}))
		s.Cut()
	}}
	_, err := c.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{name: a, script: echo here; sleep 60}]")}},
		log,
	)
	require.ErrorContains(t, err, "container build: OOMKilled, exit status 137")
}

// Symptom: beside a container of the template that ran on, the end of the steps' container was not noticed. The build
// was lost after its linger, without the reason.
func TestTheEndOfTheStepsContainerIsTheEndOfABuildThoughOthersRunOn(t *testing.T) {
	s := kubetest.Serve(t)
	var gone atomic.Bool
	s.RefuseIf(http.StatusInternalServerError, "container not found", func(r *http.Request) bool {
		return gone.Load() && strings.HasSuffix(r.URL.Path, "/exec")
	})
	cfg := config(t, load(t, s))
	cfg.Linger = 3 * time.Second
	p := start(t, cfg)
	c := connect(t, s, p)
	log := &lines{on: func(int) {
		gone.Store(true)
		s.SetStatus(p.Name(), kubetest.Object{"phase": "Running", "containerStatuses": []any{kubetest.Object{
			"name": "build", "state": kubetest.Object{"terminated": kubetest.Object{"reason": "OOMKilled", "exitCode": 137}},
		}, kubetest.Object{"name": "proxy", "state": kubetest.Object{"running": kubetest.Object{}}}}})
		s.Cut()
	}}
	_, err := c.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{name: a, script: echo here; sleep 60}]")}},
		log,
	)
	require.ErrorIs(t, err, connector.ErrGone)
	require.ErrorContains(t, err, "container build: OOMKilled, exit status 137")
}

func TestAPodThatCannotStartIsTheBuildsErrorAtOnceWithItsEvents(t *testing.T) {
	waiting := func(container, reason, message string) kubetest.Object {
		return kubetest.Status("Pending", container, "waiting", kubetest.Object{"reason": reason, "message": message})
	}
	for name, c := range map[string]struct {
		status kubetest.Object
		want   string
	}{
		"image": {
			waiting("stepmux-init", "ImagePullBackOff", "Back-off pulling image"),
			"container stepmux-init: ImagePullBackOff: Back-off pulling image; events: Failed: no such image",
		},
		"never": {waiting("stepmux-init", "ErrImageNeverPull", "not present"), "ErrImageNeverPull: not present"},
		"config": {
			waiting("build", "CreateContainerConfigError", `secret "x" not found`),
			`container build: CreateContainerConfigError: secret "x" not found`,
		},
		"node": {kubetest.Object{"phase": "Pending", "conditions": []any{kubetest.Object{
			"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available",
		}}}, "Unschedulable: 0/3 nodes are available"},
		"evicted": {
			kubetest.Object{"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
			"Evicted: The node was low on resource: memory.",
		},
		"shell": {
			kubetest.Status("Failed", "stepmux-init", "terminated", kubetest.Object{
				"exitCode": 128, "reason": "StartError", "message": `exec: "sh": executable file not found`,
			}),
			`container stepmux-init: StartError, exit status 128; it said: exec: "sh": executable file not found`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.Serve(t)
			s.Fate = func(kubetest.Object) kubetest.Object { return c.status }
			s.Events = []string{"Failed: no such image"}
			_, err := kubernetes.Start(t.Context(), config(t, load(t, s)))
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "pod stepmux-b1-")
			require.Empty(t, s.Pods(), "nothing is left")
		})
	}
}

// Symptoms: a build whose template has a variable of a secret failed if the kubelet had just been started. Of 20 builds
// at once on a node, with --pull always, some failed.
func TestAPodWaitsForItsKubelet(t *testing.T) {
	for reason, message := range map[string]string{
		"CreateContainerConfigError": "failed to sync secret cache: timed out waiting for the condition",
		"ImagePullBackOff":           `Back-off pulling image "busybox:1": ErrImagePull: pull QPS exceeded`,
	} {
		t.Run(reason, func(t *testing.T) {
			s := kubetest.Serve(t)
			s.Fate = func(kubetest.Object) kubetest.Object {
				return kubetest.Status("Pending", "build", "waiting", kubetest.Object{"reason": reason, "message": message})
			}
			s.Answer = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Has("watch") {
					time.AfterFunc(300*time.Millisecond, func() {
						for _, pod := range s.Pods() {
							s.SetStatus(pod, kubetest.Object{"phase": "Failed", "reason": "Evicted"})
						}
					})
				}
				return false
			}
			_, err := kubernetes.Start(t.Context(), config(t, load(t, s)))
			require.ErrorContains(t, err, ": Evicted")
		})
	}
}

// A part of the node that is started anew may end a pod, or leave it as it is. Nothing of the build has run then.
func TestAPodThatFailsForItsNodeGetsASuccessor(t *testing.T) {
	ended := func(container string, end kubetest.Object) kubetest.Object {
		return kubetest.Status("Failed", container, "terminated", end)
	}
	for name, c := range map[string]struct {
		status kubetest.Object
		pods   int
	}{
		"unknown": {ended("stepmux-init", kubetest.Object{"exitCode": 137, "reason": "ContainerStatusUnknown"}), 2},
		"lost":    {ended("stepmux-init", kubetest.Object{"exitCode": 255, "reason": "Unknown"}), 2},
		"killed":  {ended("stepmux-init", kubetest.Object{"exitCode": 137, "reason": "Error"}), 2},
		"not started": {ended("stepmux-init", kubetest.Object{
			"exitCode": 128, "reason": "StartError", "message": "ttrpc: closed",
		}), 2},
		"kubelet": {kubetest.Object{"phase": "Failed", "reason": "NodeAffinity"}, 2},
		"full":    {kubetest.Object{"phase": "Failed", "reason": "OutOfcpu"}, 2},
		"drained": {kubetest.Object{"phase": "Failed", "conditions": []any{kubetest.Object{
			"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
		}}}, 2},
		"memory": {ended("stepmux-init", kubetest.Object{"exitCode": 137, "reason": "OOMKilled"}), 1},
		"script": {ended("stepmux-init", kubetest.Object{"exitCode": 1, "reason": "Error"}), 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.Serve(t)
			pods := 0
			s.Fate = func(kubetest.Object) kubetest.Object {
				if pods++; pods > 1 {
					return kubetest.Object{"phase": "Failed", "reason": "Evicted"}
				}
				return c.status
			}
			_, err := kubernetes.Start(t.Context(), config(t, load(t, s)))
			require.Error(t, err)
			require.Equal(t, c.pods, pods, "%v", err)
			require.Empty(t, s.Pods())
		})
	}
	t.Run("and starts", func(t *testing.T) {
		s := kubetest.Serve(t)
		pods := 0
		s.Fate = func(kubetest.Object) kubetest.Object {
			if pods++; pods > 1 {
				return nil
			}
			return kubetest.Object{"phase": "Failed", "reason": "NodeAffinity"}
		}
		cfg := config(t, load(t, s))
		var log bytes.Buffer
		cfg.Log = &log
		p := start(t, cfg)
		require.Equal(t, []string{p.Name()}, s.Pods())
		require.Contains(t, log.String(), "another pod is made: pod stepmux-b1-")
	})
	t.Run("always", func(t *testing.T) {
		s := kubetest.Serve(t)
		pods := 0
		s.Fate = func(kubetest.Object) kubetest.Object {
			pods++
			return kubetest.Object{"phase": "Failed", "reason": "NodeLost"}
		}
		_, err := kubernetes.Start(t.Context(), config(t, load(t, s)))
		require.ErrorContains(t, err, "NodeLost")
		require.Equal(t, 4, pods)
		require.Empty(t, s.Pods())
	})
}

// A login may have some of the rights.
func TestAMissingRightIsTheBuildsErrorAtOnce(t *testing.T) {
	for verb, is := range map[string]func(*http.Request) bool{
		"get": func(r *http.Request) bool {
			return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/pods/stepmux-b1-")
		},
		"watch": func(r *http.Request) bool { return r.URL.Query().Has("watch") },
		"exec":  func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/exec") },
	} {
		t.Run(verb, func(t *testing.T) {
			s := kubetest.Serve(t)
			s.RefuseIf(http.StatusForbidden, "no "+verb, is)
			cfg := config(t, load(t, s))
			cfg.StopTimeout = time.Millisecond // without get, nobody sees the pod's end
			_, err := kubernetes.Start(t.Context(), cfg)
			require.ErrorContains(t, err, "the API server says: no "+verb+" (see: stepmux doctor --kubernetes)")
			require.ErrorContains(t, err, "pod stepmux-b1-")
		})
	}
}

// check asks the server at an address for its version.
func check(t *testing.T, address string, ca []byte) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %q}}]
contexts: [{name: test, context: {cluster: c}}]
current-context: test
`, address, base64.StdEncoding.EncodeToString(ca))), 0o600))
	c, err := kubernetes.Load(kubernetes.ClusterConfig{Kubeconfig: file})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Check(t.Context())
	return err
}

func TestAClusterThatCannotBeReachedIsNamed(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	old := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, old, old, &key.PublicKey, key)
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.StartTLS()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	err = check(t, s.URL, ca)
	require.ErrorContains(t, err, "reach the Kubernetes cluster test at "+s.URL)
	require.ErrorContains(t, err, "(is the clock of this machine right?)")
	s.Close()
	require.ErrorContains(t, check(t, s.URL, ca), "connection refused")
}

func TestAClusterThatRefusesIsTheBuildsErrorAtOnce(t *testing.T) {
	for want, code := range map[string]int{
		"Unauthorized (is the login of the kubeconfig's user still valid?)": http.StatusUnauthorized,
		"pods is forbidden (see: stepmux doctor --kubernetes)":              http.StatusForbidden,
		"because it is being terminated":                                    http.StatusForbidden,
	} {
		s := kubetest.Serve(t)
		message, _, _ := strings.Cut(want, " (")
		s.RefuseIf(code, message, func(r *http.Request) bool { return r.Method == http.MethodPost })
		_, err := kubernetes.Start(t.Context(), config(t, load(t, s)))
		require.ErrorContains(t, err, "create a pod in namespace ci: the API server says: "+want)
	}
}

// Symptom: an API server that was overloaded, and asked its clients to wait, got four calls a second of each build.
func TestCallsWaitAsTheAPIServerAsks(t *testing.T) {
	for verb, is := range map[string]func(*http.Request) bool{
		"create": func(r *http.Request) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods")
		},
		"watch": func(r *http.Request) bool { return r.URL.Query().Has("watch") },
		"exec":  func(r *http.Request) bool { return r.URL.Query().Get("container") == "build" },
	} {
		t.Run(verb, func(t *testing.T) {
			s := kubetest.Serve(t)
			var mu sync.Mutex
			var calls []time.Time
			s.Answer = func(w http.ResponseWriter, r *http.Request) bool {
				mu.Lock()
				defer mu.Unlock()
				if !is(r) {
					return false
				}
				if calls = append(calls, time.Now()); len(calls) > 1 {
					return false
				}
				w.Header().Set("Retry-After", "1")
				kubetest.Refuse(w, http.StatusTooManyRequests, "too many requests")
				return true
			}
			cfg := config(t, load(t, s))
			start(t, cfg)
			mu.Lock()
			defer mu.Unlock()
			require.GreaterOrEqual(t, calls[1].Sub(calls[0]), time.Second)
		})
	}
}

// An answer that is lost does not make two pods, and an API server that is away for a moment fails no build.
func TestABuildStartsThoughTheAPIServerIsAwayForAMoment(t *testing.T) {
	s := kubetest.Serve(t)
	var mu sync.Mutex
	tries := map[string]int{}
	s.Answer = func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		key := r.Method + " " + r.URL.Path[strings.LastIndex(r.URL.Path, "/"):]
		tries[key]++
		n := tries[key]
		mu.Unlock()
		switch n {
		case 1:
			panic(http.ErrAbortHandler) // it hangs up
		case 2:
			kubetest.Refuse(w, http.StatusServiceUnavailable, "shutting down")
			return true
		case 3:
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") {
				// as many pods at once do, in a namespace with a quota
				kubetest.Refuse(w, http.StatusConflict, "Operation cannot be fulfilled on resourcequotas")
				return true
			}
		}
		return false
	}
	p := start(t, config(t, load(t, s)))
	require.Equal(t, []string{p.Name()}, s.Pods())
	var log bytes.Buffer
	c := connect(t, s, p, func(c *connector.Config) { c.Log = &log })
	result, err := c.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{name: a, script: echo here}]")}},
		&log,
	)
	require.NoError(t, err)
	require.Equal(t, connector.Succeeded, result.Status)
	require.NoError(t, c.Close(t.Context()))
}

// Symptom: many pods that started together over one link had nothing done in their time, and began anew, for ever.
func TestAProgramMayTakeLongerThanReadyTimeout(t *testing.T) {
	s := kubetest.Serve(t)
	through(t, s, faultconn.Config{Bandwidth: 2 << 20, Buffer: 1 << 20})
	execs := atomic.Int32{}
	s.Answer = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("container") == "stepmux-init" {
			execs.Add(1)
		}
		return false
	}
	cfg := config(t, load(t, s))
	cfg.ReadyTimeout = 3 * time.Second // 10 MB take 5 s
	start(t, cfg)
	require.LessOrEqual(t, execs.Load(), int32(2), "each file was sent once")
}

// The init container ends as soon as it has the program, and takes the exec that brought it along.
func TestAProgramThatCameIsNotBroughtAgain(t *testing.T) {
	s := kubetest.Serve(t)
	s.Mute = true
	start(t, config(t, load(t, s)))
}

// Symptom: after a second Ctrl-C the job went on in its pod for the time of the linger.
func TestAPodIsRemovedThoughItsBuildIsCutShort(t *testing.T) {
	s := kubetest.Serve(t)
	p, err := kubernetes.Start(t.Context(), config(t, load(t, s)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, p.Close(ctx))
	require.Empty(t, s.Pods())
}

func TestCloseNamesThePodThatItCouldNotRemove(t *testing.T) {
	s := kubetest.Serve(t)
	s.RefuseIf(http.StatusForbidden, "no", func(r *http.Request) bool { return r.Method == http.MethodDelete })
	p, err := kubernetes.Start(t.Context(), config(t, load(t, s)))
	require.NoError(t, err)
	err = p.Close(t.Context())
	require.ErrorContains(t, err, "remove pod "+p.Name()+" of namespace ci (else it ends by itself")
	require.Equal(t, err, p.Close(t.Context()))
}

func TestTheReaperRemovesWhatADeadManagerLeftAndNothingElse(t *testing.T) {
	s := kubetest.Serve(t)
	long, short := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339)
	pod := func(name, made string, status kubetest.Object) {
		s.Add(kubetest.Object{"metadata": kubetest.Object{
			"name": name, "uid": name, "creationTimestamp": made,
			"annotations": kubetest.Object{"dev.stepmux.start-timeout": "60"},
		}, "status": status})
	}
	pod("ended-long-ago", long, kubetest.Object{"phase": "Succeeded"})
	pod("ended-now", long, kubetest.Status("Succeeded", "build", "terminated", kubetest.Object{"finishedAt": short}))
	pod("runs", long, kubetest.Status("Running", "build", "running", kubetest.Object{}))
	pod("never-started", long, kubetest.Object{"phase": "Pending"})
	pod("starts", short, kubetest.Object{"phase": "Pending"})
	// By the cluster's clock it is yesterday, and nothing is old.
	var past atomic.Bool
	past.Store(true)
	s.Answer = func(w http.ResponseWriter, _ *http.Request) bool {
		if past.Load() {
			w.Header().Set("Date", time.Now().Add(-24*time.Hour).UTC().Format(http.TimeFormat))
		}
		return false
	}
	c := load(t, s)
	require.NoError(t, c.Reap(t.Context()))
	require.Len(t, s.Pods(), 5)
	past.Store(false)
	require.NoError(t, c.Reap(t.Context()))
	require.Equal(t, []string{"ended-now", "runs", "starts"}, s.Pods())
}

// The program that the test starts beside the pod stands for another manager.
func TestABuildGoesOnInAnotherProcess(t *testing.T) {
	s := kubetest.Serve(t)
	cfg := config(t, load(t, s))
	p, err := kubernetes.Start(t.Context(), cfg)
	require.NoError(t, err)
	secret := strings.Repeat("s", 43)
	first := connect(t, s, p, func(c *connector.Config) { c.Secret = secret })
	at, socket, about := p.At(), first.Socket(), p.Containers()
	require.Equal(t, map[string]any{"container": map[string]any{"id": "c-build", "network": ""}}, about)
	first.Leave()
	p.Leave()
	require.NoError(t, first.Close(t.Context()))
	require.NoError(t, p.Close(t.Context()))
	require.Len(t, s.Pods(), 1)

	again := kubernetes.Config{Config: place.Config{BuildID: "b1"}, Cluster: cfg.Cluster}
	p, err = kubernetes.Attach(t.Context(), again, at)
	require.NoError(t, err)
	require.Equal(t, about, p.Containers())
	second := connect(t, s, p, func(c *connector.Config) { c.Secret, c.Attach = secret, socket })
	var log bytes.Buffer
	result, err := second.Execute(
		t.Context(),
		connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{name: a, script: echo here}]")}},
		&log,
	)
	require.NoError(t, err)
	require.Equal(t, connector.Succeeded, result.Status)
	require.Equal(t, "here\n", log.String())
	require.NoError(t, second.Close(t.Context()))
	require.NoError(t, p.Close(t.Context()))
	require.Empty(t, s.Pods())
	for _, lost := range []string{at, p.Name() + "/other"} {
		_, err = kubernetes.Attach(t.Context(), again, lost)
		require.ErrorIs(t, err, connector.ErrGone)
		require.ErrorContains(t, err, "the pod was deleted")
	}
	_, err = kubernetes.Attach(t.Context(), cfg, "../x")
	require.ErrorContains(t, err, "is no place of a pod")
}

func TestServicesAreReadyBeforeTheBuildBegins(t *testing.T) {
	s := kubetest.Serve(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := closed.Addr().(*net.TCPAddr).Port
	require.NoError(t, closed.Close())
	cfg := config(t, load(t, s))
	cfg.Spec.Services = []place.Service{
		{Image: "postgres:17", Alias: "localhost", Env: []string{fmt.Sprint("HEALTHCHECK_TCP_PORT=", port)}},
	}
	cfg.Spec.ServiceTimeout = 100 * time.Millisecond
	_, err = kubernetes.Start(t.Context(), cfg)
	require.ErrorContains(t, err, fmt.Sprintf(
		"service localhost: the service accepts no connection at localhost:%d: the service was not ready within 100ms", port))
	require.Empty(t, s.Pods())

	open, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
	require.NoError(t, err)
	defer open.Close()
	cfg.Spec.ServiceTimeout = 0
	start(t, cfg)
}

func TestAServiceThatEndsIsTheBuildsError(t *testing.T) {
	for name, state := range map[string]kubetest.Object{
		"ended": {"state": kubetest.Object{"terminated": kubetest.Object{"exitCode": 1, "message": "no password"}}},
		"again": {
			"state":     kubetest.Object{"waiting": kubetest.Object{"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
			"lastState": kubetest.Object{"terminated": kubetest.Object{"exitCode": 1, "message": "no password"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.Serve(t)
			state["name"] = "db"
			s.Sidecars = []any{state}
			cfg := config(t, load(t, s))
			cfg.Spec.Services = []place.Service{{Image: "postgres:17", Alias: "db"}}
			_, err := kubernetes.Start(t.Context(), cfg)
			require.ErrorContains(t, err, "ended: exit status 1; it said: no password")
			require.ErrorContains(t, err, "db: ")
			require.Empty(t, s.Pods())
		})
	}
}

// Symptom: the end of a service was not noticed while its port was waited for. The build failed a minute later, without
// the reason.
func TestAServiceThatEndsBeforeItListensIsTheBuildsError(t *testing.T) {
	s := kubetest.Serve(t)
	cfg := config(t, load(t, s))
	cfg.Spec.Services = []place.Service{{Image: "db", Alias: "localhost", Env: []string{"HEALTHCHECK_TCP_PORT=1"}}}
	cfg.Spec.ServiceTimeout = 5 * time.Second
	cfg.Log = writer(func(text []byte) {
		if bytes.HasPrefix(text, []byte("service localhost: image")) {
			now := kubetest.Status("Running", "build", "running", kubetest.Object{})
			now["initContainerStatuses"] = []any{kubetest.Object{
				"name": "localhost", "ready": true, "state": kubetest.Object{"running": kubetest.Object{}},
				"lastState": kubetest.Object{"terminated": kubetest.Object{"exitCode": 1, "message": "no password"}},
			}}
			s.SetStatus(s.Pods()[0], now)
		}
	})
	_, err := kubernetes.Start(t.Context(), cfg)
	require.ErrorContains(t, err, "ended: exit status 1; it said: no password")
	require.Empty(t, s.Pods())
}

// writer is a log that is shown to a function.
type writer func(text []byte)

func (w writer) Write(text []byte) (int, error) {
	w(text)
	return len(text), nil
}

func TestRightsAreAskedForEachVerb(t *testing.T) {
	s := kubetest.Serve(t)
	s.Denied = []string{"create pods/exec", "list events"}
	rights, err := load(t, s).Rights(t.Context())
	require.NoError(t, err)
	var missing []string
	for _, r := range rights {
		if !r.Allowed {
			missing = append(missing, fmt.Sprint(r.Verb, " ", r.Resource, " ", r.Needed))
		}
	}
	require.Equal(t, []string{"create pods/exec true", "list events false"}, missing)
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	_, err := kubernetes.Load(kubernetes.ClusterConfig{})
	require.ErrorContains(t, err, "no Kubernetes cluster is configured")
	s := kubetest.Serve(t)
	_, err = kubernetes.Load(kubernetes.ClusterConfig{Kubeconfig: s.Kubeconfig, Context: "other"})
	require.ErrorContains(t, err, `"other" does not exist`)
	_, err = kubernetes.Load(kubernetes.ClusterConfig{Kubeconfig: s.Kubeconfig, Namespace: "../x"})
	require.ErrorContains(t, err, `namespace "../x"`)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte("}"), 0o600))
	_, err = kubernetes.Load(kubernetes.ClusterConfig{Kubeconfig: file})
	require.ErrorContains(t, err, "read the kubeconfig")

	gone, err := kubernetes.Load(kubernetes.ClusterConfig{Kubeconfig: s.Kubeconfig})
	require.NoError(t, err)
	version, err := gone.Check(t.Context())
	require.NoError(t, err)
	require.Equal(t, "v1.36.3", version)
}

func TestAProgramOfAnotherMachineIsNotBrought(t *testing.T) {
	s := kubetest.Serve(t)
	cfg := config(t, load(t, s))
	cfg.Programs = []*program.Binary{program.PackedBinary("linux/mips", nil)}
	_, err := kubernetes.Start(t.Context(), cfg)
	require.ErrorContains(t, err, "there is no stepmux for it")
	require.Empty(t, s.Pods())
}

func TestStartIsNotSilentAboutMistakes(t *testing.T) {
	s := kubetest.Serve(t)
	for want, change := range map[string]func(*kubernetes.Config){
		"Config.Cluster is nil":       func(c *kubernetes.Config) { c.Cluster = nil },
		"image name":                  func(c *kubernetes.Config) { c.Spec.Image = "A B" },
		"pull policy":                 func(c *kubernetes.Config) { c.Spec.Pull = "sometimes" },
		"a pod takes a number":        func(c *kubernetes.Config) { c.Spec.User = "root" },
		"takes no limit of its":       func(c *kubernetes.Config) { c.Spec.Pids = 100 },
		"has that of its node":        func(c *kubernetes.Config) { c.Spec.Platform = "linux/arm64" },
		"no key of stepmux":           func(c *kubernetes.Config) { c.Spec.Labels = []string{"dev.stepmux.build=x"} },
		"is no manifest":              func(c *kubernetes.Config) { c.Spec.Template = []byte("{") },
		"is a Deployment: want a Pod": func(c *kubernetes.Config) { c.Spec.Template = []byte("kind: Deployment") },
		"spec is no mapping":          func(c *kubernetes.Config) { c.Spec.Template = []byte("spec: 1") },
		"an entry of spec.containers": func(c *kubernetes.Config) { c.Spec.Template = []byte("spec: {containers: [a]}") },
		// Symptom: the pod that could not be encoded was tried again for ten minutes.
		"a key that is no text": func(c *kubernetes.Config) { c.Spec.Template = []byte("spec: {nodeSelector: {1: x}}") },
		"the alias \"DB\" is no": func(c *kubernetes.Config) {
			c.Spec.Services = []place.Service{{Image: "a", Alias: "DB"}}
		},
		"another container has the name \"a\"": func(c *kubernetes.Config) {
			c.Spec.Services = []place.Service{{Image: "a"}, {Image: "x/a:2"}}
		},
		"another container has the name \"build\"": func(c *kubernetes.Config) {
			c.Spec.Services = []place.Service{{Image: "build"}}
		},
		"want a port": func(c *kubernetes.Config) {
			c.Spec.Services = []place.Service{{Image: "a", Env: []string{"HEALTHCHECK_TCP_PORT=x"}}}
		},
		"is not KEY=VALUE": func(c *kubernetes.Config) {
			c.Spec.Services = []place.Service{{Image: "a", Env: []string{"x"}}}
		},
		// Symptom: a job that named a service as a privileged init container of the template had its rights and mounts.
		"an init container \"a-b\" with an image": func(c *kubernetes.Config) {
			c.Spec.Services = []place.Service{{Image: "evil", Alias: "a.b"}}
			c.Spec.Template = []byte("spec: {initContainers: [{name: a-b, image: x, securityContext: {privileged: true}}]}")
		},
		// Symptom: a job became root, or used an image that another build had pulled, though the template prevents that.
		"runAsUser \"0\": the template of the pod has \"1000\"": func(c *kubernetes.Config) {
			c.Spec.User = "0"
			c.Spec.Template = []byte("spec: {containers: [{name: build, securityContext: {runAsUser: 1000}}]}")
		},
		"runAsGroup \"0\": the template of the pod has \"2000\"": func(c *kubernetes.Config) {
			c.Spec.User = "1000:0"
			c.Spec.Template = []byte("spec: {securityContext: {runAsUser: 1000, runAsGroup: 2000}}")
		},
		"imagePullPolicy \"Never\": the template of the pod has \"Always\"": func(c *kubernetes.Config) {
			c.Spec.Pull = place.PullNever
			c.Spec.Template = []byte("spec: {containers: [{name: build, imagePullPolicy: Always}]}")
		},
		"cannot linger": func(c *kubernetes.Config) { c.Linger = 25 * time.Hour },
	} {
		cfg := config(t, load(t, s))
		change(&cfg)
		_, err := kubernetes.Start(t.Context(), cfg)
		require.ErrorContains(t, err, want)
	}
	require.Empty(t, s.Pods())
}

func TestATemplateIsKeptButForWhatAPodOfABuildNeeds(t *testing.T) {
	cfg := kubernetes.Config{
		Config:       place.Config{BuildID: "B_1", Linger: time.Minute},
		StartTimeout: time.Minute, Spec: kubernetes.Spec{
			Spec: place.Spec{
				Image: "golang:1.26", User: "1000:2000", Memory: 1 << 30, NanoCPUs: 15e8, ReadOnly: true, Labels: []string{"a=b"},
				Pull: place.PullNever, Services: []place.Service{{
					Image: "postgres:17", Alias: "my.db", Entrypoint: []string{"run"}, Command: []string{"x"}, Env: []string{"K=v=w"},
				}},
			},
			Template: []byte(`kind: Pod
metadata: {labels: {team: x}, namespace: other}
spec:
  nodeSelector: {disk: fast}
  restartPolicy: Always
  containers:
  - name: build
    image: none
    args: [x]
    env: [{name: A, value: b}]
    securityContext: {runAsNonRoot: true, allowPrivilegeEscalation: false, runAsUser: 1000}
  - {name: db, image: "postgres:17"}
  initContainers:
  - {name: mine, image: x}
  - {name: my-db, readinessProbe: {tcpSocket: {port: 5432}}}
`),
		},
	}
	pod, err := kubernetes.Manifest(cfg)
	require.NoError(t, err)
	meta, spec := pod["metadata"].(map[string]any), pod["spec"].(map[string]any)
	require.Regexp(t, `^stepmux-b-1-[0-9a-f]{8}$`, meta["name"])
	require.NotContains(t, meta, "namespace")
	require.Equal(t, map[string]any{"team": "x", "a": "b", "dev.stepmux.build": meta["name"]}, meta["labels"])
	require.Equal(t, "Never", spec["restartPolicy"])
	require.Equal(t, map[string]any{"disk": "fast"}, spec["nodeSelector"])
	require.Equal(t, false, spec["automountServiceAccountToken"])
	build := spec["containers"].([]any)[0].(map[string]any)
	require.Equal(t, "golang:1.26", build["image"])
	require.Equal(t, "Never", build["imagePullPolicy"])
	require.NotContains(t, build, "args")
	require.NotEmpty(t, build["env"])
	security := build["securityContext"].(map[string]any)
	require.Equal(t, map[string]any{
		"runAsNonRoot": true, "allowPrivilegeEscalation": false, "runAsUser": 1000, "runAsGroup": 2000,
		"readOnlyRootFilesystem": true,
	}, security)
	limits := map[string]any{"memory": "1073741824", "cpu": "1500000000n"}
	require.Equal(t, map[string]any{"limits": limits, "requests": limits}, build["resources"])
	require.Len(t, spec["containers"], 2)
	init := spec["initContainers"].([]any)[0].(map[string]any)
	require.Equal(t, true, init["securityContext"].(map[string]any)["runAsNonRoot"])
	require.Equal(t, build["resources"], init["resources"])
	// Symptom: it gave up after five minutes, while the program was still on its way.
	require.Equal(t, []string{"sh", "600", "stepmux"}, init["command"].([]string)[3:])
	require.Equal(t, map[string]any{
		"name": "my-db", "image": "postgres:17", "restartPolicy": "Always", "imagePullPolicy": "Never",
		"terminationMessagePolicy": "FallbackToLogsOnError", "command": []string{"run"}, "args": []string{"x"},
		"env":            []any{map[string]any{"name": "K", "value": "v=w"}},
		"readinessProbe": map[string]any{"tcpSocket": map[string]any{"port": 5432}},
		"resources":      map[string]any{"limits": limits, "requests": map[string]any{"memory": "0", "cpu": "0"}},
	}, spec["initContainers"].([]any)[1])
	require.Equal(t, "mine", spec["initContainers"].([]any)[2].(map[string]any)["name"])
	require.Equal(t, []any{map[string]any{"ip": "127.0.0.1", "hostnames": []any{"my.db"}}}, spec["hostAliases"])
}

// Symptom: with the limits of the steps' container in the template, services had none, and a job chooses its services.
func TestServicesHaveTheLimitsThatTheTemplateGivesTheSteps(t *testing.T) {
	pod, err := kubernetes.Manifest(kubernetes.Config{
		Config: place.Config{BuildID: "b1"},
		Spec: kubernetes.Spec{
			Spec: place.Spec{Image: "a", Memory: 1 << 30, Services: []place.Service{{Image: "db"}}},
			Template: []byte(`spec:
  containers:
  - {name: build, resources: {limits: {cpu: 2, ephemeral-storage: 5Gi, example.com/gpu: 1}, requests: {cpu: 1}}}
`),
		},
	})
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"limits":   map[string]any{"cpu": 2, "memory": "1073741824", "ephemeral-storage": "5Gi"},
		"requests": map[string]any{"cpu": "0", "memory": "0", "ephemeral-storage": "0"},
	}, pod["spec"].(map[string]any)["initContainers"].([]any)[1].(map[string]any)["resources"])
}

// Symptom: the kubelet made pa$word of the password pa$$word, and replaced $(NAME) by a variable.
func TestTheKubeletReplacesNothingInTheWordsOfAJob(t *testing.T) {
	pod, err := kubernetes.Manifest(kubernetes.Config{
		Config: place.Config{BuildID: "b1"},
		Spec: kubernetes.Spec{
			Spec: place.Spec{
				Image: "a", Entrypoint: []string{"$(A)"}, Services: []place.Service{{
					Image: "db", Entrypoint: []string{"sh", "-c"}, Command: []string{"echo $$ $(hostname)"},
					Env: []string{"A=x", "PASSWORD=pa$$word$(A)"},
				}},
			},
		},
	})
	require.NoError(t, err)
	spec := pod["spec"].(map[string]any)
	require.Equal(t, "$$(A)", spec["containers"].([]any)[0].(map[string]any)["command"].([]string)[0])
	db := spec["initContainers"].([]any)[1].(map[string]any)
	require.Equal(t, []string{"echo $$$$ $$(hostname)"}, db["args"])
	require.Equal(t, map[string]any{"name": "PASSWORD", "value": "pa$$$$word$$(A)"}, db["env"].([]any)[1])
}

// Symptom: entrypoint: [""] of a service ran the entrypoint of its image.
func TestAServiceWithoutEntrypointRunsItsCommandAlone(t *testing.T) {
	pod, err := kubernetes.Manifest(kubernetes.Config{
		Config: place.Config{BuildID: "b1"},
		Spec: kubernetes.Spec{
			Spec: place.Spec{Image: "a", Services: []place.Service{
				{Image: "db", Entrypoint: []string{""}, Command: []string{"run", "x"}},
			}},
		},
	})
	require.NoError(t, err)
	db := pod["spec"].(map[string]any)["initContainers"].([]any)[1].(map[string]any)
	require.Equal(t, []string{"run", "x"}, db["command"])
	require.NotContains(t, db, "args")
}

func TestAHealthCheckIsAReadinessProbe(t *testing.T) {
	check := &place.Health{Test: "pg_isready", Interval: 100 * time.Millisecond, Timeout: 5 * time.Second, Retries: 7}
	pod, err := kubernetes.Manifest(kubernetes.Config{
		Config: place.Config{BuildID: "b1"},
		Spec: kubernetes.Spec{
			Spec: place.Spec{Image: "a", Services: []place.Service{
				{Image: "db", Health: check},
				{Image: "mine", Health: check},
				{Image: "off", Health: &place.Health{Disabled: true, Test: "x"}},
				{Image: "own", Health: &place.Health{}},
			}},
			Template: []byte("spec: {initContainers: [{name: mine, readinessProbe: {tcpSocket: {port: 1}}}]}"),
		},
	})
	require.NoError(t, err)
	probes := map[string]any{}
	for _, c := range pod["spec"].(map[string]any)["initContainers"].([]any) {
		c := c.(map[string]any)
		probes[c["name"].(string)] = c["readinessProbe"]
	}
	require.Equal(t, map[string]any{
		"exec": map[string]any{"command": []any{"/bin/sh", "-c", "pg_isready"}}, "failureThreshold": 7,
		"periodSeconds": int64(1), "timeoutSeconds": int64(5),
	}, probes["db"])
	require.Equal(t, map[string]any{"tcpSocket": map[string]any{"port": 1}}, probes["mine"], "the operator's own")
	require.Nil(t, probes["off"])
	require.Nil(t, probes["own"])
}

// Symptom: the shell ran the step runner without its arguments, and the pod ended.
func TestAShellAsEntrypointBecomesTheFirstProcess(t *testing.T) {
	pod, err := kubernetes.Manifest(kubernetes.Config{
		Config:       place.Config{BuildID: "b1", Linger: time.Minute},
		StartTimeout: time.Minute, Spec: kubernetes.Spec{Spec: place.Spec{Image: "a", Entrypoint: []string{"/bin/sh", "-c"}}},
	})
	require.NoError(t, err)
	build := pod["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
	require.Equal(t, []string{"/bin/sh", "-c", "exec /.stepmux/bin/stepmux steps hold --idle 1m0s --first 1m0s"},
		build["command"])
}

// Symptom: a pod stayed if the answer to the call that made it was lost, and its build was canceled just then.
func TestAPodWhoseAnswerWasLostIsRemovedWhenItsBuildIsCanceled(t *testing.T) {
	s := kubetest.Serve(t)
	proxy := through(t, s, faultconn.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	s.Fate = func(kubetest.Object) kubetest.Object {
		cancel()
		proxy.Cut()
		return kubetest.Object{"phase": "Pending"}
	}
	_, err := kubernetes.Start(ctx, config(t, load(t, s)))
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, s.Pods())
}

// Symptom: a build whose time ended while the cluster was away was a failure of the system, not a timeout.
func TestAStartThatEndsWhileTheClusterIsAwaySaysWhyItEnded(t *testing.T) {
	s := kubetest.Serve(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	s.Answer = func(w http.ResponseWriter, _ *http.Request) bool {
		cancel(stop)
		kubetest.Refuse(w, http.StatusServiceUnavailable, "etcd has no leader")
		return true
	}
	_, err := kubernetes.Start(ctx, config(t, load(t, s)))
	require.ErrorIs(t, err, stop)
	require.ErrorContains(t, err, "etcd has no leader")
}

func TestStartCanBeCancelled(t *testing.T) {
	s := kubetest.Serve(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	s.Fate = func(kubetest.Object) kubetest.Object {
		cancel(stop)
		return kubetest.Object{"phase": "Pending"}
	}
	_, err := kubernetes.Start(ctx, config(t, load(t, s)))
	require.ErrorIs(t, err, stop)
	require.Empty(t, s.Pods())
}
