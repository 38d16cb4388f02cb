//go:build kubernetes

package kubernetes_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/kubernetes"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/testing/kubetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// realCluster returns a cluster for builds.
func realCluster(t *testing.T, kubeconfig, namespace string) *kubernetes.Cluster {
	t.Helper()
	c, err := kubernetes.Load(kubernetes.ClusterConfig{Kubeconfig: kubeconfig, Namespace: namespace})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// realConfig returns the configuration of a build on a real cluster.
func realConfig(t *testing.T, c *kubernetes.Cluster) kubernetes.Config {
	t.Helper()
	cfg := config(t, c)
	cfg.Spec.Image, cfg.Spec.Pull, cfg.Spec.Template = kubetest.Image, place.PullNever, []byte(kubetest.Template)
	return cfg
}

// realConnect is connect, on a real cluster.
func realConnect(t *testing.T, p *kubernetes.Pod) (*connector.Connector, func() (io.ReadWriteCloser, error)) {
	t.Helper()
	cfg := connector.Config{BuildID: "b1", Options: vmconfig.Options{Isolation: vmconfig.Off}}
	p.Configure(&cfg)
	c, err := connector.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) }) // the tests that end well look at its error
	dial, err := c.Connect(t.Context())
	require.NoError(t, err)
	return c, dial
}

// stamp notes when the line that has text is written.
type stamp struct {
	text string
	at   time.Time
}

func (s *stamp) Write(p []byte) (int, error) {
	if s.at.IsZero() && strings.Contains(string(p), s.text) {
		s.at = time.Now()
	}
	return len(p), nil
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func TestRealCluster(t *testing.T) {
	k := kubetest.Start(t)
	cluster := realCluster(t, k.Kubeconfig, "")

	t.Run("a run of the program", func(t *testing.T) {
		template := filepath.Join(t.TempDir(), "pod.yml")
		require.NoError(t, os.WriteFile(template, []byte(kubetest.Template), 0o600))
		out, err := osexec.Command(runnertest.Manager(t), "run", "--kubernetes", "--kubeconfig", k.Kubeconfig, "--image",
			kubetest.Image, "--pull", "never", "--pod-template", template, "../../../examples/hello.yml").CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out)
		doctor := osexec.Command(runnertest.Manager(t), "doctor", "--kubernetes", "--kubeconfig", k.Kubeconfig)
		out, err = doctor.CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out)
	})

	t.Run("files of a build whose manager is killed", func(t *testing.T) {
		dir := t.TempDir()
		socket := filepath.Join(sshtest.SocketDir(t), "m.sock")
		write := func(name, text string) string {
			file := filepath.Join(dir, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			return file
		}
		write("app/in.txt", "from the project")
		job := write("job.yml", "image: "+kubetest.Image+`
run:
  - name: files
    script: |
      echo "begun $(cat in.txt)"
      until [ -e /gate/go ]; do sleep 0.1; done
      mkdir dist; cat in.txt >dist/out
      exit 7
`)
		gate := filepath.Dir(write("gate/closed", ""))
		template := write("pod.yml", kubetest.Template+`  volumes: [{name: gate, hostPath: {path: `+gate+`}}]
  containers: [{name: build, volumeMounts: [{name: gate, mountPath: /gate}]}]
`)
		start := func() *osexec.Cmd {
			cmd := osexec.Command(runnertest.Manager(t), "manager", "--state", filepath.Join(dir, "state"), "--socket", socket,
				"--kubernetes", "--kubeconfig", k.Kubeconfig, "--pull", "never", "--pod-template", template, "--capacity", "2")
			cmd.Stderr = os.Stderr
			require.NoError(t, cmd.Start())
			t.Cleanup(func() {
				_ = cmd.Process.Signal(os.Interrupt) // fails if it was killed
				_ = cmd.Wait()
			})
			return cmd
		}
		first := start()
		require.Eventually(t, func() bool {
			_, err := os.Stat(socket)
			return err == nil
		}, time.Minute, 10*time.Millisecond)
		submit := osexec.Command(runnertest.Manager(t), "submit", "--manager", socket, "--wait", "--trace",
			"--project", filepath.Join(dir, "app"), "--artifacts", "dist", job)
		var log sshtest.Log
		var id bytes.Buffer
		submit.Stdout, submit.Stderr = &log, &id
		require.NoError(t, submit.Start())
		log.Await(t, "begun from the project\n")
		require.NoError(t, first.Process.Kill())
		_ = first.Wait() // it was killed
		start()
		write("gate/go", "")
		exit := (*osexec.ExitError)(nil)
		require.ErrorAs(t, submit.Wait(), &exit, "%s", id.Bytes())
		require.Equal(t, 7, exit.ExitCode(), "%s%s", id.Bytes(), log.String())
		build, _, _ := strings.Cut(id.String(), "\n")
		out, err := osexec.Command(runnertest.Manager(t), "artifacts", "--manager", socket, build,
			filepath.Join(dir, "got")).CombinedOutput()
		require.NoError(t, err, "%s", out)
		text, err := os.ReadFile(filepath.Join(dir, "got/dist/out"))
		require.NoError(t, err)
		require.Equal(t, "from the project", string(text))
		file := filepath.Join(dir, "trace.json")
		out, err = osexec.Command(runnertest.Manager(t), "trace", "get", "--manager", socket, build, file).CombinedOutput()
		require.NoError(t, err, "%s", out)
		kept, err := trace.Read(file)
		require.NoError(t, err)
		require.Equal(t, "failure", kept.Identity.Status)
		require.Equal(t, 7, *kept.Identity.ExitCode)
		require.Contains(t, kept.Identity.Runtime.Image, "sha256:")
		require.Eventually(t, func() bool { return len(k.Phases(t)) == 0 }, time.Minute, 100*time.Millisecond)
	})

	t.Run("a build and its times", func(t *testing.T) {
		var starts, bridges []time.Duration
		for range 5 {
			cfg := realConfig(t, cluster)
			runs := &stamp{text: "runs on node"}
			cfg.Log = runs
			p := start(t, cfg)
			c, dial := realConnect(t, p)
			starts = append(starts, time.Since(runs.at))
			began := time.Now()
			var all errgroup.Group
			for range 32 {
				all.Go(func() error {
					bridge, err := dial()
					if err == nil {
						defer bridge.Close()
						_, err = io.ReadFull(bridge, make([]byte, 9)) // the step runner's greeting
					}
					return err
				})
			}
			require.NoError(t, all.Wait())
			bridges = append(bridges, time.Since(began))
			var log bytes.Buffer
			result, err := c.Execute(
				t.Context(),
				connector.Job{
					Job: &stepmuxv1.Job{
						Steps:   []byte("run: [{name: a, script: 'echo $COLOUR $(id -u); exit 7'}]"),
						PassEnv: []string{"all"},
					},
				},
				&log,
			)
			require.NoError(t, err)
			require.Equal(t, 7, result.ExitCode)
			require.Equal(t, "of-the-image 0\n", log.String())
			require.NoError(t, c.Close(t.Context()))
			require.NoError(t, p.Close(t.Context()))
		}
		t.Logf("from a pod that runs to a step runner that listens: p50 %v of %v", median(starts), starts)
		t.Logf("32 bridges at once: p50 %v of %v", median(bridges), bridges)
	})

	t.Run("no root, nothing to write", func(t *testing.T) {
		cfg := realConfig(t, cluster)
		cfg.Spec.User, cfg.Spec.ReadOnly = "1000:1000", true
		cfg.Spec.Template = []byte(kubetest.Template + `  containers:
  - name: build
    securityContext:
      runAsNonRoot: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      seccompProfile: {type: RuntimeDefault}
`)
		p := start(t, cfg)
		c, _ := realConnect(t, p)
		var log bytes.Buffer
		result, err := c.Execute(
			t.Context(),
			connector.Job{
				Job: &stepmuxv1.Job{Steps: []byte("run: [{name: a, script: 'id -u; id -g; echo x >file; ! echo >/tmp/x'}]")},
			},
			&log,
		)
		require.NoError(t, err)
		require.Equal(t, connector.Succeeded, result.Status, log.String())
		require.Contains(t, log.String(), "1000\n1000\n")
		require.NoError(t, c.Close(t.Context()))
	})

	t.Run("the role of the page is enough", func(t *testing.T) {
		page, err := os.ReadFile("../../../docs/kubernetes.md")
		require.NoError(t, err)
		_, role, _ := strings.Cut(string(page), "```yaml\n")
		role, _, _ = strings.Cut(role, "```")
		nobody := realCluster(t, k.KubeconfigOf(t, "untrusted"), "")
		_, err = kubernetes.Start(t.Context(), realConfig(t, nobody))
		require.ErrorContains(t, err, `cannot create resource "pods"`)
		k.Apply(t, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", strings.ReplaceAll(role, "ci", "default"))
		k.Apply(t, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", `metadata: {name: stepmux}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: stepmux}
subjects: [{kind: User, name: nobody, apiGroup: rbac.authorization.k8s.io}]
`)
		bound, cancel := context.WithTimeout(t.Context(), sshtest.Bound)
		defer cancel()
		var missing []kubernetes.Right
		require.NoError(t, pause.Until(bound, func() (bool, error) { // the API server uses a role soon after it has stored it
			rights, err := nobody.Rights(bound)
			missing = slices.DeleteFunc(rights, func(r kubernetes.Right) bool { return r.Allowed })
			return len(missing) == 0, err
		}), "%v", &missing)
		p := start(t, realConfig(t, nobody))
		c, _ := realConnect(t, p)
		require.NoError(t, c.Close(t.Context()))
	})

	t.Run("mistakes", func(t *testing.T) {
		_, err := realCluster(t, k.KubeconfigOf(t, "expired"), "").Check(t.Context())
		require.ErrorContains(t, err, "Unauthorized")
		_, err = kubernetes.Start(t.Context(), realConfig(t, realCluster(t, k.Kubeconfig, "none")))
		require.ErrorContains(t, err, `namespaces "none" not found`)
		k.Apply(t, "/api/v1/namespaces", "{metadata: {name: ending}, spec: {finalizers: [kubernetes]}}")
		k.Remove(t, "/api/v1/namespaces/ending") // nothing ends it here
		_, err = kubernetes.Start(t.Context(), realConfig(t, realCluster(t, k.Kubeconfig, "ending")))
		require.ErrorContains(t, err, "because it is being terminated")
		cfg := realConfig(t, cluster)
		cfg.Spec.Image = "local.test/none:1"
		_, err = kubernetes.Start(t.Context(), cfg)
		require.ErrorContains(t, err, "ErrImageNeverPull")
		require.ErrorContains(t, err, "local.test/none:1")
		cfg = realConfig(t, cluster)
		cfg.Spec.Pull = place.PullAlways
		_, err = kubernetes.Start(t.Context(), cfg) // there is no registry
		require.ErrorContains(t, err, "ImagePullBackOff")
		t.Log(err)
	})

	t.Run("a pod that ends", func(t *testing.T) {
		p := start(t, realConfig(t, cluster))
		c, _ := realConnect(t, p)
		log := &lines{on: func(int) { go k.Remove(t, "/api/v1/namespaces/default/pods/"+p.Name()) }}
		_, err := c.Execute(
			t.Context(),
			connector.Job{Job: &stepmuxv1.Job{Steps: []byte("run: [{name: a, script: echo here; sleep 60}]")}},
			log,
		)
		err = p.Explain(t.Context(), err) // the step runner may have been seen to be gone before the pod
		require.ErrorContains(t, err, "the pod was deleted")
		t.Log(err)

		cfg := realConfig(t, cluster)
		cfg.Spec.Memory = 64 << 20
		p = start(t, cfg)
		c, _ = realConnect(t, p)
		var text bytes.Buffer
		result, err := c.Execute(
			t.Context(),
			connector.Job{
				Job: &stepmuxv1.Job{
					Steps: []byte("run: [{name: a, script: 'x=$(tail -c 200000000 /dev/zero | tr a b | sort | wc -c); echo $x'}]"),
				},
			},
			&text,
		)
		t.Log(result, err, text.String())

		// A container of the template runs on.
		cfg.Spec.Template = append(cfg.Spec.Template, []byte(`  containers:
  - {name: beside, image: `+kubetest.Image+`, imagePullPolicy: Never, command: [sleep, "600"]}
`)...)
		p = start(t, cfg)
		c, _ = realConnect(t, p)
		_, err = c.Execute(t.Context(), connector.Job{Job: &stepmuxv1.Job{Script: "kill -TERM 1; sleep 600"}}, io.Discard)
		_ = c.Close(t.Context()) // a link that was made meanwhile keeps the container
		err = p.Explain(t.Context(), err)
		require.ErrorContains(t, err, "container build: ")
		t.Log(err)
	})

	t.Run("services", func(t *testing.T) {
		cfg := realConfig(t, cluster)
		cfg.Spec.Services = []place.Service{{
			Image: kubetest.Image, Alias: "web", Command: []string{"sleep 1; httpd -f -p 18642 -h /etc"},
			Entrypoint: []string{"sh", "-c"}, Env: []string{"HEALTHCHECK_TCP_PORT=18642"},
		}, {
			Image: kubetest.Image, Alias: "probed", Env: []string{"WORD=pa$$word$(HOME)"}, Command: []string{
				"sh", "-c", `sleep 1; [ "$WORD" = 'pa$'"$"'word$(HOME)' ] && touch /ready; sleep 600`,
			},
		}}
		cfg.Spec.Template = append(cfg.Spec.Template, []byte(`  initContainers:
  - name: probed
    readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1}
`)...)
		began := time.Now()
		p := start(t, cfg)
		t.Logf("a pod with services that are ready after a second took %v", time.Since(began))
		require.Equal(t, map[string]bool{"build": true, "web": true, "probed": true}, k.Ready(t, p.Name()))
		c, _ := realConnect(t, p)
		var log bytes.Buffer
		job := connector.Job{
			Job: &stepmuxv1.Job{Steps: []byte("run: [{name: a, script: wget -qO- http://web:18642/passwd}]")},
		}
		result, err := c.Execute(t.Context(), job, &log)
		require.NoError(t, err)
		require.Equal(t, connector.Succeeded, result.Status, log.String())
		require.Contains(t, log.String(), "root:x:0:0:")
		require.NoError(t, c.Close(t.Context()))

		cfg = realConfig(t, cluster)
		cfg.Spec.Services = []place.Service{{
			Image: kubetest.Image, Alias: "db", Command: []string{"sh", "-c", "echo no password; exit 4"},
			Env: []string{"HEALTHCHECK_TCP_PORT=18643"}, // else it may be ready before it ends
		}}
		_, err = kubernetes.Start(t.Context(), cfg)
		require.ErrorContains(t, err, "ended: exit status 4; it said: no password")
		t.Log(err)
	})

	t.Run("by SPDY", func(t *testing.T) {
		old := realCluster(t, k.Kubeconfig, "")
		old.UseSPDY()
		p := start(t, realConfig(t, old))
		c, _ := realConnect(t, p)
		var log bytes.Buffer
		result, err := c.Execute(t.Context(), connector.Job{Job: &stepmuxv1.Job{Script: "echo here; exit 7"}}, &log)
		require.NoError(t, err)
		require.Equal(t, 7, result.ExitCode)
		require.Equal(t, "here\n", log.String())
		require.NoError(t, c.Close(t.Context()))
	})

	t.Run("another manager goes on", func(t *testing.T) {
		cfg, secret := realConfig(t, cluster), strings.Repeat("s", 43)
		group, err := instance.NewGroup(instance.Instance{ID: "k", Cluster: cluster, Capacity: 1})
		require.NoError(t, err)
		manager := func(log *stateLog) *instance.Executor {
			provider, err := instance.NewProvider(instance.Config{Group: group, ContainerPrograms: cfg.Programs})
			require.NoError(t, err)
			t.Cleanup(func() { _ = provider.Close() }) // builds have ended
			return provider.Executor(instance.Build{ID: "b1", Log: log, Secret: secret, LogState: log.state, Place: &cfg.Spec})
		}
		log := &stateLog{half: make(chan struct{})}
		job := connector.Job{Job: &stepmuxv1.Job{Script: killScript(7)}}
		first := manager(log)
		require.NoError(t, first.Prepare(t.Context()))
		_, err = first.Connect(t.Context())
		require.NoError(t, err)
		where, socket := first.Place()
		ended := make(chan error, 1)
		go func() { ended <- first.Execute(t.Context(), job) }()
		<-log.half
		require.NoError(t, first.Leave(t.Context()))
		require.Error(t, <-ended)
		require.Less(t, strings.Count(log.text.String(), "\n"), killLines)

		second := manager(log)
		require.NoError(t, second.Resume(t.Context(), where, socket))
		err = second.Execute(t.Context(), job)
		failed, _ := errors.AsType[*instance.BuildError](err)
		require.NotNil(t, failed, "%v", err)
		require.Equal(t, 7, failed.ExitCode)
		require.NoError(t, second.Cleanup(t.Context()))
		o := outcome{code: 7, want: 7, wantLines: killLines, text: onlyLines(log.text.String())}
		require.Equal(t, "right", o.verdict(), log.text.String())
	})

	t.Run("a manager that is killed", func(t *testing.T) {
		dir := t.TempDir()
		template, job := filepath.Join(dir, "pod.yml"), filepath.Join(dir, "job.yml")
		require.NoError(t, os.WriteFile(template, []byte(kubetest.Template), 0o600))
		forever := strconv.Itoa(1e6 + rand.IntN(1e6)) // no other test of this machine sleeps so long
		require.NoError(t, os.WriteFile(job, []byte("run: [{name: a, script: echo here; sleep "+forever+"}]"), 0o600))
		cmd := osexec.Command(runnertest.Manager(t), "run", "--kubernetes", "--kubeconfig", k.Kubeconfig, "--image",
			kubetest.Image, "--pull", "never", "--pod-template", template, "--linger", "3s", job)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var text []byte
		for !bytes.Contains(text, []byte("| here")) {
			part := make([]byte, 1<<10)
			n, err := out.Read(part)
			require.NoError(t, err)
			text = append(text, part[:n]...)
		}
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		began := time.Now()
		relay := []string{"/.stepmux/bin/stepmux", "steps", "relay", "--temp-dir", "/.stepmux/run"}
		require.Eventually(t, func() bool { return !running(relay...) }, time.Minute, 20*time.Millisecond)
		t.Logf("its relay ended %v later", time.Since(began))
		require.Eventually(t, func() bool { return !running("sleep", forever) }, time.Minute, 100*time.Millisecond)
		t.Logf("its processes ended %v later, with a linger of 3s", time.Since(began))
		require.Eventually(t, func() bool { return k.Phases(t)["Succeeded"] == 1 }, time.Minute, 100*time.Millisecond)
		t.Logf("its pod ended %v later", time.Since(began))
	})
}

// stateLog is a log that one manager writes after the other. It closes half when it has half of the lines.
type stateLog struct {
	half  chan struct{}
	text  bytes.Buffer
	state buildlog.State
}

func (*stateLog) Write([]byte) (int, error) { panic("BUG: a StateWriter is told the state") }

func (l *stateLog) WriteState(text []byte, after buildlog.State) (int, error) {
	before := bytes.Count(l.text.Bytes(), []byte("\n"))
	l.text.Write(text)
	l.state = after
	if now := bytes.Count(l.text.Bytes(), []byte("\n")); before < killLines/2 && now >= killLines/2 {
		close(l.half)
	}
	return len(text), nil
}

// onlyLines returns the lines of killScript in a log, which has others beside them.
func onlyLines(text string) string {
	var lines strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "line ") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

// running reports whether a process with these arguments runs on this machine.
func running(argv ...string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may have ended
		if string(text) == strings.Join(argv, "\x00")+"\x00" {
			return true
		}
	}
	return false
}

// outcome is the result of one command, beside the right one.
type outcome struct {
	err       error
	code      int
	want      int
	text      string
	wantLines int
}

// verdict names an outcome.
func (o *outcome) verdict() string {
	var want strings.Builder
	for i := range o.wantLines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	lines := slices.Collect(strings.Lines(o.text))
	unique := slices.Compact(slices.Sorted(slices.Values(lines)))
	switch {
	case o.err != nil:
		return "lost"
	case o.code != o.want:
		return fmt.Sprintf("FALSE RESULT: exit code %d", o.code)
	case o.text == want.String():
		return "right"
	case len(unique) < len(lines):
		return "DOUBLED LINES"
	default:
		return "LOST LINES"
	}
}

const killLines = 200

func killScript(code int) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i; sleep 0.02; done; exit %d", killLines, code)
}

// killedBuild runs one build.
func killedBuild(ctx context.Context, cfg kubernetes.Config, code int) (o outcome) {
	o = outcome{want: code, wantLines: killLines}
	p, err := kubernetes.Start(ctx, cfg)
	if err != nil {
		o.err = err
		return o
	}
	defer func() { _ = p.Close(context.Background()) }() // the API server may be away; the deadline ends it
	place := connector.Config{
		BuildID: cfg.BuildID, Options: vmconfig.Options{Isolation: vmconfig.Off}, StopTimeout: time.Minute,
	}
	p.Configure(&place)
	c, err := connector.New(place)
	if err != nil {
		o.err = err
		return o
	}
	defer func() { _ = c.Close(context.Background()) }() // as above
	if _, o.err = c.Connect(ctx); o.err != nil {
		return o
	}
	var log bytes.Buffer
	result, err := c.Execute(ctx, connector.Job{Job: &stepmuxv1.Job{Script: killScript(code)}}, &log)
	o.err, o.code, o.text = err, result.ExitCode, log.String()
	return o
}

// killedExec runs the same script by the SPDY executor of client-go, as other executors run a build's.
func killedExec(ctx context.Context, cfg kubernetes.Config, kubeconfig string, code int) (o outcome) {
	o = outcome{want: code, wantLines: killLines}
	p, err := kubernetes.Start(ctx, cfg)
	if err != nil {
		o.err = err
		return o
	}
	defer func() { _ = p.Close(context.Background()) }()
	way, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		o.err = err
		return o
	}
	at, err := url.Parse(way.Host)
	if err != nil {
		o.err = err
		return o
	}
	at.Path = "/api/v1/namespaces/default/pods/" + p.Name() + "/exec"
	at.RawQuery = url.Values{
		"container": {"build"}, "stdout": {"true"}, "stderr": {"true"}, "command": {"sh", "-c", killScript(code)},
	}.Encode()
	executor, err := remotecommand.NewSPDYExecutor(way, "POST", at)
	if err != nil {
		o.err = err
		return o
	}
	var log bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &log, Stderr: io.Discard})
	o.text = log.String()
	if exit, ok := errors.AsType[exec.CodeExitError](err); ok {
		o.code = exit.Code
	} else {
		o.err = err
	}
	return o
}

// TestRealKills kills parts of the cluster at random moments of many builds. For each eight builds it executes one
// script by client-go, for comparison.
func TestRealKills(t *testing.T) {
	builds, err := strconv.Atoi(cmp.Or(os.Getenv("STEPMUX_BUILDS"), "16"))
	require.NoError(t, err)
	k := kubetest.Start(t)
	cluster := realCluster(t, k.Kubeconfig, "")
	ctx, stop := context.WithCancel(t.Context())
	var killer errgroup.Group
	kills := map[kubetest.Part]int{}
	killer.Go(func() error {
		parts := []kubetest.Part{kubetest.APIServer, kubetest.Kubelet, kubetest.Containerd}
		wait := time.Second + rand.N(2*time.Second) // so that a few builds have a kill, too
		for ctx.Err() == nil {
			timer := time.NewTimer(wait)
			wait = 3*time.Second + rand.N(12*time.Second)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return nil
			}
			part := parts[rand.IntN(len(parts))]
			k.Kill(part)
			kills[part]++
			if err := k.Launch(part); err != nil {
				return err
			}
		}
		return nil
	})
	var mu sync.Mutex
	verdicts, peers := map[string]int{}, map[string]int{}
	var all errgroup.Group
	all.SetLimit(8)
	began := time.Now()
	for i := range builds {
		cfg := realConfig(t, cluster)
		cfg.BuildID = fmt.Sprintf("b%d", i)
		cfg.ReadyTimeout, cfg.StopTimeout = time.Minute, time.Minute
		note := func(who map[string]int, o outcome) {
			mu.Lock()
			defer mu.Unlock()
			verdict := o.verdict()
			who[verdict]++
			if verdict != "right" {
				t.Logf("build %d: %s: %v, %d bytes", i, verdict, o.err, len(o.text))
			}
		}
		all.Go(func() error {
			note(verdicts, killedBuild(t.Context(), cfg, i%100+1))
			return nil
		})
		if i%8 == 0 {
			other := cfg
			other.BuildID += "-peer"
			all.Go(func() error {
				note(peers, killedExec(t.Context(), other, k.Kubeconfig, i%100+1))
				return nil
			})
		}
	}
	require.NoError(t, all.Wait())
	stop()
	require.NoError(t, killer.Wait())
	t.Logf("%d builds in %v, kills: %v", builds, time.Since(began).Round(time.Second), kills)
	t.Logf("builds: %v", verdicts)
	t.Logf("the same by client-go's SPDY: %v", peers)
	require.NotEmpty(t, kills)
	require.LessOrEqual(t, verdicts["lost"], max(1, builds/100))
	require.Equal(t, builds, verdicts["right"]+verdicts["lost"])
}
