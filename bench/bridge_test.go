package bench

import (
	"io"
	"strconv"
	"testing"
	"time"
)

// directions are the two ways that bytes go.
var directions = []struct {
	name string
	move func(s io.ReadWriter, n int64) error
}{
	{"down", down},
	{"up", up},
}

// BenchmarkBridge measures one bridge's throughput, between a channel of the SSH library and the socket
// itself, and what each gigabyte costs the VM's end.
func BenchmarkBridge(b *testing.B) {
	const amount = 32 << 20
	for _, d := range directions {
		b.Run(d.name, func(b *testing.B) {
			v := newVM(b)
			f := newFar(b, v)
			var all []candidate
			for _, w := range v.allWays(b) {
				s := w.stream(b, f.path)
				all = append(all, candidate{name: w.name, run: func(r *results) error {
					return r.rate(w.name, amount, func() error { return d.move(s, amount) })
				}})
			}
			r := inTurns(b, all)
			r.medians("MB/s", names(all)...)
			r.ratios("raw", names(all)...)
			r.costs(names(all)...)
		})
	}
}

// BenchmarkBridgeFar measures one bridge's throughput over a distance, where it is a matter of windows.
func BenchmarkBridgeFar(b *testing.B) {
	const rtt, amount = 50 * time.Millisecond, 16 << 20
	v := newVM(b)
	f := newFar(b, v)
	var all []candidate
	for _, w := range v.at(b, rtt).channelWays(b) {
		s := w.stream(b, f.path)
		all = append(all, candidate{name: w.name, run: func(r *results) error {
			return r.rate(w.name, amount, func() error { return down(s, amount) })
		}})
	}
	r := inTurns(b, all)
	r.medians("MB/s", names(all)...)
	r.ratios("raw", names(all)...)
}

// BenchmarkBridgeOpen measures the opening of a bridge, to the first answer that comes over it.
func BenchmarkBridgeOpen(b *testing.B) {
	for _, rtt := range []time.Duration{0, 50 * time.Millisecond} {
		b.Run("rtt="+rtt.String(), func(b *testing.B) {
			v := newVM(b)
			f := newFar(b, v)
			var all []candidate
			for _, w := range v.at(b, rtt).allWays(b) {
				if rtt > 0 && w.name == "unix" {
					continue // it is on the VM
				}
				all = append(all, candidate{name: w.name, every: w.every, run: func(r *results) error { return r.open(w, f.path) }})
			}
			r := inTurns(b, all)
			if rtt > 0 {
				r.trips(rtt, names(all)...)
				return
			}
			r.latencies("µs", names(all)...)
			r.ratios("raw", names(all)...)
		})
	}
}

// open measures the opening of a bridge, in microseconds.
func (r *results) open(w way, path string) error {
	begin := time.Now()
	s, err := w.open(path)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := ping(s); err != nil {
		return err
	}
	r.add(w.name, micros(time.Since(begin)))
	return nil
}

// BenchmarkBridges measures the throughput of 64 bridges together, in relation to what one by the same way
// gets on a connection of its own. (Stock servers do not allow so many sessions.)
func BenchmarkBridges(b *testing.B) {
	const many, amount, amountAlone = 64, 32 << 20, 8 << 20
	for _, d := range directions {
		b.Run(d.name, func(b *testing.B) {
			v := newVM(b, "MaxSessions "+strconv.Itoa(4*many))
			f := newFar(b, v)
			var together, alone []candidate
			one := v.allWays(b)
			for i, w := range v.allWays(b) {
				streams, single := w.streams(b, many, f.path), one[i].stream(b, f.path)
				every := 1
				if w.name == iocopyName {
					every = 4 // it takes seconds
				}
				together = append(together, candidate{name: w.name, every: every, run: func(r *results) error {
					return r.rate(w.name, amount, func() error {
						return atOnce(streams, func(s io.ReadWriter) error { return d.move(s, amount/many) })
					})
				}})
				alone = append(alone, candidate{name: w.name + "-alone", run: func(r *results) error {
					return r.rate(w.name+"-alone", amountAlone, func() error { return d.move(single, amountAlone) })
				}})
			}
			r := inTurns(b, append(alone, together...))
			r.medians("MB/s", names(together)...)
			r.costs(names(together)...)
			for i := range together {
				r.ratio(together[i].name, alone[i].name, "alone")
			}
		})
	}
}
