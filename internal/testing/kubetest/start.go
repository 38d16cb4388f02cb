//go:build kubernetes

package kubetest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/rmtree"
)

const (
	// ProgramsVar names an environment variable with the directory of kube-apiserver and kubelet, which
	// make prove WHAT=kubernetes builds.
	ProgramsVar = "STEPMUX_KUBERNETES"

	// Image is an image with busybox, a root user and /tmp.
	Image = "local.test/busybox:1"
	// node is the only node, and nodeIP its address: the process that starts a Cluster is in a network namespace of its
	// own (make prove WHAT=kubernetes).
	node   = "n1"
	nodeIP = "10.249.0.1"

	// startTimeout bounds the start of each part, and its end.
	startTimeout = 60 * time.Second
	apiPort      = "26443"
)

// Template is the part of a pod that this cluster needs, which has no scheduler and no network for pods.
const Template = `spec:
  nodeName: ` + node + `
  hostNetwork: true
  tolerations: [{operator: Exists}]
`

// Part is a program of the cluster. Tests may kill it.
type Part string

// The parts.
const (
	APIServer  Part = "kube-apiserver"
	Kubelet    Part = "kubelet"
	Containerd Part = "containerd"
)

// Cluster is a real cluster of one node.
type Cluster struct {
	// Kubeconfig is the path of a kubeconfig of its administrator.
	Kubeconfig string

	dir      string
	programs string
	client   *http.Client

	mu    sync.Mutex // guards the following
	parts map[Part]*exec.Cmd
}

// Start starts a cluster, which ends with the test. It needs root in a network namespace of its own, and skips the test
// without the programs.
func Start(t testing.TB) *Cluster {
	t.Helper()
	programs := os.Getenv(ProgramsVar)
	if programs == "" {
		t.Skip("part missing: a Kubernetes control plane; run: make prove WHAT=kubernetes")
	}
	dir, err := os.MkdirTemp("", "kube") //nolint:usetesting // t.TempDir is too long for a socket
	require.NoError(t, err)
	c := &Cluster{dir: dir, programs: programs, parts: map[Part]*exec.Cmd{}, Kubeconfig: filepath.Join(dir, "kubeconfig")}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.logs())
		}
		require.NoError(t, c.stop())
	})
	require.NoError(t, c.start())
	return c
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) start() error {
	if err := c.writeFiles(); err != nil {
		return err
	}
	const etcd = "http://127.0.0.1:23790"
	err := c.launch("etcd", "etcd", "--data-dir", c.path("etcd"), "--listen-client-urls", etcd, "--advertise-client-urls",
		etcd, "--listen-peer-urls", "http://127.0.0.1:23791", "--unsafe-no-fsync", "--logger=zap", "--log-level=error")
	if err == nil {
		err = c.Launch(APIServer)
	}
	if err == nil {
		err = c.Launch(Containerd)
	}
	if err == nil {
		err = c.importImages()
	}
	if err == nil {
		err = c.Launch(Kubelet)
	}
	return err
}

// Launch starts a part, and waits until it is ready.
func (c *Cluster) Launch(p Part) error {
	switch p {
	case APIServer:
		err := c.launch(p, filepath.Join(c.programs, string(p)), "--etcd-servers=http://127.0.0.1:23790",
			"--service-account-key-file="+c.path("sa.pub"), "--service-account-signing-key-file="+c.path("sa.key"),
			"--service-account-issuer=https://k.test", "--service-cluster-ip-range=10.250.0.0/24",
			"--token-auth-file="+c.path("tokens.csv"), "--authorization-mode=RBAC", "--bind-address=127.0.0.1",
			"--advertise-address="+nodeIP, "--secure-port="+apiPort, "--tls-cert-file="+c.path("tls.crt"),
			"--tls-private-key-file="+c.path("tls.key"), "--client-ca-file="+c.path("ca.crt"),
			"--disable-admission-plugins=ServiceAccount", "--kubelet-client-certificate="+c.path("tls.crt"),
			"--kubelet-client-key="+c.path("tls.key"), "--kubelet-preferred-address-types=InternalIP",
			"--endpoint-reconciler-type=none", "--v=0")
		if err != nil {
			return err
		}
		return c.await("readyz", func() error { return c.Get("/readyz", nil) })
	case Containerd:
		if err := c.launch(p, "containerd", "-c", c.path("containerd.toml")); err != nil {
			return err
		}
		return c.await("containerd", func() error { return c.ctr(io.Discard, nil, "version") })
	case Kubelet:
		err := c.launch(p, filepath.Join(c.programs, string(p)), "--config="+c.path("kubelet.yaml"),
			"--kubeconfig="+c.Kubeconfig, "--root-dir="+c.path("kubelet"), "--cert-dir="+c.path("certs"),
			"--hostname-override="+node, "--node-ip="+nodeIP, "--v=0")
		if err != nil {
			return err
		}
		return c.await("node", func() error { return c.Get("/api/v1/nodes/"+node, nil) })
	default:
		return fmt.Errorf("unknown part %s", p)
	}
}

// launch starts a program. It ends with this process.
func (c *Cluster) launch(p Part, program string, args ...string) error {
	log, err := os.OpenFile(c.path(string(p)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts[p] = cmd
	return nil
}

// Kill ends a part by SIGKILL.
func (c *Cluster) Kill(p Part) { c.end(p, syscall.SIGKILL) }

func (c *Cluster) end(p Part, by syscall.Signal) {
	c.mu.Lock()
	cmd := c.parts[p]
	delete(c.parts, p)
	c.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(by) // an error means that it has ended
	killer := time.AfterFunc(startTimeout, func() { _ = cmd.Process.Kill() })
	defer killer.Stop()
	_ = cmd.Wait() // its status says nothing
}

// await waits until do succeeds. Errors call it label.
func (c *Cluster) await(label string, do func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("await %s: %w\n%s", label, err, c.logs())
		}
	}
}

// logs returns the ends of all logs.
func (c *Cluster) logs() string {
	var all strings.Builder
	files, _ := filepath.Glob(c.path("*.log")) // the pattern is valid
	for _, file := range files {
		text, _ := os.ReadFile(file)
		fmt.Fprintf(&all, "== %s\n%s\n", filepath.Base(file), text[max(0, len(text)-4<<10):])
	}
	return all.String()
}

// Get reads an object of the API.
func (c *Cluster) Get(path string, into any) error {
	return c.call(http.MethodGet, path, nil, into)
}

// ctr calls containerd.
func (c *Cluster) ctr(out io.Writer, in io.Reader, args ...string) error {
	cmd := exec.Command("ctr", append([]string{"-a", c.path("run/containerd.sock"), "-n", "k8s.io"}, args...)...)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ctr %s: %w: %s", args[0], err, said.Bytes())
	}
	return nil
}

func (c *Cluster) stop() error {
	c.mu.Lock()
	alive := c.parts[APIServer] != nil && c.parts[Kubelet] != nil && c.parts[Containerd] != nil
	c.mu.Unlock()
	if alive {
		// An error leaves tasks, which are killed below.
		_ = c.call(http.MethodDelete, "/api/v1/namespaces/default/pods?gracePeriodSeconds=0", nil, nil)
	}
	c.end(Kubelet, syscall.SIGTERM)
	if c.parts[Containerd] != nil {
		var tasks bytes.Buffer
		_ = c.ctr(&tasks, nil, "tasks", "list", "-q") // without tasks the unmounts below fail, and say so
		for _, id := range strings.Fields(tasks.String()) {
			_ = c.ctr(io.Discard, nil, "tasks", "delete", "--force", id) // as above
		}
	}
	for _, p := range []Part{Containerd, APIServer, "etcd"} {
		c.end(p, syscall.SIGTERM)
	}
	killAll(c.dir) // shims
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, c.dir+"/") {
			_ = unix.Unmount(at, unix.MNT_DETACH) // the removal finds it
		}
	}
	return rmtree.Remove(c.dir)
}

// writeFiles writes keys, certificates and configurations.
func (c *Cluster) writeFiles() error {
	ca, caKey, err := c.certificate("ca", nil, nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	if err != nil {
		return err
	}
	_, _, err = c.certificate("tls", ca, caKey, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(nodeIP)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	if _, _, err := c.certificate("sa", nil, nil, &x509.Certificate{}); err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	c.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true,
	}}
	for name, text := range map[string]string{
		"tokens.csv": "admintoken,admin,1,system:masters\nuntrusted,nobody,2,\n",
		"kubeconfig": c.kubeconfig("admintoken"),
		"containerd.toml": strings.NewReplacer("DIR", c.dir).Replace(`version = 2
root = "DIR/lib"
state = "DIR/run"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "DIR/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "local.test/pause:1"
  stream_server_address = "127.0.0.1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "DIR/cni"
    bin_dir = "DIR/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
`),
		"kubelet.yaml": strings.NewReplacer("DIR", c.dir, "IP", nodeIP).Replace(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
address: IP
port: 21250
healthzPort: 0
failSwapOn: false
makeIPTablesUtilChains: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
oomScoreAdj: 0
podLogsDir: DIR/podlogs
containerRuntimeEndpoint: unix://DIR/run/containerd.sock
evictionHard: {memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
authentication: {webhook: {enabled: false}, x509: {clientCAFile: DIR/ca.crt}}
authorization: {mode: AlwaysAllow}
tlsCertFile: DIR/tls.crt
tlsPrivateKeyFile: DIR/tls.key
maxPods: 500
`),
	} {
		if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig returns a kubeconfig with a token. "untrusted" is one without rights.
func (c *Cluster) kubeconfig(token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%s", certificate-authority: %q}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: test, context: {cluster: c, user: u, namespace: default}}]
current-context: test
`, apiPort, c.path("ca.crt"), token)
}

// KubeconfigOf writes a kubeconfig with another token: "untrusted" has no rights, others are unknown.
func (c *Cluster) KubeconfigOf(t testing.TB, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(c.kubeconfig(token)), 0o600))
	return file
}

// certificate makes a key and a certificate of it, by itself if ca is nil, and writes NAME.key, NAME.crt and NAME.pub.
func (c *Cluster) certificate(name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey, of *x509.Certificate) (
	*x509.Certificate, *ecdsa.PrivateKey, error,
) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	of.SerialNumber = big.NewInt(time.Now().UnixNano())
	of.NotBefore, of.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	if ca == nil {
		ca, caKey = of, key
	}
	der, err := x509.CreateCertificate(rand.Reader, of, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range []struct {
		ending, kind string
		bytes        []byte
	}{{"crt", "CERTIFICATE", der}, {"key", "PRIVATE KEY", private}, {"pub", "PUBLIC KEY", public}} {
		text := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.bytes})
		if err := os.WriteFile(c.path(name+"."+f.ending), text, 0o600); err != nil {
			return nil, nil, err
		}
	}
	parsed, err := x509.ParseCertificate(der)
	return parsed, key, err
}

// call calls the API as the administrator.
func (c *Cluster) call(method, path string, body io.Reader, into any) error {
	request, err := http.NewRequest(method, "https://127.0.0.1:"+apiPort+path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer admintoken")
	request.Header.Set("Content-Type", "application/json")
	answer, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

// Apply makes an object of a manifest.
func (c *Cluster) Apply(t testing.TB, path, manifest string) {
	t.Helper()
	var object Object
	require.NoError(t, yaml.Unmarshal([]byte(manifest), &object))
	text, err := json.Marshal(object)
	require.NoError(t, err)
	require.NoError(t, c.call(http.MethodPost, path, bytes.NewReader(text), nil))
}

// Remove deletes an object.
func (c *Cluster) Remove(t testing.TB, path string) {
	t.Helper()
	require.NoError(t, c.call(http.MethodDelete, path, nil, nil))
}

// Phases returns how many pods of the default namespace are in each phase.
func (c *Cluster) Phases(t testing.TB) map[string]int {
	t.Helper()
	var all Object
	require.NoError(t, c.Get("/api/v1/namespaces/default/pods", &all))
	phases := map[string]int{}
	items, _ := all["items"].([]any)
	for _, item := range items {
		pod, _ := item.(Object)
		phases[fmt.Sprint(at(pod, "status")["phase"])]++
	}
	return phases
}

// Ready returns for each container of a pod, if it has not ended, whether it is ready.
func (c *Cluster) Ready(t testing.TB, pod string) map[string]bool {
	t.Helper()
	var now struct {
		Status struct {
			InitContainerStatuses, ContainerStatuses []struct {
				Name  string
				Ready bool
				State struct{ Terminated *struct{} }
			}
		}
	}
	require.NoError(t, c.Get("/api/v1/namespaces/default/pods/"+pod, &now))
	ready := map[string]bool{}
	for _, one := range append(now.Status.InitContainerStatuses, now.Status.ContainerStatuses...) {
		if one.State.Terminated == nil {
			ready[one.Name] = one.Ready
		}
	}
	return ready
}
