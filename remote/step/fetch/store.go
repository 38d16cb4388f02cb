package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	defaultMaxBytes = 10 << 30
	defaultTimeout  = 10 * time.Minute
)

// Config says where a Store keeps components, and its limits.
type Config struct {
	// Dir is the cache's directory, made if missing. It must be ours: of another user it is refused. If empty, that of
	// DefaultDir.
	Dir string
	// MaxBytes is how large the cache may grow, in bytes of files, before components that are not in use are removed,
	// those first that were used longest ago. It is no bound for what is in use. If zero, 10 GiB.
	MaxBytes int64
	// Timeout bounds one Fetch. If zero, 10 min.
	Timeout time.Duration
	// Mirrors are the beginnings of URLs of git repositories, and what takes their place: the beginning of another URL,
	// or of a path of this machine. The longest that fits counts. Components keep the URL they were asked for by.
	Mirrors map[string]string
	// Offline keeps the store from asking servers: what is not in the cache is not to be had, see ErrOffline.
	Offline bool
}

// Store fetches components, and keeps them in a cache. It is safe for concurrent use, and has no goroutines beyond
// the calls to it.
type Store struct {
	cfg    Config
	limits limits
	client *http.Client

	mu     sync.Mutex // guards the following
	cache  *cache     // nil before the first Fetch
	closed bool
}

// New returns a Store. It looks at nothing before the first Fetch: a machine whose jobs fetch nothing needs no cache.
// The caller closes it.
func New(cfg Config) (*Store, error) {
	if cfg.MaxBytes < 0 || cfg.Timeout < 0 {
		return nil, errors.New("open component store: MaxBytes and Timeout must not be negative")
	}
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, defaultMaxBytes)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	if cfg.Dir == "" {
		cfg.Dir = DefaultDir()
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open component store: %w", err)
	}
	cfg.Dir = dir
	s := &Store{cfg: cfg, limits: defaultLimits(cfg.MaxBytes), client: newClient()}
	if cfg.Offline {
		s.client.Transport = offline{}
	}
	return s, nil
}

// open returns the cache, which is made if missing. An error is not for ever: the next call tries again.
func (s *Store) open() (*cache, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.cache != nil {
		return s.cache, nil
	}
	c, err := openCache(s.cfg.Dir, s.cfg.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	s.cache = c
	return c, nil
}

// Fetch returns the step that ref says, once it is there. ref is of the protocol git, zip or oci, and a path in it is
// absolute. with are the credentials that may be presented; those in ref come first.
//
// The caller must Release the component. When ctx ends Fetch does, at once. The error is an *AccessError if the
// server does not give it to whoever asks with those credentials; it never repeats credentials.
func (s *Store) Fetch(ctx context.Context, ref *pb.Reference, with Credentials) (*Component, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout,
		fmt.Errorf("timeout: it took longer than %v", s.cfg.Timeout))
	defer cancel()
	c, err := s.fetch(ctx, ref, with)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return c, hint(err, s.cfg.Dir)
}

func (s *Store) fetch(ctx context.Context, ref *pb.Reference, with Credentials) (*Component, error) {
	cache, err := s.open()
	if err != nil {
		return nil, err
	}
	f := &fetcher{cache: cache, client: s.client, mirrors: s.cfg.Mirrors, limits: s.limits, with: with, began: time.Now()}
	switch ref.GetProtocol() {
	case pb.Reference_git:
		return f.git(ctx, ref)
	case pb.Reference_zip:
		return f.zip(ctx, ref)
	case pb.Reference_oci:
		return f.oci(ctx, ref)
	default:
		return nil, fmt.Errorf("steps of the protocol %v are not fetched", ref.GetProtocol())
	}
}

// fetcher is one Fetch.
type fetcher struct {
	cache   *cache
	client  *http.Client
	mirrors map[string]string
	limits  limits
	with    Credentials
	began   time.Time
}

// Close gives up the store's connections, and keeps it from fetching. It does not wait for calls of Fetch, which the
// caller ends by their contexts; components stay what they are until they are released. It is idempotent.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.client.CloseIdleConnections()
	return nil
}
