package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/stepmux/stepmux/internal/flight"
)

// ClusterConfig describes a cluster and the login to it.
type ClusterConfig struct {
	// Kubeconfig is a kubeconfig file. If empty, the files that kubectl reads: $KUBECONFIG, otherwise ~/.kube/config.
	// If there is no such file and this is a pod, the pod's own service account.
	Kubeconfig string
	// Context is the context of the kubeconfig to use. If empty, the current one.
	Context string
	// Namespace is where the pods are created. If empty, the context's namespace.
	Namespace string
	// UserAgent names this program to the API server. If empty, stepmux.
	UserAgent string
	// Logger receives messages for operators. If nil, nothing is logged.
	Logger *slog.Logger
}

// Cluster is a namespace of a Kubernetes cluster, for the pods of all builds. It is safe for concurrent use.
type Cluster struct {
	name      string // of the context, for people
	namespace string
	base      *url.URL
	client    *http.Client
	http1     *http.Client // speaks HTTP/1.1 only, for SPDY
	spdy      atomic.Bool  // execs use SPDY
	logger    *slog.Logger
	reaped    flight.Flight[struct{}]
}

// Load reads the configuration of a cluster. It does not connect; Check does. Logins that expire are renewed by the
// commands (exec plugins) and token files that the kubeconfig names.
func Load(cfg ClusterConfig) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cfg.Kubeconfig
	rules.Warner = func(error) {} // a file of $KUBECONFIG is missing: the others count
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: cfg.Context})
	way, err := loader.ClientConfig()
	switch {
	case err != nil && clientcmd.IsEmptyConfig(err):
		return nil, errors.New("no Kubernetes cluster is configured: there is no kubeconfig (KUBECONFIG, ~/.kube/config), " +
			"and this is no pod of a cluster")
	case err != nil:
		return nil, fmt.Errorf("read the kubeconfig: %w", foreign(err))
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", foreign(err))
	}
	way.UserAgent = cmp.Or(cfg.UserAgent, "stepmux")
	c := &Cluster{
		name: cfg.Context, namespace: cmp.Or(cfg.Namespace, namespace),
		logger: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
	}
	if raw, err := loader.RawConfig(); err == nil && c.name == "" {
		c.name = raw.CurrentContext
	}
	c.name = cmp.Or(c.name, "in-cluster")
	if !namePattern.MatchString(c.namespace) {
		return nil, fmt.Errorf("namespace %.80q: it is no name of a namespace", c.namespace)
	}
	if c.base, _, err = rest.DefaultServerUrlFor(way); err != nil {
		return nil, fmt.Errorf("read the kubeconfig: the server's address: %w", foreign(err))
	}
	old := rest.CopyConfig(way)
	old.NextProtos = []string{"http/1.1"}
	for client, way := range map[**http.Client]*rest.Config{&c.client: way, &c.http1: old} {
		transport, err := rest.TransportFor(way)
		if err != nil {
			return nil, fmt.Errorf("read the kubeconfig: %w", foreign(err))
		}
		*client = &http.Client{Transport: twice{transport}}
	}
	return c, nil
}

// twice is a transport that sends a request again if its login was refused: client-go then runs the exec plugin, or
// reads the file of the token, for the next request only.
type twice struct{ http.RoundTripper }

func (t twice) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.RoundTripper.RoundTrip(r.Clone(r.Context())) // client-go sets the login in the request
	if err != nil || answer.StatusCode != http.StatusUnauthorized {
		return answer, err
	}
	again := r.Clone(r.Context())
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return answer, nil //nolint:nilerr // the refusal is the result
		}
	}
	_ = answer.Body.Close() // it is not needed
	return t.RoundTripper.RoundTrip(again)
}

// Name returns the name of the kubeconfig's context, for people.
func (c *Cluster) Name() string { return c.name }

// Namespace returns the namespace of the pods.
func (c *Cluster) Namespace() string { return c.namespace }

// Check asks the API server for its version and returns it. An error means that builds cannot use the cluster.
func (c *Cluster) Check(ctx context.Context) (string, error) {
	told := struct{ GitVersion string }{}
	op := fmt.Sprintf("reach the Kubernetes cluster %.80s at %.160s", c.name, c.base.Redacted())
	if _, err := c.call(ctx, op, http.MethodGet, "/version", nil, nil, &told); err != nil {
		return "", err
	}
	return foreignText(told.GitVersion), nil
}

// Close closes idle connections. Builds must have ended.
func (c *Cluster) Close() {
	c.client.CloseIdleConnections()
	c.http1.CloseIdleConnections()
}
