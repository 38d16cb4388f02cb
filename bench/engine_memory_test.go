package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// benchmarkServeMemory measures the memory of a step runner that has done so many jobs: it should not grow once
// there are more than it remembers, which are 1,000.
func benchmarkServeMemory(b *testing.B) {
	slice := sizes([]int{1000}, 10)[0]
	const slices = 3
	for b.Loop() {
		s := newServe(b)
		before, err := rss(s.pid)
		require.NoError(b, err)
		b.ReportMetric(before, "MB-RSS-at-start")
		for i := 1; i <= slices; i++ {
			require.NoError(b, withOpeners(slice, func() error { return s.do(b.Context(), trivial, 3) }))
			after, err := rss(s.pid)
			require.NoError(b, err)
			b.ReportMetric(after, fmt.Sprintf("MB-RSS-after-%05d", i*slice))
		}
	}
	b.ReportMetric(0, "ns/op")
}

// benchmarkCrowd measures so many jobs that run on one step runner at the same time: from the first request until all
// of them run, until all have ended after they were let go, and the memory they take meanwhile.
func benchmarkCrowd(b *testing.B, jobs int) {
	s := newServe(b)
	r := inTurns(b, usual, []candidate{{name: "crowd", run: func(r *results) error {
		gate := filepath.Join(b.TempDir(), "gate")
		if err := unix.Mkfifo(gate, 0o600); err != nil {
			return err
		}
		script := fmt.Sprintf("echo up; read -r < %s; echo gone", gate)
		begin := time.Now()
		var mu sync.Mutex // guards the following
		var ids []string
		err := withOpeners(jobs, func() error {
			id, err := s.start(b.Context(), script)
			if err == nil {
				_, err = s.read(b.Context(), id, 3)
			}
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, id)
			return err
		})
		r.add("up", time.Since(begin).Seconds())
		if err != nil {
			return err
		}
		used, err := rss(s.pid)
		if err != nil {
			return err
		}
		r.add("rss", used)
		begin = time.Now()
		open, err := os.OpenFile(gate, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer open.Close()
		if _, err := open.WriteString(strings.Repeat("\n", jobs)); err != nil {
			return err
		}
		var group errgroup.Group
		for _, id := range ids {
			group.Go(func() error {
				n, err := s.read(b.Context(), id, 0)
				if err == nil && n != 8 {
					err = fmt.Errorf("job %s wrote %d bytes", id, n)
				}
				return err
			})
		}
		err = group.Wait()
		r.add("down", time.Since(begin).Seconds())
		return err
	}}})
	r.medians("s", "up", "down")
	r.medians("MB", "rss")
}
