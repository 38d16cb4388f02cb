package standalone

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/job/service"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
)

const (
	// maxConns bounds the connections to a service. Every user of the machine can open some.
	maxConns = 256
	// handshakeTimeout bounds the start of HTTP/2 on a connection.
	handshakeTimeout = 10 * time.Second
	// defaultGrace is the grace of jobs that run when the service ends.
	defaultGrace = 5 * time.Second
	// minToken is the length of the shortest token, in bytes.
	minToken = 16
)

// NewToken returns a random token.
func NewToken() string { return rand.Text() }

// CheckToken returns an error if a token that a user has chosen is not safe.
func CheckToken(token string) error {
	if len(token) < minToken {
		return fmt.Errorf("the token has %d bytes; it must have at least %d", len(token), minToken)
	}
	if strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return errors.New("the token must consist of visible ASCII characters")
	}
	return nil
}

// ServeConfig configures [Serve].
type ServeConfig struct {
	// Port is the port on the loopback address 127.0.0.1. If zero, a free one.
	Port int
	// Token must come with every call; see [CheckToken].
	Token string
	// WorkBase is the base of relative work directories of jobs. If empty, the process's directory.
	WorkBase string
	// Version is the version of this program, for the traces of jobs.
	Version string
	// TempDir is the parent of a private directory that is removed at the end. If empty, it is the system's.
	TempDir string
	// CacheDir keeps fetched steps. If empty, component.DefaultDir.
	CacheDir string
	// Actions says how GitHub Actions run.
	Actions action.Config
	// Policy has settings that replace those of all jobs.
	Policy engine.Policy
	// Grace is the time between SIGTERM and SIGKILL for jobs that still run at the end. If zero, 5 s. If negative, none.
	Grace time.Duration
	// Ready is called with the address once the service listens. May be nil.
	Ready func(net.Addr)
}

// Serve serves the step service over TCP until ctx ends. Then it refuses new jobs, stops the running ones, gives
// callers a second to read the final states, and removes its processes and directories. The error names the part that
// could not be started, ended or removed.
func Serve(ctx context.Context, cfg ServeConfig) (err error) {
	if err := CheckToken(cfg.Token); err != nil {
		return err
	}
	store, closeStore, err := openStore(cfg.TempDir, "stepmux-ci-", cfg.CacheDir, cfg.Actions,
		job.Config{
			WorkBase: cfg.WorkBase, Version: cfg.Version, Policy: cfg.Policy,
		})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }() //nolint:contextcheck // close the store even if ctx has ended
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
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // ErrServerStopped: Stop came before Serve
			return errors.Join(stopErr, err)
		}
		return stopErr
	case err := <-served:
		return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
	}
}
