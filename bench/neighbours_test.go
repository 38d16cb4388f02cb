package bench

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/internal/sshtest"
)

// BenchmarkIdleBuilds measures what a bridge gets beside the idle ones of other builds, in relation to what
// it gets alone on a connection. What the larger number does to streamlocal is why builds beyond 64 take
// the relay.
func BenchmarkIdleBuilds(b *testing.B) {
	const amount = 8 << 20
	for _, idle := range []int{64, 1000} {
		b.Run(fmt.Sprintf("builds=%d", idle), func(b *testing.B) {
			v := newVM(b)
			f := newFar(b, v)
			var all []candidate
			compare := func(name string, w way) {
				s := w.stream(b, f.path)
				all = append(all,
					candidate{name: name + "-rate", run: func(r *results) error {
						return r.rate(name+"-rate", amount, func() error { return down(s, amount) })
					}},
					candidate{name: name + "-ping", run: func(r *results) error { return r.pings(name+"-ping", s) }})
			}
			ways := v.routes(b)
			for i, alone := range v.routes(b) {
				compare(alone.name+"-alone", alone)
				ways[i].streams(b, idle, f.path)
				compare(ways[i].name, ways[i])
			}
			r := inTurns(b, all)
			for _, w := range ways {
				r.latencies("µs", w.name+"-ping")
				r.medians("MB/s", w.name+"-rate")
				r.ratio(w.name+"-ping", w.name+"-alone-ping", "alone")
				r.ratio(w.name+"-rate", w.name+"-alone-rate", "alone")
			}
		})
	}
}

// BenchmarkStalled measures what streams whose reader has stopped cost: the VM's end in processor time, which
// should be nothing, and another stream of the connection in throughput, in relation to one of a connection
// without them. (BenchmarkIdleBuilds tells what open streams cost by being open.)
func BenchmarkStalled(b *testing.B) {
	const many = 200
	for _, by := range []struct {
		name    string
		way     func(v *vm, b *testing.B) way
		streams int
	}{
		{"streamlocal", (*vm).streamlocalWay, many},
		{"relay", (*vm).relayWay, many},
		{"session", (*vm).sessionWay, 50}, // each is a process
		{iocopyName, (*vm).iocopyWay, 2},  // each takes a processor
	} {
		b.Run(fmt.Sprintf("by=%s/streams=%d", by.name, by.streams), func(b *testing.B) {
			v := newVM(b, fmt.Sprintf("MaxSessions %d", many))
			f := newFar(b, v)
			w, alone := by.way(v, b), by.way(v, b)
			f.stall(b, w.streams(b, by.streams, f.path))
			measureStalled(b, alone.stream(b, f.path), w.stream(b, f.path))
		})
	}
}

// measureStalled compares a stream that is beside stalled ones with one that is not.
func measureStalled(b *testing.B, alone, beside io.ReadWriter) {
	b.Helper()
	const amount, window = 8 << 20, 500 * time.Millisecond
	move := func(name string, s io.ReadWriter) candidate {
		return candidate{name: name, run: func(r *results) error {
			return r.rate(name, amount, func() error { return down(s, amount) })
		}}
	}
	r := inTurns(b, []candidate{
		move("alone", alone),
		move("beside", beside),
		{name: "idle", every: 4, run: func(r *results) error {
			before, err := vmCPU()
			if err != nil {
				return err
			}
			<-time.NewTimer(window).C
			after, err := vmCPU()
			r.add("idle", (after-before).Seconds()/window.Seconds())
			return err
		}},
	})
	r.medians("vm-s/s", "idle")
	r.medians("MB/s", "beside")
	r.ratios("alone", "beside")
}

// stall lets f send by streams that nobody reads, until nothing has gone for a while that is longer than any
// pause of a busy machine.
func (f *far) stall(b *testing.B, streams []io.ReadWriteCloser) {
	b.Helper()
	for _, s := range streams {
		require.NoError(b, ask(s, farDown, farMost))
	}
	const poll, pause = 50 * time.Millisecond, time.Second
	least := int64(len(streams)) << 20 // every window takes more
	last, since := int64(0), time.Now()
	require.Eventually(b, func() bool {
		if now := f.sent.Load(); now != last {
			last, since = now, time.Now()
		}
		return last >= least && time.Since(since) > pause
	}, sshtest.Bound, poll, "streams that nobody reads go on")
}

// BenchmarkPing measures a small round trip beside a download that takes all it can get: on the same
// connection and, what the machine itself makes of it, on one beside.
func BenchmarkPing(b *testing.B) {
	v := newVM(b)
	f := newFar(b, v)
	var all []candidate
	others := v.routes(b)
	for i, w := range v.routes(b) {
		s := w.stream(b, f.path)
		alone, same, separate := w.name+"-alone", w.name+"-same", w.name+"-separate"
		all = append(all,
			candidate{name: alone, run: func(r *results) error { return r.pings(alone, s) }},
			candidate{name: same, run: func(r *results) error { return beside(w, f.path, func() error { return r.pings(same, s) }) }},
			candidate{name: separate, run: func(r *results) error {
				return beside(others[i], f.path, func() error { return r.pings(separate, s) })
			}})
	}
	r := inTurns(b, all)
	r.latencies("µs", names(all)...)
	for _, w := range others {
		r.ratio(w.name+"-same", w.name+"-separate", "separate")
	}
}

// beside calls do while a download by w goes on.
func beside(w way, path string, do func() error) error {
	s, err := w.open(path)
	if err != nil {
		return err
	}
	if err := down(s, 4<<20); err != nil { // up to speed
		return err
	}
	var group errgroup.Group
	group.Go(func() error {
		_ = down(s, farMost) // until it is closed
		return nil
	})
	err = do()
	s.Close()
	_ = group.Wait() // nothing to tell
	return err
}
