package bench

import (
	"io"
	"strconv"
	"testing"
)

// sameBytes is why some peers are not measured where bytes flow.
const sameBytes = "once they are connected they carry bytes as control-master and raw do"

// direction is a way that bytes go.
type direction struct {
	name string
	move func(s io.ReadWriter, n int64) error
}

var directions = []direction{{"down", down}, {"up", up}, {"both", both}}

// BenchmarkProxyThroughput measures the throughput of all bridges of a connection, between a channel of the SSH library
// and the socket itself, and the cost of each gigabyte for both ends, by the number of builds with a bridge each.
func BenchmarkProxyThroughput(b *testing.B) {
	for _, d := range directions {
		b.Run(d.name, func(b *testing.B) {
			for _, n := range capacities() {
				if d.name == "both" && n > 32 {
					continue // what the directions take from each other shows with few
				}
				b.Run(capacityName(n), func(b *testing.B) { benchmarkBridges(b, d, n) })
			}
		})
	}
	b.Run("alone", func(b *testing.B) {
		for _, d := range directions[:2] { // both is what down and up cost each other, as with one bridge
			b.Run(d.name, func(b *testing.B) { benchmarkBridgesAlone(b, d) })
		}
	})
	b.Run("FollowIO", benchmarkFollowIO)
}

// transfer returns a candidate that moves amount by all streams together.
func transfer(name string, every int, d direction, amount int64, streams ...io.ReadWriteCloser) candidate {
	return candidate{name: name, every: every, run: func(r *results) error {
		return r.rate(name, amount, func() error {
			return atOnce(streams, func(s io.ReadWriter) error { return d.move(s, amount/int64(len(streams))) })
		})
	}}
}

// benchmarkBridges measures n bridges, on a connection with stock limits for each way. See benchmarkBridgesAlone for
// the effect of more sessions.
func benchmarkBridges(b *testing.B, d direction, n int) {
	const amount = 32 << 20
	v := newVM(b)
	f := newFar(b, v)
	if n > stockSessions {
		missing(b, "session, "+iocopyName+", control-master", fewSessions)
	}
	missing(b, "ssh, fresh-dial", sameBytes)
	var all []candidate
	for _, w := range v.waysFor(b, n) {
		every := 1
		switch {
		case n == 1 && !w.hasGoal() && w.name != "raw":
			every = 5
		case n > 1 && w.name == iocopyName:
			every = 4 // it takes seconds
		}
		all = append(all, transfer(w.name, every, d, amount, w.streams(b, n, f.path)...))
	}
	effort := usual.with(min(n, 8)) // the first bytes of a bridge are no measure of it
	switch {
	case n == 1 && d.name != "both": // which has no goal
		effort = steadier
	case n == 1:
		effort = steady
	}
	r := inTurns(b, effort, all)
	r.medians("MB/s", names(all)...)
	r.ratios("raw", names(all)...)
	r.costs(names(all)...)
}

// benchmarkBridgesAlone measures the throughput of 64 bridges together, in relation to that of one bridge by the same
// way on a connection of its own. The server allows more sessions than a stock one. Each of the 64 carries 2 MiB, so
// that the wake-up of 64 programs and their acknowledgements do not count. With -short there are 8.
func benchmarkBridgesAlone(b *testing.B, d direction) {
	const amountAlone = 8 << 20
	many := sizes([]int{64}, 8)[0]
	v := newVM(b, "MaxSessions "+strconv.Itoa(4*many))
	f := newFar(b, v)
	var together, alone []candidate
	one := v.allWays(b)
	for i, w := range v.allWays(b) {
		every, amount := 4, int64(many)*2<<20
		switch {
		case w.hasGoal():
			every = 1
		case w.name == iocopyName: // it takes seconds
			every, amount = 16, amount/8
		}
		together = append(together, transfer(w.name, every, d, amount, w.streams(b, many, f.path)...))
		alone = append(alone, transfer(w.name+"-alone", 1, d, amountAlone, one[i].stream(b, f.path)))
	}
	r := inTurns(b, steady, append(alone, together...))
	r.medians("MB/s", names(together)...)
	r.costs(names(together)...)
	for i := range together {
		r.ratio(together[i].name, alone[i].name, "alone")
	}
}
