package kubernetes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/kubernetes"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/kubetest"
	"github.com/stepmux/stepmux/internal/runnertest"
)

// load returns the cluster of a server.
func load(t *testing.T, s *kubetest.Server) *kubernetes.Cluster {
	t.Helper()
	c, err := kubernetes.Load(kubernetes.ClusterConfig{Kubeconfig: s.Kubeconfig})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// config returns the configuration of a build.
func config(t *testing.T, c *kubernetes.Cluster) kubernetes.Config {
	t.Helper()
	path, err := runnertest.Program()
	require.NoError(t, err)
	bin, err := program.LoadBinary(path)
	require.NoError(t, err)
	return kubernetes.Config{
		Cluster: c, BuildID: "b1", Spec: kubernetes.Spec{Image: "busybox:1"}, Programs: []*program.Binary{bin},
		Linger: time.Minute,
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
func connect(t *testing.T, s *kubetest.Server, p *kubernetes.Pod, log *bytes.Buffer) *connector.Connector {
	t.Helper()
	cfg := connector.Config{BuildID: "b1", Isolation: "off"}
	if log != nil {
		cfg.Log = log
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
	s := kubetest.Serve(t)
	p := start(t, config(t, load(t, s)))
	c := connect(t, s, p, nil)
	const all = 300
	cuts := 0
	log := &lines{on: func(n int) {
		if n > (cuts+1)*all/4 && cuts < 3 {
			cuts++
			s.Cut()
		}
	}}
	result, err := c.Execute(t.Context(), connector.Job{Steps: []byte(fmt.Sprintf(`run:
  - name: count
    script: |
      i=0
      while [ $i -lt %d ]; do i=$((i+1)); echo line $i; sleep 0.002; done
      exit 7
`, all))}, log)
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
	c := connect(t, s, p, nil)
	log := &lines{on: func(int) { s.Delete(p.Name()) }}
	_, err := c.Execute(t.Context(), connector.Job{Steps: []byte("run: [{name: a, script: echo here; sleep 60}]")}, log)
	require.ErrorIs(t, err, connector.ErrGone)
	require.ErrorContains(t, err, "pod "+p.Name()+": it was deleted")
}

// A container that ran out of memory ends with all its processes.
func TestTheEndOfThePodIsInTheErrorOfItsBuild(t *testing.T) {
	s := kubetest.Serve(t)
	p := start(t, config(t, load(t, s)))
	c := connect(t, s, p, nil)
	log := &lines{on: func(int) {
		s.SetStatus(p.Name(), kubetest.Object{"phase": "Failed", "containerStatuses": []any{kubetest.Object{
			"name": "build", "state": kubetest.Object{"terminated": kubetest.Object{"reason": "OOMKilled", "exitCode": 137}},
		}}})
		s.Cut()
	}}
	_, err := c.Execute(t.Context(), connector.Job{Steps: []byte("run: [{name: a, script: echo here; sleep 60}]")}, log)
	require.ErrorContains(t, err, "container build: OOMKilled, exit status 137")
}

func TestAPodThatCannotStartIsTheBuildsErrorAtOnceWithItsEvents(t *testing.T) {
	waiting := func(container, reason, message string) kubetest.Object {
		kind := "containerStatuses"
		if container != "build" {
			kind = "initContainerStatuses"
		}
		return kubetest.Object{"phase": "Pending", kind: []any{kubetest.Object{
			"name": container, "state": kubetest.Object{"waiting": kubetest.Object{"reason": reason, "message": message}},
		}}}
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
			kubetest.Object{"phase": "Failed", "initContainerStatuses": []any{kubetest.Object{
				"name": "stepmux-init", "state": kubetest.Object{"terminated": kubetest.Object{
					"exitCode": 128, "reason": "StartError", "message": `exec: "sh": executable file not found`,
				}},
			}}},
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

func TestAClusterThatRefusesIsTheBuildsErrorAtOnce(t *testing.T) {
	for want, code := range map[string]int{
		"Unauthorized (is the login of the kubeconfig's user still valid?)": http.StatusUnauthorized,
		"pods is forbidden (see: stepmux doctor --kubernetes)":              http.StatusForbidden,
		"because it is being terminated":                                    http.StatusForbidden,
	} {
		s := kubetest.Serve(t)
		s.Answer = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPost {
				return false
			}
			message, _, _ := strings.Cut(want, " (")
			kubetest.Refuse(w, code, message)
			return true
		}
		_, err := kubernetes.Start(t.Context(), config(t, load(t, s)))
		require.ErrorContains(t, err, "create a pod in namespace ci: the API server says: "+want)
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
		}
		return false
	}
	p := start(t, config(t, load(t, s)))
	require.Equal(t, []string{p.Name()}, s.Pods())
	var log bytes.Buffer
	c := connect(t, s, p, &log)
	result, err := c.Execute(t.Context(), connector.Job{Steps: []byte("run: [{name: a, script: echo here}]")}, &log)
	require.NoError(t, err)
	require.Equal(t, connector.Succeeded, result.Status)
	require.NoError(t, c.Close(t.Context()))
}

func TestCloseNamesThePodThatItCouldNotRemove(t *testing.T) {
	s := kubetest.Serve(t)
	s.Answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete {
			kubetest.Refuse(w, http.StatusForbidden, "no")
		}
		return r.Method == http.MethodDelete
	}
	p, err := kubernetes.Start(t.Context(), config(t, load(t, s)))
	require.NoError(t, err)
	err = p.Close(t.Context())
	require.ErrorContains(t, err, "remove pod "+p.Name()+" of namespace ci (else it ends by itself")
	require.Equal(t, err, p.Close(t.Context()))
}

func TestTheReaperRemovesWhatADeadManagerLeftAndNothingElse(t *testing.T) {
	s := kubetest.Serve(t)
	long, short := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339)
	pod := func(name, made, phase string, status kubetest.Object) {
		status["phase"] = phase
		s.Add(kubetest.Object{"metadata": kubetest.Object{
			"name": name, "uid": name, "creationTimestamp": made,
			"annotations": kubetest.Object{"dev.stepmux.start-timeout": "60"},
		}, "status": status})
	}
	running := kubetest.Object{"containerStatuses": []any{kubetest.Object{
		"name": "build", "state": kubetest.Object{"running": kubetest.Object{}},
	}}}
	ended := kubetest.Object{"containerStatuses": []any{kubetest.Object{
		"name": "build", "state": kubetest.Object{"terminated": kubetest.Object{"finishedAt": short}},
	}}}
	pod("ended-long-ago", long, "Succeeded", kubetest.Object{})
	pod("ended-now", long, "Succeeded", ended)
	pod("runs", long, "Running", running)
	pod("never-started", long, "Pending", kubetest.Object{})
	pod("starts", short, "Pending", kubetest.Object{})
	require.NoError(t, load(t, s).Reap(t.Context()))
	require.Equal(t, []string{"ended-now", "runs", "starts"}, s.Pods())
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
		"no key of stepmux":           func(c *kubernetes.Config) { c.Spec.Labels = []string{"dev.stepmux.build=x"} },
		"is no manifest":              func(c *kubernetes.Config) { c.Spec.Template = []byte("{") },
		"is a Deployment: want a Pod": func(c *kubernetes.Config) { c.Spec.Template = []byte("kind: Deployment") },
		"spec is no mapping":          func(c *kubernetes.Config) { c.Spec.Template = []byte("spec: 1") },
		"an entry of spec.containers": func(c *kubernetes.Config) { c.Spec.Template = []byte("spec: {containers: [a]}") },
		"cannot linger":               func(c *kubernetes.Config) { c.Linger = 25 * time.Hour },
	} {
		cfg := config(t, load(t, s))
		change(&cfg)
		_, err := kubernetes.Start(t.Context(), cfg)
		require.ErrorContains(t, err, want)
	}
	require.Empty(t, s.Pods())
}

func TestATemplateIsKeptButForWhatAPodOfABuildNeeds(t *testing.T) {
	cfg := kubernetes.Config{BuildID: "B_1", StartTimeout: time.Minute, Linger: time.Minute, Spec: kubernetes.Spec{
		Image: "golang:1.26", User: "1000:2000", Memory: 1 << 30, NanoCPUs: 15e8, ReadOnly: true, Labels: []string{"a=b"},
		Pull: kubernetes.PullNever,
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
    securityContext: {runAsNonRoot: true, allowPrivilegeEscalation: false}
  - {name: db, image: "postgres:17"}
`),
	}}
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
