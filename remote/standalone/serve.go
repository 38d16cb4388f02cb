package standalone

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/job/service"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

const (
	// maxConns bounds the connections to a service. Any user of the machine can open one.
	maxConns = 256
	// handshakeTimeout is the time a connection has to become one of HTTP/2.
	handshakeTimeout = 10 * time.Second
	// defaultGrace is that of a service's jobs when it ends.
	defaultGrace = 5 * time.Second
	// minToken is the shortest token, in bytes.
	minToken = 16
)

// NewToken returns a token that nobody can guess.
func NewToken() string { return rand.Text() }

// CheckToken reports what is wrong with a token that somebody else made.
func CheckToken(token string) error {
	if len(token) < minToken {
		return fmt.Errorf("the token has %d bytes, and must have at least %d", len(token), minToken)
	}
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return errors.New("the token must be of visible ASCII characters")
		}
	}
	return nil
}

// ServeConfig says how to serve.
type ServeConfig struct {
	// Port is where to listen on the loopback address 127.0.0.1. If zero, a free one.
	Port int
	// Token is what every call must bring; see [CheckToken].
	Token string
	// WorkBase is what relative work directories of jobs are relative to. If empty, the process's directory.
	WorkBase string
	// Version is that of this program, for the traces of jobs.
	Version string
	// TempDir is where it gets a private directory, which goes with its end. If empty, that of the system.
	TempDir string
	// CacheDir is where steps that were fetched are kept. If empty, [fetch.DefaultDir].
	CacheDir string
	// Grace is the time between SIGTERM and SIGKILL for the processes of jobs that run at the end. If zero, 5 s.
	// If negative, none.
	Grace time.Duration
	// Ready is told the address once the service listens. May be nil.
	Ready func(net.Addr)
}

// Serve serves the step service over TCP until ctx ends. Then it takes no more jobs, stops those that run,
// gives callers a second to take the final states, and leaves nothing behind. The error is of what could not be
// begun, ended or removed.
func Serve(ctx context.Context, cfg ServeConfig) (err error) {
	if err := CheckToken(cfg.Token); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(cfg.TempDir, "stepmux-ci-")
	if err != nil {
		return fmt.Errorf("create temporary directory: %w", err)
	}
	defer func() {
		if removeErr := os.RemoveAll(dir); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("remove temporary directory: %w", removeErr))
		}
	}()
	components, err := fetch.New(fetch.Config{Dir: cfg.CacheDir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, components.Close()) }()
	store, err := job.New(job.Config{
		Dir: dir, OrphanDir: dir, WorkBase: cfg.WorkBase, Fetcher: components,
		Version: cfg.Version,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }() //nolint:contextcheck // whatever became of ctx
	server := service.NewServer(store, service.RequireToken(cfg.Token), grpc.ConnectionTimeout(handshakeTimeout))
	defer server.Stop()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(cfg.Port)))
	if err != nil {
		return fmt.Errorf("%w; another port may be free, and 0 picks one", err)
	}
	conns := service.Track(netutil.LimitListener(ln, maxConns))
	served := make(chan error, 1)
	go func() { served <- server.Serve(conns) }()
	if cfg.Ready != nil {
		cfg.Ready(ln.Addr())
	}
	select {
	case <-ctx.Done():
		stopErr := service.Stop(server, conns, func() error {
			return store.Shutdown(context.WithoutCancel(ctx), max(cmp.Or(cfg.Grace, defaultGrace), 0))
		})
		return errors.Join(stopErr, <-served)
	case err := <-served:
		return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
	}
}
