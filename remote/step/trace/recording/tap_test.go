package recording

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/trace"
)

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func TestTapSumsUpTheParts(t *testing.T) {
	var to bytes.Buffer
	tap := NewTap(&to)
	write := func(text string) {
		_, err := tap.Write([]byte(text))
		require.NoError(t, err)
	}
	write("before")
	one := tap.begin(&Paths{})
	write("one ")
	write("two")
	parts := []*part{one, tap.begin(&Paths{}), tap.begin(&Paths{})}
	write("three")
	tap.Close()
	tap.Close()
	write(" after")
	for n, want := range []string{"one two", "", "three"} {
		log, at := parts[n].log()
		require.Equal(t, trace.Log{Bytes: int64(len(want)), SHA256: sumOf(want)}, log)
		require.Equal(t, &trace.Range{Offset: int64([]int{6, 13, 13}[n]), Bytes: int64(len(want)), SHA256: sumOf(want)}, at)
	}
	log, _ := tap.begin(&Paths{}).log()
	require.Zero(t, log.Bytes)
	require.Equal(t, "beforeone twothree after", to.String())
}

func TestPathsInOutputStandAsMarkers(t *testing.T) {
	p := somePaths()
	for _, text := range []string{
		"/tmp/job/1/script: line 3: no", "/tmp/job/1/step-7", "/tmp/job/1/step-", "/tmp/job/1",
		"x/home/me/project\n/home/me/projects",
		"//tmp/job/1//", "/tmp/job/1/tmp/job/1", "/home/me/projec", "/", "none", "/tmp/job/tmp/job/1 ",
	} {
		want := p.markOnly(text)
		for size := 1; size <= len(text); size++ {
			part := newPart(0, p)
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				part.write([]byte(rest[:n]))
				rest = rest[n:]
			}
			log, at := part.log()
			require.Equal(
				t,
				trace.Log{Bytes: int64(len(want)), SHA256: sumOf(want)},
				log,
				"%q in pieces of %d, as %q",
				text,
				size,
				want,
			)
			require.Equal(t, &trace.Range{Bytes: int64(len(text)), SHA256: sumOf(text)}, at)
		}
	}
}

// markOnly is Mark without the colons in texts that look like markers.
func (p *Paths) markOnly(text string) string {
	return replace(text, func(rest string) (string, int) {
		for _, k := range p.known {
			if begins(rest, k.path) {
				return k.marker, len(k.path)
			}
		}
		return "", 0
	})
}

func FuzzOutputIsMarkedInAnyPieces(f *testing.F) {
	f.Add("/tmp/job/1/step-7/x", uint64(1))
	p := somePaths()
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 1))
		part := newPart(0, p)
		for rest := text; rest != ""; {
			n := 1 + random.IntN(len(rest))
			part.write([]byte(rest[:n]))
			rest = rest[n:]
		}
		log, at := part.log()
		want := p.markOnly(text)
		require.Equal(t, trace.Log{Bytes: int64(len(want)), SHA256: sumOf(want)}, log)
		require.Equal(t, sumOf(text), at.SHA256)
	})
}

// limited keeps as many bytes as it has room for.
type limited struct{ room, dropped int64 }

func (l *limited) Write(p []byte) (int, error) {
	kept := min(l.room, int64(len(p)))
	l.room -= kept
	l.dropped += int64(len(p)) - kept
	return len(p), nil
}

func (l *limited) Dropped() int64 { return l.dropped }

func TestPartsThatAreNotKeptAreTruncated(t *testing.T) {
	tap := NewTap(&limited{room: 6})
	var parts [3]*part
	for n := range parts {
		parts[n] = tap.begin(&Paths{})
		_, err := io.WriteString(tap, "1234")
		require.NoError(t, err)
	}
	tap.Close()
	for n, want := range []bool{false, true, true} {
		log, _ := parts[n].log()
		require.Equal(t, trace.Log{Bytes: 4, SHA256: sumOf("1234"), Truncated: want}, log)
	}
}

func TestTapPassesOnMuchAtOnce(t *testing.T) {
	text := strings.Repeat("0123456789", 1<<20)
	tap := NewTap(io.Discard)
	all := tap.begin(&Paths{})
	n, err := io.WriteString(tap, text)
	require.NoError(t, err)
	require.Equal(t, len(text), n)
	tap.Close()
	log, _ := all.log()
	require.Equal(t, sumOf(text), log.SHA256)
}

func BenchmarkTap(b *testing.B) {
	p := somePaths()
	block := []byte(strings.Repeat("a line of output as builds write it, in src/main.c\n", 640))
	for name, w := range map[string]io.Writer{"plain": io.Discard, "tapped": nil} {
		b.Run(name, func(b *testing.B) {
			if w == nil {
				tap := NewTap(io.Discard)
				defer tap.Close()
				tap.begin(&p)
				w = tap
			}
			b.SetBytes(int64(len(block)))
			for b.Loop() {
				_, _ = w.Write(block)
			}
		})
	}
}
