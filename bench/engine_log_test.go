package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// benchmarkLines measures the output of a job on its way to a follower, in lines that are written one by one.
func benchmarkLines(b *testing.B, n int) {
	script := fmt.Sprintf("for ((i = 100000; i < %d; i++)); do echo line $i; done", 100_000+n)
	size := int64(n * len("line 100000\n"))
	s := newServe(b)
	r := inTurns(b, usual, []candidate{
		together("job", 1, func() error { return s.do(b.Context(), script, size) }),
		together("fork", 1, func() error { return fork(b.Context(), script, size) }),
	})
	r.latencies("ms", "job", "fork")
	r.ratios("fork", "job")
}

// benchmarkLog measures the output of a job that writes all it can, a GiB of it in logs of the size they may have,
// on its way to a follower, beside a pipe to this process. With -short it is less.
func benchmarkLog(b *testing.B) {
	const parts = 4
	size := sizes([]int64{logLimit}, 1<<20)[0]
	script := fmt.Sprintf("head -c %d /dev/zero", size)
	s := newServe(b)
	r := inTurns(b, twice, []candidate{
		throughput("job", parts*size, func() error {
			for range parts {
				id, err := s.start(b.Context(), script)
				if err != nil {
					return err
				}
				if err := s.readAll(b.Context(), id, size); err != nil {
					return err
				}
				if err := s.forget(b.Context(), id); err != nil {
					return err
				}
			}
			return nil
		}),
		throughput("pipe", parts*size, func() error {
			for range parts {
				if err := fork(b.Context(), script, size); err != nil {
					return err
				}
			}
			return nil
		}),
	})
	r.medians("MB/s", "job", "pipe")
	r.ratios("pipe", "job")
}

// throughput measures a transfer of n bytes in MB/s.
func throughput(name string, n int64, transfer func() error) candidate {
	return candidate{name: name, run: func(r *results) error {
		begin := time.Now()
		err := transfer()
		r.add(name, float64(n)/mega/time.Since(begin).Seconds())
		return err
	}}
}

// benchmarkFlood measures a trivial job beside a job that floods its log with more than the log takes, in relation to
// a trivial job alone; and the same script as a child of this process, which shows how much of the processors is left.
// Beside the flood the job should take twice as long at most.
func benchmarkFlood(b *testing.B) {
	s := newServe(b)
	floods := []flood{
		{name: "alone"},
		{name: "beside-loop", script: "echo x; while :; do :; done"},
		{name: "beside-flood", script: "cat /dev/zero"},
		{name: "beside-followed-flood", script: "cat /dev/zero", followed: true},
	}
	var all []candidate
	for _, f := range floods {
		all = append(all, candidate{name: f.name, run: func(r *results) error {
			return f.beside(b.Context(), s, func() error {
				for range 20 {
					if err := timed(r, "job-"+f.name, func() error { return s.do(b.Context(), trivial, 3) }); err != nil {
						return err
					}
					if err := timed(r, "fork-"+f.name, func() error { return fork(b.Context(), trivial, 3) }); err != nil {
						return err
					}
				}
				return nil
			})
		}})
	}
	r := inTurns(b, usual, all)
	for _, of := range []string{"job-", "fork-"} {
		for _, f := range floods {
			r.latencies("ms", of+f.name)
			if f.script != "" {
				r.ratio(of+f.name, of+"alone", "alone")
			}
		}
	}
}

// flood is a job that takes all it can get.
type flood struct {
	name     string
	script   string // if empty, there is none
	followed bool
}

// beside calls do while the flood goes on.
func (f flood) beside(ctx context.Context, s *serve, do func() error) error {
	if f.script == "" {
		return do()
	}
	id, err := s.start(ctx, f.script)
	if err != nil {
		return err
	}
	if _, err := s.read(ctx, id, 1); err != nil { // it is at it
		return err
	}
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	var reader errgroup.Group
	if f.followed {
		reader.Go(func() error { _, err := s.read(reading, id, 0); return err })
	}
	err = do()
	cancel()
	_ = reader.Wait() // it was cut off
	if forgetErr := s.forget(ctx, id); err == nil {
		err = forgetErr
	}
	return err
}

// timed adds to name how long do takes, in milliseconds.
func timed(r *results, name string, do func() error) error {
	begin := time.Now()
	err := do()
	r.add(name, millis(time.Since(begin)))
	return err
}
