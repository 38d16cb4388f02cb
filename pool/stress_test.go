package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/pool"
)

// stress is a fleet on which everything happens at once, and checks invariants meanwhile.
type stress struct {
	t    *testing.T
	pool *pool.Pool[*conn]

	clock atomic.Int64 // counts events

	mu      sync.Mutex // guards the following
	dialing map[pool.Key]int
	conns   []*conn
	unfit   map[*conn]int64 // by when it was dead or retired
}

func (s *stress) dial(ctx context.Context, key pool.Key) (*conn, error) {
	s.mu.Lock()
	s.dialing[key]++
	if s.dialing[key] > 1 {
		s.t.Errorf("%d dials of %s at once", s.dialing[key], key)
	}
	s.mu.Unlock()
	timer := time.NewTimer(rand.N(200 * time.Microsecond))
	defer timer.Stop()
	var err error
	select {
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialing[key]--
	switch dice := rand.IntN(20); {
	case dice == 0:
		return nil, errLogin{}
	case dice < 4:
		return nil, errRefused
	case dice > 15 && err != nil:
		return nil, err // else the dial is deaf to its end
	}
	c := &conn{key: key, done: make(chan struct{})}
	s.conns = append(s.conns, c)
	return c, nil
}

// markUnfit says that c must not be given to an Acquire that begins from now on.
func (s *stress) markUnfit(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.unfit[c]; !known {
		s.unfit[c] = s.clock.Add(1)
	}
}

// use acquires a lease on a random key, and ends it in a random way.
func (s *stress) use(ctx context.Context) {
	key := pool.Key(fmt.Sprintf("vm-%d", rand.IntN(6)))
	ctx, cancel := context.WithTimeout(ctx, rand.N(2*time.Millisecond))
	defer cancel()
	began := s.clock.Add(1)
	l, err := s.pool.Acquire(ctx, key)
	if err != nil {
		expected := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errRefused) || errors.Is(err, errLogin{})
		if !expected && err.Error() != "connect "+string(key)+": retired" {
			s.t.Errorf("acquire: %v", err)
		}
		return
	}
	c := l.Conn()
	s.mu.Lock()
	if at, unfit := s.unfit[c]; unfit && at < began {
		s.t.Errorf("%s: given a connection that was dead or retired", key)
	}
	s.mu.Unlock()
	if c.key != key {
		s.t.Errorf("asked for %s, given %s", key, c.key)
	}
	if rand.IntN(4) == 0 {
		<-ctx.Done() // hold it for a while
	}
	if errors.Is(c.Err(), errClosedHere) {
		s.t.Errorf("%s: closed under a lease", key)
	}
	switch rand.IntN(12) {
	case 0:
		c.end(errCut)
		s.markUnfit(c)
		l.Release()
	case 1:
		l.Retire(errCut)
		s.markUnfit(c)
		l.Release()
	case 2:
		s.pool.Retire(key, nil)
		s.markUnfit(c)
		l.Release()
	default:
		l.Release()
		l.Release()
	}
}

// check checks a Stat.
func (s *stress) check() {
	stat := s.pool.Stat()
	if stat.Leases < 0 || stat.Waiting < 0 {
		s.t.Errorf("negative count: %+v", stat)
	}
	for _, k := range stat.Keys {
		inService := 0
		for _, c := range k.Conns {
			if !c.Draining {
				inService++
			}
		}
		if inService > 1 || inService == 1 && k.Dialing {
			s.t.Errorf("%s: %d connections in service, dialing %v", k.Key, inService, k.Dialing)
		}
	}
}

func TestPoolHoldsItsInvariantsUnderStress(t *testing.T) {
	s := &stress{t: t, dialing: map[pool.Key]int{}, unfit: map[*conn]int64{}}
	var retired atomic.Int64
	s.pool = pool.New(pool.Config[*conn]{
		Dial:        s.dial,
		IdleTimeout: time.Millisecond,
		MaxAge:      5 * time.Millisecond,
		Retired:     func(pool.Key, error) { retired.Add(1) },
	})
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 400 {
				s.use(t.Context())
			}
		})
	}
	stop := make(chan struct{})
	var checker sync.WaitGroup
	checker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.check()
			}
		}
	})
	wg.Wait()
	close(stop)
	checker.Wait()

	require.Zero(t, s.pool.Stat().Leases)
	require.Zero(t, s.pool.Stat().Waiting)
	require.NoError(t, s.pool.Shutdown(t.Context()))
	require.NotEmpty(t, s.conns)
	for _, c := range s.conns {
		require.Equal(t, 1, c.closed())
	}
	require.EqualValues(t, len(s.conns), retired.Load())
	t.Logf("%d connections", len(s.conns))
}

func TestShutdownRacesWithEverything(t *testing.T) {
	for range 50 {
		s := &stress{t: t, dialing: map[pool.Key]int{}, unfit: map[*conn]int64{}}
		s.pool = pool.New(pool.Config[*conn]{Dial: s.dial})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					l, err := s.pool.Acquire(t.Context(), pool.Key(fmt.Sprintf("vm-%d", rand.IntN(3))))
					switch {
					case errors.Is(err, pool.ErrClosed):
						return
					case err == nil && rand.IntN(3) == 0:
						l.Conn().end(errCut)
						l.Retire(nil)
					case err == nil:
						l.Release()
					}
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*time.Millisecond))
		<-ctx.Done()
		cancel()
		require.NoError(t, s.pool.Shutdown(t.Context()))
		wg.Wait()
		for _, c := range s.conns {
			require.Equal(t, 1, c.closed())
		}
	}
}
