package bench

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

// BenchmarkDensity measures the cost of each of many builds while they are on one VM: the time of its start beside
// those that are there, the manager's memory and goroutines, and the VM's memory. The builds have no jobs yet; those
// named running and relay-running have one that runs. growth is how the costs grow with the number of builds.
func BenchmarkDensity(b *testing.B) {
	grown := make(map[string]growth)
	for _, n := range capacities() {
		b.Run(capacityName(n), func(b *testing.B) { benchmarkDensity(b, n, grown) })
	}
	b.Run("growth", func(b *testing.B) { reportGrowth(b, grown) })
	for _, n := range sizes([]int{1000}, 100) {
		b.Run(fmt.Sprintf("processes=%d", n), func(b *testing.B) { benchmarkProcesses(b, n) })
	}
	b.Run("serve-idle", benchmarkIdleMemory)
}

// occupant is one way to put builds on a VM.
type occupant struct {
	name   string
	parent string // the program whose children on this machine, and theirs, are what it takes of the VM
	most   int    // how many it can; if zero, any number
	why    string
	start  func() (end func() error, err error)
	conn   *mux.Conn // that all share; may be nil
	empty  float64   // memory taken before the first, in KiB
}

// benchmarkDensity puts n builds on a VM, one after the other, and adds their total costs to grown.
func benchmarkDensity(b *testing.B, n int, grown map[string]growth) {
	v := newVM(b)
	conn, known := v.dial(b), new(connector.VM)
	v.relay(b, conn) // is there before the first build
	by := func(route connector.Route) occupant {
		return occupant{name: string(route), parent: "sshd", conn: conn, start: func() (func() error, error) {
			s, err := v.startBuild(b, conn, known, route)
			if err != nil {
				return nil, err
			}
			return func() error { return s.close(b.Context()) }, nil
		}}
	}
	working := func(name string, route connector.Route) occupant {
		return occupant{name: name, parent: "sshd", conn: conn, start: func() (func() error, error) {
			return v.startRunning(b, conn, known, route)
		}}
	}
	auto, relay := by(connector.Auto), by(connector.Relay)
	running, relayRunning := working("running", connector.Auto), working("relay-running", connector.Relay)
	relay.most, relay.why = 128, likeAuto
	relayRunning.most, relayRunning.why = relay.most, relay.why
	local := occupant{name: "local", parent: "stepmux", start: func() (func() error, error) {
		s, err := startCommandBuild(b, v, nil, nil)
		if err != nil {
			return nil, err
		}
		return s.close, nil
	}}
	local.most, local.why = 32, "the next ones cost as much"
	freshConns := 0
	fresh := occupant{
		name: "fresh-dial", parent: "sshd", most: 8, why: "each takes a third of a second",
		start: func() (func() error, error) {
			freshConns++
			s, err := v.startFreshBuild(b)
			if err != nil {
				return nil, err
			}
			return s.close, nil
		},
	}
	missing(b, "control-master, raw", twoSessions)
	missing(b, "ssh", "it is a connection for each build, as fresh-dial")
	var all []candidate
	for _, o := range []occupant{auto, relay, running, relayRunning, local, fresh} {
		if o.most != 0 && n > o.most {
			missing(b, o.name, fmt.Sprintf("not with %d builds: %s", n, o.why))
			continue
		}
		all = append(all, o.candidate(b, n))
	}
	r := inTurns(b, usual.with(n), all)
	for _, name := range names(all) {
		for _, c := range costs {
			key := name + "-" + c.name
			r.median(key, key+c.unit)
			if !c.grows {
				continue
			}
			if grown[key] == nil {
				grown[key] = make(growth)
			}
			grown[key][n] = r.quantile(key, 0.5) * float64(n)
		}
	}
	r.median("auto-sessions", "auto-sessions")
	b.ReportMetric(float64(v.TotalConns()-freshConns), "auto-conns")
}

// costs are the measured quantities of a build.
var costs = []struct {
	name, unit string
	grows      bool // its growth with the number of builds is reported
}{
	{"time", "-ms/build", true},
	{"nth", "-ms", false}, // of the last few
	{"heap", "-KiB/build", true},
	{"stack", "-KiB/build", false},
	{"goroutines", "/build", true},
	{"serve", "-KiB/build", true}, // PSS of the step runner
	{"vm", "-KiB/build", true},    // PSS of all that is there more than before
}

// candidate returns a candidate that puts n builds on the VM, which has no builds yet.
func (o occupant) candidate(b *testing.B, n int) candidate {
	b.Helper()
	var err error
	o.empty, _, err = o.vmMemory()
	require.NoError(b, err)
	return candidate{name: o.name, run: func(r *results) error { return o.occupy(r, n) }}
}

// occupy puts n on the VM, measures their cost while they are there, and ends them.
func (o occupant) occupy(r *results, n int) error {
	before := readUsage()
	var err error
	var ends []func() error
	var took []float64
	for range n {
		begin := time.Now()
		end, startErr := o.start()
		if startErr != nil {
			err = startErr
			break
		}
		took = append(took, millis(time.Since(begin)))
		ends = append(ends, end)
	}
	if err == nil {
		err = o.measure(r, before, took)
	}
	err = errors.Join(err, endAll(ends))
	require.Eventually(r.b, func() bool {
		const own = 1 // in which this runs
		return float64(runtime.NumGoroutine()-own) <= before.goroutines
	}, sshtest.Bound, 10*time.Millisecond, "something is left of %d", n)
	return err
}

// measure adds the costs of running builds. took holds the times of their starts, in milliseconds.
func (o occupant) measure(r *results, before usage, took []float64) error {
	const last = 8 // few enough to count as the n-th
	n := float64(len(took))
	after := readUsage()
	vm, serve, err := o.vmMemory()
	if err != nil {
		return err
	}
	sum := 0.0
	for _, one := range took {
		sum += one
	}
	for name, value := range map[string]float64{
		"time": sum / n, "nth": quantile(took[max(0, len(took)-last):], 0.5),
		"heap": (after.heap - before.heap) / n / kibi, "stack": (after.stack - before.stack) / n / kibi,
		"goroutines": (after.goroutines - before.goroutines) / n,
		"serve":      serve, "vm": (vm - o.empty) / n,
	} {
		r.add(o.name+"-"+name, value)
	}
	if o.conn != nil {
		r.add(o.name+"-sessions", float64(o.conn.Stat().Sessions.Open))
	}
	return nil
}

// vmMemory returns how much memory there is taken of the VM, and how much of that by each step runner, in KiB.
func (o occupant) vmMemory() (all, serve float64, err error) {
	p, err := readProcesses()
	if err != nil {
		return 0, 0, err
	}
	there := p.named(o.parent)
	if all, err = memory(there); err != nil {
		return 0, 0, err
	}
	serves := serving(there)
	if serve, err = memory(serves); err != nil {
		return 0, 0, err
	}
	return all, serve / float64(max(len(serves), 1)), nil
}

// endAll calls all of ends, some at once.
func endAll(ends []func() error) error {
	var group errgroup.Group
	group.SetLimit(openers)
	for _, end := range ends {
		group.Go(end)
	}
	return group.Wait()
}

// reportGrowth reports how the costs grow from the smallest number of builds to the largest.
func reportGrowth(b *testing.B, grown map[string]growth) {
	for b.Loop() {
		continue // nothing but to report what the others have measured
	}
	for _, name := range slices.Sorted(maps.Keys(grown)) {
		grown[name].report(b, name)
	}
	b.ReportMetric(0, "ns/op")
}

// benchmarkProcesses measures the manager's cost of n processes on one connection, started by its relay.
func benchmarkProcesses(b *testing.B, n int) {
	v := newVM(b)
	conn := v.dial(b)
	relay := v.relay(b, conn)
	o := occupant{name: "relay", parent: "sshd", conn: conn, start: func() (func() error, error) {
		p, err := relay.Start(b.Context(), mux.Command{Argv: []string{"cat"}})
		if err != nil {
			return nil, err
		}
		return p.Close, ping1(p)
	}}
	r := inTurns(b, twice, []candidate{o.candidate(b, n)})
	require.Equal(b, 1, v.TotalConns())
	for _, c := range costs {
		if c.name != "serve" {
			r.median("relay-"+c.name, "relay-"+c.name+c.unit)
		}
	}
	r.median("relay-sessions", "relay-sessions")
	b.ReportMetric(float64(v.TotalConns()), "relay-conns")
}

const openers = 16 // at once

// withOpeners calls do n times, some at once.
func withOpeners(n int, do func() error) error {
	var group errgroup.Group
	group.SetLimit(openers)
	for range n {
		group.Go(do)
	}
	return group.Wait()
}

// ping1 checks that an echoing process echoes one byte.
func ping1(p io.ReadWriter) error {
	message := []byte("x")
	if _, err := p.Write(message); err != nil {
		return err
	}
	_, err := io.ReadFull(p, message)
	return err
}
