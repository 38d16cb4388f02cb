package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/component"
)

const (
	defaultMaxBytes = 10 << 30
	defaultTimeout  = 10 * time.Minute
)

// Config says where a Store keeps components, and how many bytes.
type Config struct {
	// Dir is the cache's directory. It is made if it is missing; a directory of another user is refused. If empty,
	// [component.DefaultDir].
	Dir string
	// MaxBytes bounds the cache, in bytes of files. Beyond it unused components are removed, the least recently used
	// first. Components in use do not count. If zero, 10 GiB.
	MaxBytes int64
	// Timeout bounds one Fetch. If zero, 10 min.
	Timeout time.Duration
	// Mirrors replaces the beginnings of URLs of git repositories by another URL, or by a local path. The longest match
	// counts. Components keep the original URL.
	Mirrors map[string]string
	// Offline keeps the store from asking servers. A component that is not in the cache is then an ErrOffline.
	Offline bool

	archive *os.File // the open local archive of the only Fetch; if nil, a Fetch opens it
}

// Store fetches components and keeps them in a cache. It is safe for concurrent use, and has no goroutines of its own.
// The owner ends it with Close.
type Store struct {
	cfg    Config
	limits limits
	client *http.Client

	mu     sync.Mutex // guards the following
	cache  *cache     // nil before the first Fetch
	closed bool
}

// New returns a Store. The caller closes it. New does not touch the cache: a machine whose jobs fetch nothing needs no
// cache.
func New(cfg Config) (*Store, error) {
	if cfg.MaxBytes < 0 || cfg.Timeout < 0 {
		return nil, errors.New("open component store: MaxBytes and Timeout must not be negative")
	}
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, defaultMaxBytes)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	if cfg.Dir == "" {
		cfg.Dir = component.DefaultDir()
	}
	var err error
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("open component store: %w", err)
	}
	s := &Store{cfg: cfg, limits: defaultLimits(cfg.MaxBytes), client: newClient()}
	if cfg.Offline {
		s.client.Transport = offline{}
	}
	return s, nil
}

// open returns the cache, and opens it at the first call. After an error the next call tries again.
func (s *Store) open() (*cache, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.cache != nil {
		return s.cache, nil
	}
	var err error
	if s.cache, err = openCache(s.cfg.Dir, s.cfg.MaxBytes); err != nil {
		return nil, fault{fmt.Errorf("open cache: %w", hint(err, s.cfg.Dir))}
	}
	return s.cache, nil
}

// Fetch returns the step that ref names. It blocks until the step is in the cache, or ctx ends. ref has the protocol
// git, zip or oci; paths in it are absolute. Fetch may present the credentials in ref and, after those, the credentials
// with.
//
// The caller must Release the component. The error is an *AccessError if the server refuses the request with these
// credentials, and a *component.SystemError if this machine, the network or a server fails. Errors never repeat
// credentials.
func (s *Store) Fetch(ctx context.Context, ref *pb.Reference, with Credentials) (*Component, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout,
		fault{fmt.Errorf("timeout: the fetch took longer than %v", s.cfg.Timeout)})
	defer cancel()
	c, err := s.fetch(ctx, ref, with)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return c, judged(hint(err, s.cfg.Dir))
}

func (s *Store) fetch(ctx context.Context, ref *pb.Reference, with Credentials) (*Component, error) {
	cache, err := s.open()
	if err != nil {
		return nil, err
	}
	f := &fetcher{s, cache, with, time.Now()}
	var c *Component
	name := ""
	switch ref.GetProtocol() {
	case pb.Reference_git:
		c, name, err = f.git(ctx, ref)
	case pb.Reference_zip:
		c, err = f.zip(ctx, ref)
	case pb.Reference_oci:
		c, err = f.oci(ctx, ref)
	default:
		err = fmt.Errorf("steps of the protocol %v are not fetched", ref.GetProtocol())
	}
	if err != nil {
		return nil, err
	}
	c.Version = cmp.Or(ref.GetRev(), ref.GetDigest(), ref.GetTag())
	c.Place(ref.GetPath(), ref.GetFile(), name)
	return c, nil
}

// fetcher is one call of Fetch.
type fetcher struct {
	*Store
	cache *cache
	with  Credentials
	began time.Time
}

// Close closes idle connections; later calls of Fetch return ErrClosed. It does not wait for calls that are under way:
// their contexts end those. Components stay valid until they are released. It is idempotent.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.client.CloseIdleConnections()
	return nil
}
