package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// benchmarkFleet measures the logins to a fleet of n VMs, each an sshd of its own, asked for at once: by a pool, which
// paces them, and by the SSH library as fast as it can; and the cost of a lease when all are connected.
func benchmarkFleet(b *testing.B, n int, rtt time.Duration) {
	fleet := newFleet(b, n, rtt)
	r := inTurns(b, twice, []candidate{
		{name: "pool", run: func(r *results) error { return r.connectFleet("pool", fleet) }},
		{name: "fresh-dial", run: func(r *results) error { return r.dialFleet("fresh-dial", fleet) }},
		{name: "one-dial", run: func(r *results) error { return r.dialOne("one-dial", fleet["vm-0"]) }},
	})
	r.medians("ms", "pool", "fresh-dial", "one-dial")
	r.medians("ns/lease", "pool-lease")
	r.ratios("fresh-dial", "pool")
	r.ratio("pool", "one-dial", "one-dial")
}

// newFleet starts n VMs, at a distance of rtt.
func newFleet(b *testing.B, n int, rtt time.Duration) map[pool.Key]*vm {
	b.Helper()
	fleet := make(map[pool.Key]*vm, n)
	for i := range n {
		fleet[pool.Key(fmt.Sprintf("vm-%d", i))] = newVM(b).at(b, rtt)
	}
	return fleet
}

// connectFleet measures how long a pool takes until there is a lease on every VM, in milliseconds, and then a lease
// more of each, in nanoseconds.
func (r *results) connectFleet(name string, fleet map[pool.Key]*vm) error {
	p := pool.New(pool.Config[*mux.Conn]{Dial: func(ctx context.Context, key pool.Key) (*mux.Conn, error) {
		return mux.Dial(ctx, fleet[key].Addr, fleet[key].muxConfig())
	}})
	defer p.Close()
	acquire := func(key pool.Key) error {
		l, err := p.Acquire(r.b.Context(), key)
		if err != nil {
			return err
		}
		l.Release()
		return nil
	}
	begin := time.Now()
	if err := forAll(fleet, func(key pool.Key, _ *vm) error { return acquire(key) }); err != nil {
		return err
	}
	r.add(name, millis(time.Since(begin)))

	const rounds = 100
	begin = time.Now()
	for range rounds {
		for key := range fleet {
			if err := acquire(key); err != nil {
				return err
			}
		}
	}
	r.add(name+"-lease", float64(time.Since(begin).Nanoseconds())/float64(rounds*len(fleet)))
	return nil
}

// dialOne measures the login to one VM while nothing else happens, some times, in milliseconds.
func (r *results) dialOne(name string, v *vm) error {
	for range 5 {
		begin := time.Now()
		conn, err := mux.Dial(r.b.Context(), v.Addr, v.muxConfig())
		if err != nil {
			return err
		}
		r.add(name, millis(time.Since(begin)))
		if err := conn.Close(); err != nil {
			return err
		}
	}
	return nil
}

// dialFleet measures how long it takes until there is a connection of the SSH library to every VM, in milliseconds.
func (r *results) dialFleet(name string, fleet map[pool.Key]*vm) error {
	var mu sync.Mutex // guards the following
	var clients []*ssh.Client
	begin := time.Now()
	err := forAll(fleet, func(_ pool.Key, v *vm) error {
		client, err := ssh.Dial("tcp", v.Addr, v.ClientConfig())
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		clients = append(clients, client)
		return nil
	})
	r.add(name, millis(time.Since(begin)))
	for _, client := range clients {
		client.Close()
	}
	return err
}

// forAll calls do for all VMs at once.
func forAll(fleet map[pool.Key]*vm, do func(key pool.Key, v *vm) error) error {
	var group errgroup.Group
	for key, v := range fleet {
		group.Go(func() error { return do(key, v) })
	}
	return group.Wait()
}
