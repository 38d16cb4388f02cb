package manager_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// The tests of this file measure a manager. make prove WHAT=scale makes them large; here they show that each way ends
// well.

// builds are those of a batch, as stepmux run has them.
func builds(n int, j *pb.SubmitRequest, log func() *timedLog) (all []batch.Build) {
	for i := range n {
		all = append(all, batch.Build{
			ID: fmt.Sprintf("build-%d", i), Log: log(),
			Job: connector.Job{Job: &stepmuxv1.Job{Steps: j.GetJob().GetSteps(), StepsFile: j.GetJob().GetStepsFile()}},
		})
	}
	return all
}

// timedLog counts bytes and notes when the first one came.
type timedLog struct {
	first time.Time
	bytes int
}

func (l *timedLog) Write(p []byte) (int, error) {
	if l.first.IsZero() {
		l.first = time.Now()
	}
	l.bytes += len(p)
	return len(p), nil
}

func (l *timedLog) Close() error { return nil }

// runner returns a provider of its own for the VM of a fleet, as stepmux run has one.
func (f *fleet) runner(t *testing.T) *instance.Provider {
	t.Helper()
	_, p, err := f.openGroup(t)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// A submit is compared with a build of run, on the same VM, in turn.
func TestMeasureASubmitToItsFirstOutput(t *testing.T) {
	pairs := number(t, "STEPMUX_SCALE_PAIRS", 2)
	f := newFleetOn(t, sshtest.OpenSSH(t))
	f.capacity = 1
	m, p := f.start(t), f.runner(t)
	j := job("echo x")
	byRun := func() time.Duration {
		log, start := &timedLog{}, time.Now()
		reports := batch.Run(t.Context(), t.Context(), p, batch.Batch{Builds: builds(1, j, func() *timedLog { return log })})
		require.Nil(t, reports[0].Err)
		return log.first.Sub(start)
	}
	bySubmit := func() time.Duration {
		start := time.Now()
		id := m.submit("echo x")
		stream, err := m.Follow(t.Context(), &pb.FollowRequest{Id: id, Follow: true})
		require.NoError(t, err)
		var took time.Duration
		for {
			msg, err := stream.Recv()
			require.NoError(t, err)
			if took == 0 && len(msg.GetText()) > 0 {
				took = time.Since(start)
			}
			if msg.GetBuild() != nil {
				return took
			}
		}
	}
	var runs, submits, more []time.Duration
	for i := range pairs + 5 {
		run, submit := byRun(), bySubmit()
		if i >= 5 { // connections and step runners that are started ahead are there
			runs, submits, more = append(runs, run), append(submits, submit), append(more, submit-run)
		}
	}
	t.Logf("first output after p50 %v by run, %v by submit; paired difference p50 %v, p25 %v, p75 %v",
		part(runs, 2), part(submits, 2), part(more, 2), part(more, 4), part(more, 4, 3))
}

// part returns the value that a part of all are below: 1/of, or times/of.
func part(all []time.Duration, of int, times ...int) time.Duration {
	all = slices.Sorted(slices.Values(all))
	n := len(all) / of
	if len(times) > 0 {
		n *= times[0]
	}
	return all[n].Round(10 * time.Microsecond)
}

// span is the time from the end of the first build of a round to that of the last. So it has no part in it that a round
// has once, as a connection to the VM: a drain closes that.
type span struct {
	mu          sync.Mutex // guards the following
	first, last time.Time
	builds      int
	ended       chan struct{} // gets a value for each build
}

func (s *span) end(batch.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
	if s.builds == 0 {
		s.first = s.last
	}
	s.builds++
	s.ended <- struct{}{}
}

// through waits for the ends of n builds, and returns their span.
func (s *span) through(n int) time.Duration {
	for range n {
		<-s.ended
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.builds = 0
	return s.last.Sub(s.first)
}

func TestMeasureTrivialBuilds(t *testing.T) {
	n := number(t, "STEPMUX_SCALE_BUILDS", 32)
	rounds := max(2, n/10000) // each way, in turn
	round := n / rounds / 8 * 8
	f := newFleetOn(t, sshtest.OpenSSH(t))
	f.capacity = 8
	s := &span{ended: make(chan struct{}, round)}
	f.change = func(cfg *manager.Config) { cfg.OnEnd = s.end }
	m, p := f.start(t), f.runner(t)
	submit := func() {
		var submitting sync.WaitGroup
		for range 8 {
			submitting.Go(func() {
				for range round / 8 {
					m.submit("true")
				}
			})
		}
		submitting.Wait()
	}
	vm := []string{"vm-1"}
	var byRun, queued, submitted time.Duration
	for range rounds {
		for _, r := range batch.Run(t.Context(), t.Context(), p, batch.Batch{
			Builds: builds(round, job("true"), func() *timedLog { return &timedLog{} }), OnEnd: s.end,
		}) {
			require.Nil(t, r.Err)
		}
		byRun += s.through(round)

		_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: vm})
		require.NoError(t, err)
		submit()
		_, err = m.Undrain(t.Context(), &pb.UndrainRequest{Instances: vm})
		require.NoError(t, err)
		queued += s.through(round)

		submit()
		submitted += s.through(round)
	}
	rate := func(took time.Duration) float64 { return float64((round-1)*rounds) / took.Seconds() }
	t.Logf("%d builds, 8 at once: %.1f a second by run; %.1f from the queue: %.2f of it; %.1f submitted meanwhile: %.2f",
		n, rate(byRun), rate(queued), rate(queued)/rate(byRun), rate(submitted), rate(submitted)/rate(byRun))
}

func TestMeasureALog(t *testing.T) {
	size := number(t, "STEPMUX_SCALE_LOG", 1) << 20
	f := newFleetOn(t, sshtest.OpenSSH(t))
	m, p := f.start(t), f.runner(t)
	script := fmt.Sprintf("yes 'a line of a log, of some sixty bytes, as most of them are' | head -c %d", size)
	var byRun, stored []float64
	for range 3 {
		log, start := &timedLog{}, time.Now()
		reports := batch.Run(t.Context(), t.Context(), p, batch.Batch{
			Builds: builds(1, job(script), func() *timedLog { return log }),
		})
		require.Nil(t, reports[0].Err)
		byRun = append(byRun, float64(log.bytes)/1e6/time.Since(start).Seconds())
		start = time.Now()
		stored = append(stored, float64(m.count(m.submit(script)))/1e6/time.Since(start).Seconds())
	}
	t.Logf("%d MiB of log at %.0f MB/s by run, at %.0f MB/s stored and followed", size>>20, byRun, stored)
}

// count follows a build to its end, and returns the bytes of its log, which it does not keep: neither does timedLog.
func (r *running) count(id string) (n int) {
	r.t.Helper()
	stream, err := r.Follow(r.t.Context(), &pb.FollowRequest{Id: id, Follow: true})
	require.NoError(r.t, err)
	for {
		msg, err := stream.Recv()
		require.NoError(r.t, err)
		n += len(msg.GetText())
		if b := msg.GetBuild(); b != nil {
			require.Empty(r.t, b.GetResult().GetReason())
			return n
		}
	}
}

// keyTime is how long a request that is sent again, with the same key, is known: keyTime of package state.
const keyTime = 2 * time.Minute

func TestMeasureAQueue(t *testing.T) {
	n := number(t, "STEPMUX_SCALE_QUEUE", 1000)
	f := newFleet(t)
	j := job("echo " + strings.Repeat("x", 900)) // a kibibyte in all
	m := f.start(t)
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	m.stop()
	m = f.start(t)
	before := resident(t)
	m.stop()
	start := time.Now()
	text, err := proto.Marshal(j)
	require.NoError(t, err)
	manager.FillQueue(t, f.dir, text, n)
	t.Logf("%d requests were queued in %v, without a sync for each", n, time.Since(start).Round(time.Millisecond))
	start = time.Now()
	m = f.start(t)
	t.Logf("the manager was open after %v", time.Since(start).Round(time.Millisecond))
	list := func() time.Duration {
		start := time.Now()
		all, err := m.List(t.Context(), &pb.ListRequest{Phase: pb.Build_queued, Limit: 100})
		require.NoError(t, err)
		require.EqualValues(t, n, all.GetQueued())
		require.Len(t, all.GetBuilds(), 100)
		return time.Since(start).Round(10 * time.Microsecond)
	}
	first := list()
	var later []time.Duration
	for range 20 {
		later = append(later, list())
	}
	t.Logf("counted, and the first hundred listed, in %v, and then p50 %v; %d MB of memory more than without them",
		first, part(later, 2), (resident(t)-before)>>20)
	if n > 1000 {
		require.NoError(t, pause.For(t.Context(), keyTime))
		t.Logf("%v later, when their keys are forgotten: %d MB more", keyTime, (resident(t)-before)>>20)
	}
}

// number returns that of a variable of the environment, or otherwise.
func number(t *testing.T, name string, otherwise int) (n int) {
	t.Helper()
	if text := os.Getenv(name); text != "" {
		_, err := fmt.Sscan(text, &n)
		require.NoError(t, err)
		return n
	}
	return otherwise
}

// resident returns the memory of this process, in bytes.
func resident(t *testing.T) (n int) {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, ok := bytes.Cut(text, []byte("VmRSS:"))
	require.True(t, ok)
	_, err = fmt.Sscan(string(rest), &n)
	require.NoError(t, err)
	return n << 10
}
