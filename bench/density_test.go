package bench

import (
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/sshtest"
	"github.com/stepmux/stepmux/mux"
)

// BenchmarkDensity measures what each build costs the manager in memory and goroutines, while so many are on
// one connection: as processes alone, and as whole builds with a step runner and a gRPC client each. If the
// cost is linear the numbers for each build are the same.
func BenchmarkDensity(b *testing.B) {
	for _, n := range []int{250, 500, 1000} {
		b.Run(fmt.Sprintf("processes=%d", n), func(b *testing.B) {
			v := newVM(b)
			conn := v.dial(b)
			relay := v.relay(b, conn)
			measureDensity(b, v, conn, n, func() (func() error, error) {
				p, err := relay.Start(b.Context(), mux.Command{Argv: []string{"cat"}})
				if err != nil {
					return nil, err
				}
				return p.Close, ping1(p)
			})
		})
	}
	b.Run("builds=200", func(b *testing.B) {
		v := newVM(b)
		conn, known := v.dial(b), new(connector.VM)
		v.relay(b, conn) // is there before the first build
		measureDensity(b, v, conn, 200, func() (func() error, error) {
			s, err := v.startBuild(b, conn, known, connector.Relay)
			if err != nil {
				return nil, err
			}
			return func() error { return s.close(b.Context()) }, nil
		})
	})
}

// measureDensity starts n at once, several times, and measures each time what they cost while they are there.
func measureDensity(b *testing.B, v *vm, conn *mux.Conn, n int, start func() (end func() error, err error)) {
	b.Helper()
	r := inTurns(b, []candidate{{name: "all", run: func(r *results) error {
		before := readUsage()
		var mu sync.Mutex // guards the following
		var ends []func() error
		err := withOpeners(n, func() error {
			end, err := start()
			if end != nil {
				mu.Lock()
				defer mu.Unlock()
				ends = append(ends, end)
			}
			return err
		})
		after := readUsage()
		r.add("heap", (after.heap-before.heap)/float64(n)/1024)
		r.add("stack", (after.stack-before.stack)/float64(n)/1024)
		r.add("goroutines", (after.goroutines-before.goroutines)/float64(n))
		r.add("sessions", float64(conn.Stat().Sessions.Open))
		if err != nil {
			return err
		}
		err = withOpeners(len(ends), func() error {
			mu.Lock()
			end := ends[0]
			ends = ends[1:]
			mu.Unlock()
			return end()
		})
		require.Eventually(b, func() bool {
			const own = 1 // in which this runs
			return conn.Stat().Relayed == 0 && float64(runtime.NumGoroutine()-own) <= before.goroutines
		}, sshtest.Bound, 10*time.Millisecond, "something is left of them")
		return err
	}}})
	require.Equal(b, 1, v.TotalConns())
	r.medians("KiB/build", "heap", "stack")
	b.ReportMetric(r.quantile("goroutines", 0.5), "goroutines/build")
	b.ReportMetric(r.quantile("sessions", 0.5), "sessions")
	b.ReportMetric(float64(v.TotalConns()), "conns")
}

// withOpeners calls do n times, some at once.
func withOpeners(n int, do func() error) error {
	var group errgroup.Group
	group.SetLimit(16)
	for range n {
		group.Go(do)
	}
	return group.Wait()
}

// usage is what this process uses.
type usage struct{ heap, stack, goroutines float64 }

func readUsage() usage {
	runtime.GC()
	runtime.GC() // what was in a sync.Pool goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{float64(m.HeapInuse), float64(m.StackInuse), float64(runtime.NumGoroutine())}
}

// ping1 sees that a process that sends back what it gets does so.
func ping1(p io.ReadWriter) error {
	message := []byte("x")
	if _, err := p.Write(message); err != nil {
		return err
	}
	_, err := io.ReadFull(p, message)
	return err
}
