package joblog

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"
)

// BenchmarkLog writes 16 MiB as the pump of a process does, while followers read them as the service does.
func BenchmarkLog(b *testing.B) {
	for _, followers := range []int{0, 1, 8} {
		b.Run(fmt.Sprintf("followers=%d", followers), func(b *testing.B) {
			chunk := make([]byte, 32<<10)
			const chunks = 512
			b.SetBytes(int64(chunks * len(chunk)))
			b.ReportAllocs()
			for b.Loop() {
				l := New(filepath.Join(b.TempDir(), "stdout"), 0)
				var group sync.WaitGroup
				for range followers {
					group.Go(func() { follow(b, l) })
				}
				for range chunks {
					if _, err := l.Write(chunk); err != nil {
						b.Fatal(err)
					}
				}
				if err := l.Close(); err != nil {
					b.Fatal(err)
				}
				group.Wait()
				if err := l.Remove(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func follow(b *testing.B, l *Log) {
	buf := make([]byte, 64<<10)
	for off := int64(0); ; {
		n, err := l.ReadAt(b.Context(), buf, off)
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			b.Error(err)
			return
		}
		off += int64(n)
	}
}
