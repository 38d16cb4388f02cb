package pool_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errClosedHere = errors.New("closed by this side")
	errCut        = errors.New("cable cut")
	errRefused    = errors.New("connection refused")
)

// errLogin is a refused login.
type errLogin struct{}

func (errLogin) Error() string { return "login refused" }

// conn is a connection to nowhere.
type conn struct {
	key    pool.Key
	done   chan struct{} // closed once err is set
	once   sync.Once
	err    error
	mu     sync.Mutex // guards the following
	closes int
}

func (c *conn) Done() <-chan struct{} { return c.done }

func (c *conn) end(err error) { c.once.Do(func() { c.err = err; close(c.done) }) }

func (c *conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

func (c *conn) Close() error {
	c.mu.Lock()
	c.closes++ // first: who waits for Done may look at once
	c.mu.Unlock()
	c.end(errClosedHere)
	return nil
}

// closed returns how often the pool has closed the connection.
func (c *conn) closed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closes
}

// vms dials its connections and remembers them.
type vms struct {
	// takes is how long a dial takes that nobody cancels.
	takes time.Duration
	// fail gives the outcome of the n-th dial, from 1. If nil, all succeed.
	fail func(n int) error

	mu     sync.Mutex // guards the following
	starts []time.Time
	conns  []*conn
}

func (v *vms) Dial(ctx context.Context, key pool.Key) (*conn, error) {
	v.mu.Lock()
	v.starts = append(v.starts, time.Now())
	n := len(v.starts)
	v.mu.Unlock()
	timer := time.NewTimer(v.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if v.fail != nil {
		if err := v.fail(n); err != nil {
			return nil, err
		}
	}
	c := &conn{key: key, done: make(chan struct{})}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.conns = append(v.conns, c)
	return c, nil
}

// dials returns how many dials have begun.
func (v *vms) dials() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.starts)
}

// gaps returns the times between the starts of dials.
func (v *vms) gaps() []time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	var gaps []time.Duration
	for i := 1; i < len(v.starts); i++ {
		gaps = append(gaps, v.starts[i].Sub(v.starts[i-1]))
	}
	return gaps
}

// failFirst returns an outcome for vms.fail: the first n dials fail with err.
func failFirst(n int, err error) func(int) error {
	return func(i int) error {
		if i <= n {
			return err
		}
		return nil
	}
}

// newPool returns a pool over v, closed when the test ends.
func newPool(t testing.TB, v *vms, cfg pool.Config[*conn]) *pool.Pool[*conn] {
	t.Helper()
	if cfg.Dial == nil {
		cfg.Dial = v.Dial
	}
	p := pool.New(cfg)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// acquire is Acquire that must succeed.
func acquire(t testing.TB, p *pool.Pool[*conn], key pool.Key) *pool.Lease[*conn] {
	t.Helper()
	l, err := p.Acquire(t.Context(), key)
	require.NoError(t, err)
	return l
}

// outcome is the result of an Acquire.
type outcome struct {
	lease *pool.Lease[*conn]
	err   error
}

// acquireLater calls Acquire in a goroutine.
func acquireLater(ctx context.Context, p *pool.Pool[*conn], key pool.Key) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		l, err := p.Acquire(ctx, key)
		out <- outcome{l, err}
	}()
	return out
}

// pass lets fake time pass, and everything happen that then happens.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a synctest bubble time does not pass otherwise
	synctest.Wait()
}

// keyStat returns the Stat of one key, zero if the pool does not know it.
func keyStat(p *pool.Pool[*conn], key pool.Key) pool.KeyStat {
	for _, k := range p.Stat().Keys {
		if k.Key == key {
			return k
		}
	}
	return pool.KeyStat{}
}
