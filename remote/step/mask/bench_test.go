package mask

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hundred returns a hundred secrets such as jobs have.
func hundred(b *testing.B) *Set {
	b.Helper()
	s := &Set{}
	for i := range 100 {
		require.NoError(b, s.Add(secretOf(i)))
	}
	return s
}

// hundredQuoted returns a hundred passwords that programs quote. Each has more forms than those of hundred.
func hundredQuoted(b *testing.B) *Set {
	b.Helper()
	s := &Set{}
	for i := range 100 {
		require.NoError(b, s.Add(secretOf(i)+`'"& \é`))
	}
	return s
}

func secretOf(i int) string {
	r := rand.New(rand.NewPCG(uint64(i), 0))
	text := []byte([]string{"glpat-", "", "https://user:", "AKIA"}[i%4])
	for range 20 {
		text = append(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/_-"[r.IntN(66)])
	}
	return string(text)
}

// BenchmarkWriter is the throughput of a stream, in writes as a pipe has them.
func BenchmarkWriter(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	log := &strings.Builder{}
	for i := 0; log.Len() < 1<<20; i++ {
		fmt.Fprintf(
			log,
			"[%02d:%02d] [INFO] Compiling crate-%d v%d.%d.%d (https://github.com/example/crate-%d)\n",
			i/60%60,
			i%60,
			r.IntN(999),
			i%3,
			i%7,
			i%11,
			i,
		)
	}
	random := &strings.Builder{}
	for random.Len() < 1<<20 {
		random.WriteByte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"[r.IntN(64)])
	}
	hits := &strings.Builder{}
	for i := 0; hits.Len() < 1<<20; i++ {
		fmt.Fprintf(hits, "curl -H 'token: %s' https://example.com\n", secretOf(i%100))
	}
	near := strings.Repeat(secretOf(0)[:25]+"\n", 40000)
	for _, c := range []struct {
		name, text string
		set        *Set
	}{
		{"secrets=0", log.String(), &Set{}},
		{"secrets=100/text=log", log.String(), hundred(b)},
		{"secrets=100/quoted/text=log", log.String(), hundredQuoted(b)},
		{"secrets=100/text=random", random.String(), hundred(b)},
		{"secrets=100/text=hits", hits.String(), hundred(b)},
		{"secrets=100/text=near", near, hundred(b)},
	} {
		b.Run(c.name, func(b *testing.B) {
			data := []byte(c.text)
			w := c.set.NewWriter(io.Discard)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				for at := 0; at < len(data); at += 32 << 10 {
					_, _ = w.Write(data[at:min(len(data), at+32<<10)])
				}
			}
		})
	}
}

// BenchmarkAdd measures the cost of adding a hundred secrets, and the memory of the automaton, 18 bytes a node.
func BenchmarkAdd(b *testing.B) {
	for name, add := range map[string]func(*testing.B) *Set{"plain": hundred, "quoted": hundredQuoted} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			nodes := 0
			for b.Loop() {
				nodes = len(add(b).automaton().label)
			}
			b.ReportMetric(float64(nodes)/100, "nodes/secret")
		})
	}
}
