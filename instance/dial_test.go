package instance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

var (
	errCut    = errors.New("cable cut")
	errClosed = errors.New("connection refused")
)

// errLogin is a refused login.
type errLogin struct{}

func (errLogin) Error() string   { return "login refused" }
func (errLogin) Permanent() bool { return true }

// fakeConn is a connection to nowhere.
type fakeConn struct {
	id   string
	via  *pool.Lease[*fakeConn]
	done chan struct{} // closed once err is set
	once sync.Once
	err  error
}

func (c *fakeConn) Done() <-chan struct{} { return c.done }

func (c *fakeConn) end(err error) { c.once.Do(func() { c.err = err; close(c.done) }) }

func (c *fakeConn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

func (c *fakeConn) Close() error {
	if c.via != nil {
		c.via.Release()
	}
	c.end(errors.New("closed by this side"))
	return nil
}

// dials makes fake connections and remembers the attempts.
type dials struct {
	// takes is how long an attempt takes that is not cancelled.
	takes time.Duration
	// silent hosts take connections and never answer.
	silent map[string]bool
	// fail gives the outcome of the n-th attempt, from 1. If nil, all succeed.
	fail func(id string, n int) error
	// deaf attempts do not heed the end of their ctx.
	deaf bool

	mu     sync.Mutex // guards the following
	starts []time.Time
	ids    []string
	conns  []*fakeConn
}

func (d *dials) connect(
	ctx context.Context, h *host, via *pool.Lease[*fakeConn], wait func(),
) (conn *fakeConn, err error) {
	defer func() {
		if err != nil && via != nil {
			via.Release()
		}
	}()
	wait()
	d.mu.Lock()
	d.starts, d.ids = append(d.starts, time.Now()), append(d.ids, h.id)
	n := len(d.starts)
	d.mu.Unlock()
	takes, done := d.takes, ctx.Done()
	if d.silent[h.id] {
		takes = time.Hour
	}
	if d.deaf {
		done = nil
	}
	timer := time.NewTimer(takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
		return nil, ctx.Err()
	}
	if d.fail != nil {
		if err := d.fail(h.id, n); err != nil {
			return nil, err
		}
	}
	c := &fakeConn{id: h.id, via: via, done: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, c)
	return c, nil
}

// count returns how many attempts have begun.
func (d *dials) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.starts)
}

// gaps returns the times between the starts of attempts.
func (d *dials) gaps() []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	var gaps []time.Duration
	for i := 1; i < len(d.starts); i++ {
		gaps = append(gaps, d.starts[i].Sub(d.starts[i-1]))
	}
	return gaps
}

// failFirst returns an outcome for dials.fail: the first n attempts fail with err.
func failFirst(n int, err error) func(string, int) error {
	return func(_ string, i int) error {
		if i <= n {
			return err
		}
		return nil
	}
}

// rig is a group with fake connections.
type rig struct {
	*fleet
	*connections[*fakeConn]
}

// newRig returns a rig of instances, closed when the test ends.
func newRig(t *testing.T, d *dials, timeout time.Duration, all ...Instance) *rig {
	t.Helper()
	f := newFleet(t, all...)
	c := &connections[*fakeConn]{
		group: f.Group, connect: d.connect, timeout: timeout,
		start: func(string, int) {}, done: func(string, int, time.Duration, error) {},
	}
	r := &rig{f, c.open(pool.Config[*fakeConn]{IdleTimeout: -1})}
	t.Cleanup(func() { require.NoError(t, r.pool.Close()) })
	return r
}

// vms returns n instances named prefix-0 and so on.
func vms(prefix string, n int) []Instance {
	var all []Instance
	for i := range n {
		all = append(all, vm(fmt.Sprintf("%s-%d", prefix, i), 1))
	}
	return all
}

// lease is Acquire that must succeed.
func (r *rig) lease(t *testing.T, id string) *pool.Lease[*fakeConn] {
	t.Helper()
	l, err := r.Acquire(t.Context(), pool.Key(id))
	require.NoError(t, err)
	return l
}

// result is the result of an Acquire.
type result struct {
	lease *pool.Lease[*fakeConn]
	err   error
}

// later calls Acquire in a goroutine.
func (r *rig) later(ctx context.Context, id string) <-chan result {
	got := make(chan result, 1)
	go func() {
		l, err := r.Acquire(ctx, pool.Key(id))
		got <- result{l, err}
	}()
	return got
}

// dialing reports whether a dial of the host is under way.
func (r *rig) dialing(id string) bool { return r.states()[id] == pool.Dialing }

func (r *rig) health(t *testing.T, id string) health {
	t.Helper()
	h, err := r.findHost(id)
	require.NoError(t, err)
	return r.healthOf(h)
}

func requireBetween(t *testing.T, low, high, got time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, got, low)
	require.LessOrEqual(t, got, high)
}

func TestDialIsTriedAgainAfterARefusedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{fail: failFirst(2, errClosed)}
		r := newRig(t, d, time.Minute, vm("a", 1))
		r.lease(t, "a")
		gaps := d.gaps()
		require.Len(t, gaps, 2)
		requireBetween(t, backoffBase/2, backoffBase, gaps[0])
		requireBetween(t, backoffBase, 2*backoffBase, gaps[1])
		require.Zero(t, r.health(t, "a"))
	})
}

func TestAllWaitersGetTheErrorOfTheLastAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{
			takes: time.Second,
			fail:  func(_ string, n int) error { return fmt.Errorf("attempt %d: %w", n, errClosed) },
		}
		r := newRig(t, d, time.Minute, vm("a", 1))
		first, second := r.later(t.Context(), "a"), r.later(t.Context(), "a")
		a, b := (<-first).err, (<-second).err
		require.Same(t, a, b)
		failed := (*dialError)(nil)
		require.ErrorAs(t, a, &failed)
		require.Equal(t, "a", failed.host)
		require.Equal(t, 3, failed.attempts)
		require.False(t, failed.permanent)
		require.ErrorIs(t, a, errClosed)
		require.EqualError(t, a, "connect a: attempt 3: connection refused (3 attempts)")
		require.Equal(t, 3, d.count())

		// The dial counts once, however many builds waited for it.
		require.Equal(t, 3, r.health(t, "a").failures)
		requireBetween(t, 2*backoffBase, 4*backoffBase, time.Until(r.stat().Instances[0].RetryAt))
		require.Equal(t, Quarantined, r.state("a"))
	})
}

func TestPauseGrowsFromDialToDialAndIsForgottenAfterASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{fail: failFirst(6, errClosed)}
		r := newRig(t, d, time.Minute, vm("a", 1))
		for range 2 {
			_, err := r.Acquire(t.Context(), "a")
			require.ErrorIs(t, err, errClosed)
		}
		require.Equal(t, 6, r.health(t, "a").failures)
		r.lease(t, "a").Retire(nil)
		r.lease(t, "a").Release()
		require.Zero(t, r.health(t, "a").failures)

		gaps := d.gaps()
		for i, pause := range []time.Duration{1, 2, 4, 8, 16, 32} {
			requireBetween(t, pause*backoffBase/2, pause*backoffBase, gaps[i])
		}
		require.Zero(t, gaps[6], "after a success there is no pause")
	})
}

func TestAnInstanceIsNotQuarantinedWhileItsDialRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &dials{fail: failFirst(1, errClosed)}, time.Minute, vm("a", 2))
		waiting := r.later(t.Context(), "a")
		synctest.Wait()
		require.Equal(t, 1, r.health(t, "a").failures)
		require.Equal(t, Ready, r.state("a"), "its builds wait for the dial together")
		require.NoError(t, (<-waiting).err)
	})
}

func TestPermanentErrorIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{fail: failFirst(1, fmt.Errorf("dial: %w", errLogin{}))}
		r := newRig(t, d, time.Minute, vm("a", 1))
		start := time.Now()
		_, err := r.Acquire(t.Context(), "a")
		failed := (*dialError)(nil)
		require.ErrorAs(t, err, &failed)
		require.True(t, failed.permanent)
		require.EqualError(t, err, "connect a: dial: login refused")
		require.Zero(t, time.Since(start))

		// While the pause lasts the answer is the same, at once and without an attempt.
		pass(29 * time.Second)
		_, again := r.Acquire(t.Context(), "a")
		require.Equal(t, err, again)
		require.Equal(t, 1, d.count())

		// After it the login is found mended.
		pass(time.Second)
		r.lease(t, "a")
		require.Equal(t, []time.Duration{30 * time.Second}, d.gaps())
	})
}

// The pool remembered the refused login of the old way, and the instance failed again without an attempt.
func TestANewWayToAnInstanceForgetsARefusedLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{fail: failFirst(1, errLogin{})}
		r := newRig(t, d, time.Minute, vm("a", 1))
		_, err := r.Acquire(t.Context(), "a")
		require.ErrorIs(t, err, errLogin{})
		in := vm("a", 1)
		in.Revision = "another key"
		require.NoError(t, r.Update([]Instance{in}))
		require.Equal(t, Ready, r.state("a"))
		r.lease(t, "a")
		require.Equal(t, []time.Duration{0}, d.gaps())
	})
}

// A host that was removed while it had a build, and added again, failed for the rest of 30 s with the old error.
//
//stepmux:faults executor | A machine that was removed and added again, or whose key was replaced, is refused with the
//stepmux:more old error
//stepmux:with instance/inventory.TestRevisionChangesWithTheKeysThatTheResolverKnows
func TestAHostThatIsRemovedAndAddedAgainForgetsARefusedLogin(t *testing.T) {
	for name, test := range map[string]struct {
		refused Instance // it, or its jump host
		build   bool     // one is on it all the time
	}{
		"idle":               {vm("a", 2), false},
		"with a build":       {vm("a", 2), true},
		"behind a jump host": {behind("a", bastion("b:22")), false},
		"and with a build":   {behind("a", bastion("b:22")), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &dials{fail: failFirst(1, errLogin{})}
				r := newRig(t, d, time.Minute, test.refused, vm("other", 1))
				if test.build {
					s, err := r.acquire(t.Context(), "build", "other")
					require.NoError(t, err)
					defer s.release()
				}
				_, err := r.Acquire(t.Context(), "a")
				require.ErrorIs(t, err, errLogin{})
				require.NoError(t, r.Update([]Instance{vm("other", 1)}))
				require.NoError(t, r.Update([]Instance{test.refused, vm("other", 1)}))
				require.Equal(t, Ready, r.state("a"))
				r.lease(t, "a")
			})
		})
	}
}

func TestCallerThatLeavesDuringThePauseLearnsItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{fail: failFirst(3, errClosed)}
		r := newRig(t, d, time.Minute, vm("a", 1))
		_, err := r.Acquire(t.Context(), "a")
		require.ErrorIs(t, err, errClosed)

		ctx, cancel := context.WithTimeout(t.Context(), backoffBase)
		defer cancel()
		_, err = r.Acquire(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, errClosed, "its own end is why it failed")
		require.EqualError(t, err,
			"acquire a: context deadline exceeded (last attempt to connect: "+errClosed.Error()+")")
		require.Equal(t, 3, d.count())
		synctest.Wait()
		require.False(t, r.dialing("a"), "a dial without waiters is given up")
	})
}

func TestDialTimeoutBoundsTheAttemptsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{takes: 4 * time.Second, fail: failFirst(1000, errClosed)}
		r := newRig(t, d, 10*time.Second, vm("a", 1))
		start := time.Now()
		_, err := r.Acquire(t.Context(), "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "no connection within 10s")
		require.Equal(t, 10*time.Second, time.Since(start))
		require.Equal(t, 3, d.count())
	})
}

func TestDialEndsWithItsLastErrorWhenThePauseIsLongerThanItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{takes: time.Second, fail: failFirst(1000, errClosed)}
		r := newRig(t, d, time.Second+backoffBase/4, vm("a", 1))
		start := time.Now()
		_, err := r.Acquire(t.Context(), "a")
		require.EqualError(t, err, "connect a: connection refused")
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestDialThatFindsNoSlotForItsNextAttemptEndsInTimeWithItsLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{silent: map[string]bool{}, fail: failFirst(1000, errClosed)}
		silent := vms("silent", maxServerDials) // they take all slots of their server for all their time
		for i := range silent {
			silent[i].Addr = "refuses:22"
			d.silent[silent[i].ID] = true
		}
		r := newRig(t, d, 10*time.Second, append(silent, vm("refuses", 1))...)
		start := time.Now()
		refused := r.later(t.Context(), "refuses")
		pass(time.Millisecond)
		var all []<-chan result
		for _, in := range silent {
			all = append(all, r.later(t.Context(), in.ID))
		}
		require.EqualError(t, (<-refused).err, "connect refuses: connection refused")
		require.Equal(t, 10*time.Second, time.Since(start))
		require.Equal(t, Suspect, r.state("refuses"), "it counts as a failed dial")
		for _, a := range all {
			require.ErrorIs(t, (<-a).err, context.DeadlineExceeded)
		}
	})
}

func TestCallerThatLeavesBetweenAttemptsEndsTheDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{fail: failFirst(1, errClosed)}
		r := newRig(t, d, time.Minute, vm("a", 1))
		ctx, cancel := context.WithTimeout(t.Context(), backoffBase/4)
		defer cancel()
		_, err := r.Acquire(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, r.dialing("a"))
		pass(time.Hour)
		require.Equal(t, 1, d.count())
	})
}

func TestRetriesEndWithoutWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{takes: time.Second, fail: failFirst(1000, errClosed)}
		r := newRig(t, d, time.Minute, vm("a", 1))
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := r.Acquire(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		pass(time.Hour)
		require.Equal(t, 1, d.count())
	})
}

func TestAttemptThatBeganGoesOnWhenAllWaitersLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{takes: time.Second}
		r := newRig(t, d, time.Minute, vm("a", 1))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := r.Acquire(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		pass(2 * time.Second)
		r.lease(t, "a")
		require.Equal(t, 1, d.count())
	})
}

func TestConnectionThatIsDeadOnArrivalIsAFailedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{}
		r := newRig(t, d, time.Minute, vm("a", 1))
		connect := r.connect
		r.connect = func(ctx context.Context, h *host, via *pool.Lease[*fakeConn], wait func()) (*fakeConn, error) {
			c, err := connect(ctx, h, via, wait)
			if d.count() == 1 {
				c.end(errCut)
			}
			return c, err
		}
		require.Same(t, d.conns[1], r.lease(t, "a").Conn())
		require.Equal(t, 2, d.count())
		requireBetween(t, backoffBase/2, backoffBase, d.gaps()[0])
	})
}

// A build that lingers was lost although its jump host had been back for half a minute.
func TestAJumpHostThatIsBackIsFoundSoonByABuildThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		d := &dials{fail: func(string, int) error {
			if time.Since(start) < 10*time.Minute {
				return errClosed
			}
			return nil
		}}
		r := newRig(t, d, time.Minute, behind("a", bastion("b:22")))
		_, err := r.Acquire(t.Context(), "a")
		require.ErrorIs(t, err, errClosed)
		done := r.hasten("a")
		for {
			if _, err := r.Acquire(t.Context(), "a"); err == nil {
				break
			}
		}
		requireBetween(t, 10*time.Minute, 10*time.Minute+2*hasteMax, time.Since(start))
		done()
		require.Empty(t, r.awaited)
	})
}

func TestADialThatIsNoLongerWantedIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &dials{takes: time.Second}, time.Minute, vm("a", 1))
		waiting := r.later(t.Context(), "a")
		synctest.Wait()
		r.pool.Retire("a", errChanged)
		require.ErrorIs(t, (<-waiting).err, errChanged)
		synctest.Wait()
		require.Zero(t, r.health(t, "a"))
		require.Equal(t, Ready, r.state("a"))
	})
}

func TestShutdownEndsAPauseBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &dials{fail: failFirst(1, errClosed)}, time.Minute, vm("a", 1))
		waiting := r.later(t.Context(), "a")
		synctest.Wait()
		start := time.Now()
		done := make(chan error, 1)
		go func() { done <- r.pool.Shutdown(t.Context()) }()
		require.ErrorIs(t, (<-waiting).err, pool.ErrClosed)
		require.Zero(t, time.Since(start))
		require.NoError(t, <-done)
	})
}

func TestBackoffStaysWithinItsLimits(t *testing.T) {
	requireBetween(t, backoffBase/2, backoffBase, backoff(1))
	for n := 7; n < 200; n++ {
		requireBetween(t, backoffMax/2, backoffMax, backoff(n))
	}
}

func TestAttemptsToConnectToAllHostsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{takes: time.Second}
		r := newRig(t, d, time.Minute, vms("vm", 100)...)
		var all []<-chan result
		for _, in := range r.Instances() {
			all = append(all, r.later(t.Context(), in.ID))
		}
		for i, begun := range []int{maxDials, 2 * maxDials, 3 * maxDials, 100} {
			synctest.Wait()
			require.Equal(t, begun, d.count(), "after %d s", i)
			pass(time.Second)
		}
		for _, a := range all {
			require.NoError(t, (<-a).err)
		}
	})
}

func TestAttemptsAtOneServerAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := vms("shared", 3*maxServerDials+1)
		for i := range shared {
			shared[i].Addr = "shared:22"
		}
		others := vms("other", maxDials-maxServerDials)
		d := &dials{takes: time.Second}
		r := newRig(t, d, time.Minute, append(shared, others...)...)
		var all []<-chan result
		for _, in := range shared[1:] {
			all = append(all, r.later(t.Context(), in.ID))
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		given := r.later(ctx, shared[0].ID)
		synctest.Wait()
		require.Equal(t, maxServerDials, d.count())
		cancel()
		require.ErrorIs(t, (<-given).err, context.Canceled)

		for _, in := range others { // attempts that wait for their server take no slot from these
			all = append(all, r.later(t.Context(), in.ID))
		}
		for i, begun := range []int{maxDials, maxDials + maxServerDials, maxDials + 2*maxServerDials} {
			synctest.Wait()
			require.Equal(t, begun, d.count(), "after %d s", i)
			pass(time.Second)
		}
		for _, a := range all {
			require.NoError(t, (<-a).err)
		}
		require.Empty(t, r.pacer.servers)
	})
}

// Of a thousand machines half gave no answer. The last of the others was reached after seven and a half minutes.
func TestHostsThatDoNotAnswerDoNotHoldUpTheOthers(t *testing.T) {
	racefree.Only(t) // a thousand timers of a bubble crash the race detector of Go 1.26
	synctest.Test(t, func(t *testing.T) {
		all := vms("vm", 1000)
		d := &dials{silent: map[string]bool{}, takes: 100 * time.Millisecond}
		for i := range len(all) / 2 {
			d.silent[all[2*i].ID] = true
		}
		r := newRig(t, d, 30*time.Second, all...)
		start := time.Now()
		var silent, fine []<-chan result
		for i, in := range all {
			if i%2 == 0 {
				silent = append(silent, r.later(t.Context(), in.ID))
			} else {
				fine = append(fine, r.later(t.Context(), in.ID))
			}
		}
		for _, f := range fine {
			require.NoError(t, (<-f).err)
		}
		require.Less(t, time.Since(start), (500/maxDials+2)*slowDial)
		for _, s := range silent {
			require.ErrorIs(t, (<-s).err, context.DeadlineExceeded)
		}
		synctest.Wait()
		require.Empty(t, r.pacer.slots)
		require.Empty(t, r.pacer.servers)
	})
}

func TestPausesBetweenAttemptsTakeNoSlotFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := vms("silent", maxDials-1)
		d := &dials{silent: map[string]bool{}, fail: failFirst(1, errClosed)}
		for _, in := range silent {
			d.silent[in.ID] = true
		}
		r := newRig(t, d, time.Hour, append(silent, vm("a", 1), vm("b", 1))...)
		pausing := r.later(t.Context(), "a")
		synctest.Wait()
		for _, in := range silent {
			r.later(t.Context(), in.ID)
		}
		synctest.Wait()
		start := time.Now()
		r.lease(t, "b")
		require.Zero(t, time.Since(start))
		require.NoError(t, (<-pausing).err)
	})
}

func TestDialThatWaitsForASlotIsGivenUpWithItsLastWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{takes: time.Second}
		r := newRig(t, d, time.Minute, vms("vm", maxDials+101)...)
		all := r.Instances()
		var first []<-chan result
		for _, in := range all[:maxDials] {
			first = append(first, r.later(t.Context(), in.ID))
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		var given []<-chan result
		for _, in := range all[maxDials : maxDials+100] {
			given = append(given, r.later(ctx, in.ID))
		}
		synctest.Wait()
		cancel()
		for _, g := range given {
			require.ErrorIs(t, (<-g).err, context.Canceled)
		}
		for _, f := range first {
			require.NoError(t, (<-f).err)
		}
		r.lease(t, all[maxDials+100].ID)
		require.Equal(t, maxDials+1, d.count(), "the others were given up")
		r.lease(t, all[maxDials].ID) // and can be asked for again
	})
}

func TestSlotGivenToADialThatIsBeingGivenUpIsNotLost(t *testing.T) {
	// With more processors, timers of a bubble that fire together make the race detector crash (golang/go#78156).
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 100 { // which of the two comes first is a matter of chance
		synctest.Test(t, func(t *testing.T) {
			d := &dials{takes: time.Second}
			r := newRig(t, d, time.Minute, vms("vm", 2*maxDials+1)...)
			connect := r.connect
			r.connect = func(ctx context.Context, h *host, via *pool.Lease[*fakeConn], wait func()) (*fakeConn, error) {
				if ctx.Err() != nil {
					t.Error("an attempt that is not wanted")
				}
				return connect(ctx, h, via, wait)
			}
			all := r.Instances()
			var first, given []<-chan result
			for _, in := range all[:maxDials] {
				first = append(first, r.later(t.Context(), in.ID))
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for _, in := range all[maxDials : 2*maxDials] {
				given = append(given, r.later(ctx, in.ID))
			}
			for _, f := range first {
				require.NoError(t, (<-f).err)
			}
			for _, g := range given {
				<-g
			}
			pass(2 * time.Second) // attempts that began go on
			require.Empty(t, r.pacer.slots)
			r.lease(t, all[2*maxDials].ID)
		})
	}
}

// There are more dials behind one jump host than slots: a dial that waits for the jump host holds no slot.
func TestDialsThatWaitForTheirJumpHostHoldNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := vms("vm", 2*maxDials)
		for i := range all {
			all[i].Jump = jumpHost("bastion", "b:22", jumpHost("gate", "g:22", nil))
		}
		d := &dials{takes: time.Second}
		r := newRig(t, d, time.Minute, append(all, vm("direct", 1))...)
		start := time.Now()
		var waiting []<-chan result
		for _, in := range all {
			waiting = append(waiting, r.later(t.Context(), in.ID))
		}
		synctest.Wait()
		require.Equal(t, []string{"gate"}, d.ids)
		require.Len(t, r.pacer.slots, 1)
		r.lease(t, "direct")
		require.Equal(t, time.Second, time.Since(start), "it need not wait for them")
		for _, w := range waiting {
			got := <-w
			require.NoError(t, got.err)
			require.Equal(t, "bastion", got.lease.Conn().via.Conn().id)
		}
		require.Equal(t, 4*time.Second, time.Since(start), "two jump hosts, and two rounds of slots")
		require.Equal(t, 1, len(slices.DeleteFunc(d.ids, func(id string) bool { return id != "bastion" })))
		for _, w := range waiting {
			require.Empty(t, w)
		}
	})
}

func TestAJumpHostThatRefusesTheLoginIsTriedOnceForAllBehindIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := vms("vm", 10)
		for i := range all {
			all[i].Jump = bastion("b:22")
		}
		refused := &mux.DialError{Stage: "login", User: "ci", Addr: "b:22", Err: errLogin{}}
		d := &dials{takes: time.Second, fail: failFirst(1, refused)}
		r := newRig(t, d, time.Minute, all...)
		var waiting []<-chan result
		for _, in := range all {
			waiting = append(waiting, r.later(t.Context(), in.ID))
		}
		for i, w := range waiting {
			err := (<-w).err
			require.EqualError(t, err, fmt.Sprintf(
				"dial ci@vm-%d:22: connect: through jump host bastion: %v", i, refused))
			require.Equal(t, Quarantined, r.state(fmt.Sprintf("vm-%d", i)))
		}
		require.Equal(t, 1, d.count())
		require.Empty(t, r.pacer.slots)
	})
}

func TestALeaseOnTheJumpHostEndsWithAFailedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := vm("a", 1)
		in.Jump = bastion("b:22")
		d := &dials{takes: time.Second, fail: func(id string, _ int) error {
			if id == "a" {
				return errClosed
			}
			return nil
		}}
		r := newRig(t, d, time.Minute, in)
		_, err := r.Acquire(t.Context(), "a")
		require.ErrorIs(t, err, errClosed)
		synctest.Wait()
		require.Zero(t, r.pool.Stat().Leases)
		require.Equal(t, []string{"bastion", "a", "a", "a"}, d.ids)
	})
}

func TestOneHostIsDialedOnceAtATimeWhateverItsCallersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dials{takes: 3 * time.Second, deaf: true}
		r := newRig(t, d, time.Minute, vm("a", 1))
		var busy atomic.Int32
		connect := r.connect
		r.connect = func(ctx context.Context, h *host, via *pool.Lease[*fakeConn], wait func()) (*fakeConn, error) {
			if busy.Add(1) > 1 {
				t.Error("two attempts at once")
			}
			defer busy.Add(-1)
			return connect(ctx, h, via, wait)
		}
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := r.Acquire(ctx, "a")
			require.Error(t, err)
			r.pool.Retire("a", nil)
			cancel()
		}
		r.lease(t, "a")
	})
}

// A jump host that refused a connection was warned about at each of its attempts, in the same words.
//
//stepmux:faults executor | A jump host that refuses is warned about at each attempt, in the same words
func TestOnlyTheFirstOfSeveralAttemptsIsAWarning(t *testing.T) {
	var log bytes.Buffer
	p := &Provider{cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Group: &Group{}}}
	for attempt := 1; attempt <= 3; attempt++ {
		p.logDial("bastion", attempt, time.Second, errors.New("connection refused"))
	}
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
	require.Equal(t, 2, strings.Count(log.String(), "level=INFO"), log.String())
}
