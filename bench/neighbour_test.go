package bench

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// BenchmarkNeighbour measures how the builds of a connection slow each other down: a ping beside floods, a ping and a
// download beside idle builds, and beside builds whose reader has stopped.
func BenchmarkNeighbour(b *testing.B) {
	b.Run("flood", func(b *testing.B) {
		for _, n := range sizes([]int{2, 8, 32, 128}, 2) {
			b.Run(capacityName(n), func(b *testing.B) { benchmarkFlooded(b, n) })
		}
	})
	b.Run("idle", func(b *testing.B) {
		for _, n := range sizes([]int{64, 1000}, 64) {
			b.Run(capacityName(n), func(b *testing.B) { benchmarkIdle(b, n) })
		}
	})
	b.Run("stalled", benchmarkStalled)
}

// benchmarkFlooded measures a small round trip beside downloads of n-1 builds that take all they can get: on the same
// connection, and on another one, which shows the machine's own share. "alone" is without downloads.
func benchmarkFlooded(b *testing.B, n int) {
	v := newVM(b)
	f := newFar(b, v)
	if n > stockSessions {
		missing(b, "session, "+iocopyName+", control-master", fewSessions)
	}
	missing(b, "ssh, fresh-dial", sameBytes)
	ways, others := v.waysFor(b, n), v.waysFor(b, n)
	var all []candidate
	var list []string
	for i, w := range ways {
		s := w.stream(b, f.path)
		alone, same, separate := w.name+"-alone", w.name+"-same", w.name+"-separate"
		list = append(list, alone, same, separate)
		all = append(all, candidate{name: w.name, run: func(r *results) error {
			return errors.Join(
				r.pings(alone, s),
				beside(w, n-1, f.path, func() error { return r.pings(same, s) }),
				beside(others[i], n-1, f.path, func() error { return r.pings(separate, s) }))
		}})
	}
	r := inTurns(b, steady.with(n), all)
	r.latencies("µs", list...)
	for _, w := range ways {
		r.ratio(w.name+"-same", w.name+"-separate", "separate")
	}
}

// benchmarkIdle measures a bridge beside the idle bridges of n other builds, in relation to a bridge alone on a
// connection. The larger number slows streamlocal down: that is why builds beyond 64 take the relay.
func benchmarkIdle(b *testing.B, n int) {
	const amount = 8 << 20
	v := newVM(b)
	f := newFar(b, v)
	var all []candidate
	compare := func(name string, w way) {
		s := w.stream(b, f.path)
		all = append(all, transfer(name+"-rate", 1, directions[0], amount, s),
			candidate{name: name + "-ping", run: func(r *results) error { return r.pings(name+"-ping", s) }})
	}
	ways := v.channelWays(b)
	for i, alone := range v.channelWays(b) {
		compare(alone.name+"-alone", alone)
		ways[i].streams(b, n, f.path)
		compare(ways[i].name, ways[i])
	}
	r := inTurns(b, steady, all)
	for _, w := range ways {
		r.latencies("µs", w.name+"-ping")
		r.medians("MB/s", w.name+"-rate")
		r.ratio(w.name+"-ping", w.name+"-alone-ping", "alone")
		r.ratio(w.name+"-rate", w.name+"-alone-rate", "alone")
	}
}

// benchmarkStalled measures the cost of streams whose reader has stopped: processor time of the VM's end, which should
// be nothing, and throughput of another stream of the connection, in relation to one of a connection without them.
// (benchmarkIdle measures the cost of open streams.)
func benchmarkStalled(b *testing.B) {
	many := sizes([]int{200}, 20)[0]
	for _, by := range []struct {
		name    string
		way     func(v *vm, b *testing.B) way
		streams int
	}{
		{"streamlocal", (*vm).streamlocalWay, many},
		{"relay", (*vm).relayWay, many},
		{"session", (*vm).sessionWay, min(50, many)}, // each is a process
		{iocopyName, (*vm).iocopyWay, 2},             // each takes a processor
	} {
		b.Run(fmt.Sprintf("by=%s/streams=%d", by.name, by.streams), func(b *testing.B) {
			v := newVM(b, fmt.Sprintf("MaxSessions %d", 4*many))
			f := newFar(b, v)
			w, alone := by.way(v, b), by.way(v, b)
			f.stall(b, w.streams(b, by.streams, f.path))
			measureStalled(b, alone.stream(b, f.path), w.stream(b, f.path))
		})
	}
}

// measureStalled compares a stream that is beside stalled ones with one that is not.
func measureStalled(b *testing.B, alone, beside io.ReadWriteCloser) {
	b.Helper()
	const amount, window = 8 << 20, 500 * time.Millisecond
	r := inTurns(b, usual, []candidate{
		transfer("alone", 1, directions[0], amount, alone),
		transfer("beside", 1, directions[0], amount, beside),
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
		now, err := f.sent()
		if err != nil {
			return false
		}
		if now != last {
			last, since = now, time.Now()
		}
		return last >= least && time.Since(since) > pause
	}, sshtest.Bound, poll, "streams that nobody reads go on")
}

// beside calls do while n downloads by w go on.
func beside(w way, n int, path string, do func() error) error {
	var streams []io.ReadWriteCloser
	var floods errgroup.Group
	defer func() {
		for _, s := range streams {
			s.Close()
		}
		_ = floods.Wait() // cut off
	}()
	for range n {
		s, err := w.open(path)
		if err != nil {
			return err
		}
		streams = append(streams, s)
	}
	const upToSpeed = 4 << 20
	if err := atOnce(streams, func(s io.ReadWriter) error { return down(s, upToSpeed/int64(n)) }); err != nil {
		return err
	}
	for _, s := range streams {
		floods.Go(func() error { return down(s, farMost) }) // until it is closed
	}
	return do()
}
