package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stepmux/stepmux/internal/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/steps"
)

// trivial is the script of a job that does next to nothing.
const trivial = "echo hi"

// serve is a step runner, a process of its own, and a client on its socket.
type serve struct {
	pb.StepRunnerClient
	pid int

	mu sync.Mutex // guards the following
	n  int        // of the last job
}

// newServe starts a step runner that lives as long as the benchmark.
func newServe(b *testing.B) *serve {
	b.Helper()
	socket, err := wire.SocketPath(sshtest.SocketDir(b), "bench")
	require.NoError(b, err)
	// Its leash ends it, when the context of the benchmark has ended already.
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), stepmux(b), "steps", "serve", "--socket", socket)
	leash, err := cmd.StdinPipe()
	require.NoError(b, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	line, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(b, err)
	require.Equal(b, wire.ReadyLine(socket), line)
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, conn.Close())
		require.NoError(b, leash.Close())
		require.NoError(b, cmd.Wait())
	})
	return &serve{StepRunnerClient: pb.NewStepRunnerClient(conn), pid: cmd.Process.Pid}
}

// start starts a script as a job, and returns its id.
func (s *serve) start(ctx context.Context, script string) (id string, err error) {
	s.mu.Lock()
	s.n++
	id = strconv.Itoa(s.n)
	s.mu.Unlock()
	_, err = s.Run(ctx, &pb.RunRequest{Id: id, Type: pb.RunRequest_script, CiScript: script})
	return id, err
}

// read follows the output of a job, for want bytes or, if that is 0, to the job's end. It returns how many
// bytes there were.
func (s *serve) read(ctx context.Context, id string, want int64) (n int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.FollowIO(ctx, &pb.FollowIORequest{Id: id})
	for err == nil && (want == 0 || n < want) {
		var piece *pb.FollowIOResponse
		if piece, err = stream.Recv(); err == nil {
			n += int64(len(piece.GetStream()))
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// do runs a script to its end, which must have written so many bytes.
func (s *serve) do(ctx context.Context, script string, want int64) error {
	id, err := s.start(ctx, script)
	if err != nil {
		return err
	}
	n, err := s.read(ctx, id, 0)
	if err == nil && n != want {
		err = fmt.Errorf("job %s wrote %d bytes, not %d", id, n, want)
	}
	return err
}

// forget ends a job and then removes it.
func (s *serve) forget(ctx context.Context, id string) error {
	for range 2 {
		if _, err := s.Cancel(ctx, &pb.CancelRequest{Id: id, Force: true}); err != nil {
			return err
		}
		if _, err := s.read(ctx, id, 0); err != nil {
			return nil //nolint:nilerr // it was removed already
		}
	}
	return nil
}

// fork runs a script as a child of this process, which must write so many bytes.
func fork(ctx context.Context, script string, want int64) error {
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n, err := io.Copy(struct{ io.Writer }{io.Discard}, out)
	if waitErr := cmd.Wait(); err == nil {
		err = waitErr
	}
	if err == nil && n != want {
		err = fmt.Errorf("%s wrote %d bytes, not %d", script, n, want)
	}
	return err
}

// BenchmarkJob measures a trivial job from the request to its end, so many at once, beside the same script
// as a child of this process.
func BenchmarkJob(b *testing.B) {
	for _, at := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("at-once=%d", at), func(b *testing.B) {
			s := newServe(b)
			r := inTurns(b, []candidate{
				together("job", at, func() error { return s.do(b.Context(), trivial, 3) }),
				together("fork", at, func() error { return fork(b.Context(), trivial, 3) }),
			})
			r.latencies("ms", "job", "fork")
			r.medians("/s", "job-rate", "fork-rate")
			r.ratios("fork", "job")
		})
	}
}

// together measures do when it is called by so many at once: how long each takes, in milliseconds, and how many
// are done in a second.
func together(name string, at int, do func() error) candidate {
	return candidate{name: name, run: func(r *results) error {
		var mu sync.Mutex // guards r
		var group errgroup.Group
		began := time.Now()
		for range at {
			group.Go(func() error {
				begin := time.Now()
				err := do()
				took := millis(time.Since(begin))
				mu.Lock()
				defer mu.Unlock()
				r.add(name, took)
				return err
			})
		}
		err := group.Wait()
		r.add(name+"-rate", float64(at)/time.Since(began).Seconds())
		return err
	}}
}

// BenchmarkJobsInARow measures how many trivial jobs a step runner does in a second when there is always one
// to be done for each of 16 callers.
func BenchmarkJobsInARow(b *testing.B) {
	const jobs = 500
	s := newServe(b)
	row := func(name string, do func() error) candidate {
		return candidate{name: name, run: func(r *results) error {
			begin := time.Now()
			err := withOpeners(jobs, do)
			r.add(name, jobs/time.Since(begin).Seconds())
			return err
		}}
	}
	r := inTurns(b, []candidate{
		row("job", func() error { return s.do(b.Context(), trivial, 3) }),
		row("fork", func() error { return fork(b.Context(), trivial, 3) }),
	})
	r.medians("/s", "job", "fork")
	r.ratios("fork", "job")
}

// BenchmarkLog measures output on its way from a job to who follows it: lines that are written one by one, and
// as much as the log takes, beside a pipe to this process.
func BenchmarkLog(b *testing.B) {
	b.Run("lines=20000", func(b *testing.B) {
		const script = "for ((i = 100000; i < 120000; i++)); do echo line $i; done"
		const size = 20_000 * int64(len("line 100000\n"))
		s := newServe(b)
		r := inTurns(b, []candidate{
			together("job", 1, func() error { return s.do(b.Context(), script, size) }),
			together("fork", 1, func() error { return fork(b.Context(), script, size) }),
		})
		r.latencies("ms", "job", "fork")
		r.ratios("fork", "job")
	})
	b.Run("GiB=1", func(b *testing.B) {
		// A log takes a quarter of that.
		const quarter = 256 << 20
		script := fmt.Sprintf("head -c %d /dev/zero", quarter)
		s := newServe(b)
		r := inTurns(b, []candidate{
			throughput("job", 4*quarter, func() error {
				for range 4 {
					id, err := s.start(b.Context(), script)
					if err != nil {
						return err
					}
					if n, err := s.read(b.Context(), id, 0); err != nil || n != quarter {
						return fmt.Errorf("read %d bytes, not %d: %w", n, quarter, err)
					}
					if err := s.forget(b.Context(), id); err != nil {
						return err
					}
				}
				return nil
			}),
			throughput("pipe", 4*quarter, func() error {
				for range 4 {
					if err := fork(b.Context(), script, quarter); err != nil {
						return err
					}
				}
				return nil
			}),
		})
		r.medians("MB/s", "job", "pipe")
		r.ratios("pipe", "job")
	})
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

// BenchmarkFlood measures a trivial job beside one that floods its log with more than that takes, in relation to
// one that is alone; and the same script as a child of this process, which tells what is left of the processors
// for anybody. Beside the flood the job should take twice as long at most.
func BenchmarkFlood(b *testing.B) {
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
	r := inTurns(b, all)
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

// BenchmarkServeMemory measures the memory of a step runner that has done so many jobs: it should not grow once
// there are more than it remembers, which are 1,000.
func BenchmarkServeMemory(b *testing.B) {
	const slice, slices = 1000, 10
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

// BenchmarkCrowd measures 500 jobs that run on one step runner at the same time: from the first request until all
// of them run, until all of them have ended after they were let go, and what it takes of memory while they are there.
func BenchmarkCrowd(b *testing.B) {
	const jobs = 500
	s := newServe(b)
	r := inTurns(b, []candidate{{name: "crowd", run: func(r *results) error {
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

// BenchmarkCompile measures the compilation of a job of 1,000 steps, each of which reads what the one before
// gave. It should take less than 50 ms.
func BenchmarkCompile(b *testing.B) {
	var text strings.Builder
	text.WriteString("run:\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "- name: step%d\n  step: ./lib/step\n  env: {NUMBER: \"%d\"}\n  inputs:\n    message: \"hello ${{ vars.NAME }}\"\n", i, i)
		if i > 0 {
			fmt.Fprintf(&text, "    before: ${{ steps.step%d.outputs.value }}\n", i-1)
		}
	}
	r := inTurns(b, []candidate{together("compile", 1, func() error {
		_, err := steps.Parse("job.yml", []byte(text.String()))
		return err
	})})
	r.latencies("ms", "compile")
}

// rss returns the resident memory of a process, in MB.
func rss(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0, fmt.Errorf("read /proc/%d/statm: %q", pid, data)
	}
	pages, err := strconv.Atoi(fields[1])
	return float64(pages*os.Getpagesize()) / mega, err
}

func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
