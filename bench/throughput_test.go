package bench

import (
	"fmt"
	"io"
	"testing"
)

// BenchmarkThroughput measures what all bridges of a connection carry together, by how many builds there are, each
// with one.
func BenchmarkThroughput(b *testing.B) {
	const amount = 32 << 20
	for _, builds := range []int{1, 8, 32, 128, 512} {
		b.Run(fmt.Sprintf("builds=%d", builds), func(b *testing.B) {
			v := newVM(b)
			f := newFar(b, v)
			var all []candidate
			for _, w := range v.channelWays(b) {
				streams := w.streams(b, builds, f.path)
				all = append(all, candidate{name: w.name, run: func(r *results) error {
					return r.rate(w.name, amount, func() error {
						return atOnce(streams, func(s io.ReadWriter) error { return down(s, int64(amount/builds)) })
					})
				}})
			}
			r := inTurns(b, all)
			r.medians("MB/s", names(all)...)
			r.ratios("raw", names(all)...)
			r.costs(names(all)...)
		})
	}
}
