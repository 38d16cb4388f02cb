package gitlabdoor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
)

// buildLog is the log of a build, as the manager stores it.
type buildLog struct {
	mu    sync.Mutex
	text  []byte
	ended bool
	grown chan struct{}
	piece int // the size of the pieces in which it is read; 0: as much as there is
}

func newLog(text string) *buildLog { return &buildLog{text: []byte(text), grown: make(chan struct{})} }

func (l *buildLog) write(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, text...)
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *buildLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	close(l.grown)
	l.grown = make(chan struct{})
}

// read is a source.
func (l *buildLog) read(ctx context.Context, offset int64, follow bool, take func([]byte) error) error {
	for {
		l.mu.Lock()
		text, ended, grown := l.text[min(offset, int64(len(l.text))):], l.ended, l.grown
		l.mu.Unlock()
		for len(text) > 0 {
			n := len(text)
			if l.piece > 0 {
				n = min(n, l.piece)
			}
			if err := take(text[:n]); err != nil {
				return err
			}
			text = text[n:]
			offset += int64(n)
		}
		if !follow || ended {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reported is a job whose report a test drives.
type reported struct {
	t      *testing.T
	fake   *gitlabtest.Fake
	client *Client
	job    *Job
	log    *buildLog
	report *report
	kept   position
	cancel int

	mu    sync.Mutex // guards the following
	fails []error
}

func newReported(t *testing.T, cfg gitlabtest.Config, log *buildLog) *reported {
	fake := gitlabtest.New(cfg)
	r := &reported{t: t, fake: fake, client: newClient(t, fake), log: log}
	r.job = take(t, fake, r.client)
	r.begin()
	return r
}

// begin begins a report where the last one was kept.
func (r *reported) begin() {
	r.report = newReport(r.client, r.job, r.log.read, r.kept)
	r.report.keep = func(p position) {
		require.LessOrEqual(r.t, p.Offset, int64(len(r.fake.Job(r.job.ID).Trace)), "the server has it")
		r.kept = p
	}
	r.report.cancel = func() bool {
		r.cancel++
		return true
	}
	r.report.fails = func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.fails = append(r.fails, err)
	}
}

// after lets something happen after a time.
func (r *reported) after(d time.Duration, do func()) { time.AfterFunc(d, do) }

// whole reports the job to its end.
func (r *reported) whole(final Update) {
	r.t.Helper()
	known, err := r.report.follow(r.t.Context())
	require.NoError(r.t, err)
	require.True(r.t, known)
	require.NoError(r.t, r.report.finish(r.t.Context(), final))
}

// requireWhole requires that the server has the trace and the state.
func (r *reported) requireWhole(status string) {
	r.t.Helper()
	j := r.fake.Job(r.job.ID)
	require.Equal(r.t, status, j.Status)
	require.True(r.t, bytes.Equal(r.log.text, j.Trace), "%d bytes, not %d", len(j.Trace), len(r.log.text))
}

// calls returns the calls of a method after the request for the job, with the seconds since the begin.
func (r *reported) calls(method string, began time.Time) (at []time.Duration) {
	for _, c := range r.fake.Calls() {
		if c.Method == method {
			at = append(at, c.At.Sub(began).Round(time.Millisecond))
		}
	}
	return at
}

// The first piece is sent at once, further ones in the server's interval, and the rest at the end.
func TestTheTraceIsSentInTheServersInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReported(t, gitlabtest.Config{Interval: 10 * time.Second, Later: 2}, newLog(""))
		began := time.Now()
		r.after(2*time.Second, func() { r.log.write("first\n") })
		for i := range 25 {
			r.after(time.Duration(3+i)*time.Second, func() { r.log.write(fmt.Sprintf("line %d\n", i)) })
		}
		r.after(28*time.Second, r.log.end)
		r.whole(Update{State: Success})
		r.requireWhole(gitlabtest.Success)
		require.Equal(t, []time.Duration{2 * time.Second, 12 * time.Second, 22 * time.Second, 28 * time.Second},
			r.calls(http.MethodPatch, began))
		require.Equal(t, []time.Duration{28 * time.Second, 29 * time.Second, 30 * time.Second},
			r.calls(http.MethodPut, began), "the server asks for a second between them")
	})
}

// A job that says nothing gives a sign of life each 30 seconds, whose answer tells of a cancel.
func TestASilentJobGivesSignsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReported(t, gitlabtest.Config{}, newLog(""))
		began := time.Now()
		r.after(70*time.Second, func() { r.fake.Cancel(r.job.ID) })
		r.report.cancel = func() bool {
			r.cancel++
			require.Equal(t, 90*time.Second, time.Since(began))
			r.after(5*time.Second, func() { // after_script
				r.log.write("after_script\n")
				r.log.end()
			})
			return true
		}
		r.whole(Update{State: Failed, Reason: "script_failure", ExitCode: 1})
		r.requireWhole(gitlabtest.Canceled)
		require.Equal(t, 1, r.cancel)
		require.Equal(t, []time.Duration{30 * time.Second, 60 * time.Second, 90 * time.Second, 95 * time.Second},
			r.calls(http.MethodPut, began))
	})
}

// A job that the server has ended is reported no more.
func TestAJobThatTheServerHasEndedIsReportedNoMore(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(r *reported)
	}{
		{"canceled", func(r *reported) { r.fake.End(r.job.ID, gitlabtest.Canceled) }},
		{"failed", func(r *reported) { r.fake.End(r.job.ID, gitlabtest.Failed) }},
		{"over the limit", func(r *reported) { r.log.write(strings.Repeat("x", 2000)) }},
		{"not found", func(r *reported) { r.fake.Fail(answer(http.StatusNotFound, `{"error":"404 Not Found"}`)) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReported(t, gitlabtest.Config{MaxTrace: 1000}, newLog("first\n"))
				r.after(5*time.Second, func() { test.end(r) })
				known, err := r.report.follow(t.Context())
				require.NoError(t, err)
				require.False(t, known)
				require.Zero(t, r.cancel)
				count := len(r.fake.Calls())
				require.NoError(t, r.report.finish(t.Context(), Update{State: Failed}))
				require.LessOrEqual(t, len(r.fake.Calls()), count+1)
			})
		})
	}
}

// The trace arrives whole, and its checksum is right, whatever the server loses, refuses or asks for.
func TestTheTraceIsRepaired(t *testing.T) {
	lines := func(n int) string { return strings.Repeat("a line of the log\n", n) }
	for _, test := range []struct {
		name   string
		cfg    gitlabtest.Config
		log    string
		piece  int
		hurt   func(r *reported)
		status int // of an answer that there is; 0: any
	}{
		{"a large one", gitlabtest.Config{}, lines(130_000), 1000, func(*reported) {}, 202},
		{"an empty one", gitlabtest.Config{}, "", 0, func(*reported) {}, 0},
		{"the server loses a part", gitlabtest.Config{}, lines(10), 7, func(r *reported) {
			r.after(2*time.Second, func() {
				r.fake.Cut(r.job.ID, 33)
				r.log.write("more\n")
			})
		}, 416},
		{"the server loses all", gitlabtest.Config{}, lines(10), 7, func(r *reported) {
			r.after(2*time.Second, func() { r.fake.Cut(r.job.ID, 0) })
		}, 412},
		{"the kept checksum is wrong", gitlabtest.Config{}, lines(10), 7, func(r *reported) {
			reply, err := r.client.Patch(r.t.Context(), r.job, 0, []byte(lines(3)))
			require.NoError(r.t, err)
			r.kept = position{reply.Size, 12345}
			r.begin()
		}, 412},
		{"the server has more than was kept", gitlabtest.Config{}, lines(10), 7, func(r *reported) {
			_, err := r.client.Patch(r.t.Context(), r.job, 0, []byte(lines(9)))
			require.NoError(r.t, err)
			r.kept = position{7, crc32.ChecksumIEEE([]byte(lines(1)[:7]))}
			r.begin()
		}, 416},
		{"answers are lost", gitlabtest.Config{}, lines(10), 7, func(r *reported) {
			n := 0
			r.fake.Fail(func(*http.Request) *gitlabtest.Fault {
				if n++; n%2 == 0 || n > 12 {
					return nil
				}
				return &gitlabtest.Fault{Acts: n%3 > 0}
			})
		}, 0},
		{"the state is accepted later", gitlabtest.Config{Later: 3}, lines(10), 7, func(*reported) {}, 202},
		{"the server is away for an hour", gitlabtest.Config{}, lines(10), 7, func(r *reported) {
			away := time.Now().Add(time.Second)
			r.fake.Fail(func(*http.Request) *gitlabtest.Fault {
				if since := time.Since(away); since < 0 || since > time.Hour {
					return nil
				}
				return &gitlabtest.Fault{Status: http.StatusBadGateway}
			})
		}, 502},
		{"a proxy takes small pieces", gitlabtest.Config{}, lines(50_000), 5000, func(r *reported) {
			r.fake.Fail(func(req *http.Request) *gitlabtest.Fault {
				if req.ContentLength <= 100_000 {
					return nil
				}
				return &gitlabtest.Fault{
					Status: http.StatusRequestEntityTooLarge, Header: http.Header{"Content-Type": {"text/html"}},
				}
			})
		}, 413},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := newLog(test.log)
				log.piece = test.piece
				r := newReported(t, test.cfg, log)
				test.hurt(r)
				r.after(10*time.Second, log.end)
				r.whole(Update{State: Success})
				r.requireWhole(gitlabtest.Success)
				seen := test.status == 0
				for _, c := range r.fake.Calls() {
					seen = seen || c.Status == test.status
				}
				require.True(t, seen, "there was no %d", test.status)
				require.Equal(t, position{int64(len(log.text)), crc32.ChecksumIEEE(log.text)}, r.kept)
			})
		})
	}
}

// A server whose trace never has the right checksum, for instance because it masks more, gets the state without one.
func TestAnEndlesslyWrongTraceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReported(t, gitlabtest.Config{}, newLog("first\n"))
		n := 0
		r.fake.Fail(func(req *http.Request) *gitlabtest.Fault {
			if req.Method != http.MethodPut {
				return nil
			}
			if n++; n > maxResends+1 {
				return nil
			}
			return &gitlabtest.Fault{Status: http.StatusPreconditionFailed}
		})
		r.log.end()
		r.whole(Update{State: Success})
		require.Equal(t, gitlabtest.Success, r.fake.Job(r.job.ID).Status)
		calls := r.fake.Calls()
		require.NotContains(t, string(calls[len(calls)-1].Body), "crc32")
	})
}

// A server that says nonsense about its trace is asked at growing intervals, not as fast as it answers.
func TestAServerThatTakesNoPieceIsAskedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReported(t, gitlabtest.Config{}, newLog(strings.Repeat("a line\n", 100)))
		n := 0
		r.fake.Fail(func(*http.Request) *gitlabtest.Fault {
			n++
			return &gitlabtest.Fault{
				Status: http.StatusRequestedRangeNotSatisfiable, Header: http.Header{"Range": {fmt.Sprintf("0-%d", n%2)}},
			}
		})
		r.log.end()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.ErrorIs(t, r.report.finish(ctx, Update{State: Success}), context.DeadlineExceeded)
		require.Less(t, n, 200)
		require.ErrorContains(t, r.fails[0], "did not take the next ones")
	})
}

// A manager that is killed at any call, before or after the server has served it, and before or after its place is
// kept, goes on: each byte is in the trace once, and the checksum is right.
func TestAReportThatIsKilledGoesOn(t *testing.T) {
	calls := killAt(t, -1, false, false)
	require.Greater(t, calls, 10)
	for n := range calls {
		for _, acts := range []bool{false, true} {
			for _, forgets := range []bool{false, true} {
				killAt(t, n, acts, forgets)
			}
		}
	}
}

// killAt reports a job whose manager is killed at a call, and returns the number of calls.
func killAt(t *testing.T, at int, acts, forgets bool) (calls int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(uint64(at), 7))
		log := newLog("")
		log.piece = 100
		r := newReported(t, gitlabtest.Config{Interval: 2 * time.Second, Later: 2}, log)
		for i := range 20 {
			text := strings.Repeat(fmt.Sprintf("line %d\n", i), random.IntN(50))
			r.after(time.Duration(random.IntN(20_000))*time.Millisecond, func() { log.write(text) })
		}
		r.after(21*time.Second, log.end)
		killed := errors.New("killed")
		ctx, kill := context.WithCancelCause(t.Context())
		r.fake.Fail(func(*http.Request) *gitlabtest.Fault {
			if calls++; calls-1 != at {
				return nil
			}
			kill(killed)
			return &gitlabtest.Fault{Acts: acts}
		})
		run := func() error {
			keep := r.report.keep
			r.report.keep = func(p position) {
				if !forgets || at < 0 || calls <= at-2 { // the disk has an older place
					keep(p)
				}
			}
			r.report.size = 700
			known, err := r.report.follow(ctx)
			if err != nil || !known {
				return err
			}
			return r.report.finish(ctx, Update{State: Success})
		}
		if err := run(); err != nil {
			require.ErrorIs(t, err, killed)
			ctx, forgets = t.Context(), false
			require.NoError(t, pause.For(t.Context(), 5*time.Second))
			r.begin()
			require.NoError(t, run())
		}
		r.requireWhole(gitlabtest.Success)
		for _, c := range r.fake.Calls() {
			require.NotEqual(t, http.StatusPreconditionFailed, c.Status, "the checksum was wrong")
		}
	})
	return calls
}

// Whatever happens to calls, to the server's trace and to the manager, and in whatever order: the trace arrives whole.
func TestTheTraceSurvivesFaultsOfAllKinds(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) { survive(t, rand.New(rand.NewPCG(seed, 11))) })
	}
}

func survive(t *testing.T, random *rand.Rand) {
	t.Helper()
	log := newLog("")
	log.piece = 1 + random.IntN(200)
	cfg := gitlabtest.Config{Interval: time.Duration(1+random.IntN(5)) * time.Second, Later: random.IntN(3)}
	r := newReported(t, cfg, log)
	for i := range 30 {
		text := strings.Repeat(fmt.Sprintf("line %d\n", i), random.IntN(80))
		r.after(time.Duration(random.IntN(120_000))*time.Millisecond, func() { log.write(text) })
	}
	r.after(2*time.Minute, log.end)
	var mu sync.Mutex // guards the following, beside random
	kill := func() {}
	r.fake.Fail(func(*http.Request) *gitlabtest.Fault {
		mu.Lock()
		defer mu.Unlock()
		switch random.IntN(12) {
		case 0:
			return &gitlabtest.Fault{Acts: random.IntN(2) == 0}
		case 1:
			return &gitlabtest.Fault{Status: http.StatusBadGateway, Acts: random.IntN(2) == 0}
		case 2:
			return &gitlabtest.Fault{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"9"}}}
		case 3:
			return &gitlabtest.Fault{Status: http.StatusRequestEntityTooLarge}
		case 4:
			if j := r.fake.Job(r.job.ID); len(j.Trace) > 0 && j.Status == gitlabtest.Running {
				r.fake.Cut(r.job.ID, random.IntN(len(j.Trace)))
			}
		case 5:
			kill()
		}
		return nil
	})
	life := func() (ended bool) { // of a manager
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		mu.Lock()
		kill = cancel
		r.begin()
		r.report.keep = func(p position) { r.kept = p }
		r.report.size = 100 + random.IntN(2000)
		mu.Unlock()
		known, err := r.report.follow(ctx)
		if err == nil && known {
			err = r.report.finish(ctx, Update{State: Success})
		}
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
		return err == nil
	}
	for !life() {
	}
	r.requireWhole(gitlabtest.Success)
	require.Less(t, len(r.fake.Calls()), 2000)
}

// A store may tell of bytes before it has them for all: the report does not ask for them again and again.
func TestATraceThatIsNotThereYetIsReadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReported(t, gitlabtest.Config{}, newLog("first\n"))
		reads, began := 0, time.Now()
		r.report.trace = func(ctx context.Context, offset int64, follow bool, take func([]byte) error) error {
			if !follow {
				if reads++; time.Since(began) < 10*time.Second {
					return nil
				}
			}
			return r.log.read(ctx, offset, follow, take)
		}
		r.after(20*time.Second, r.log.end)
		r.whole(Update{State: Success})
		r.requireWhole(gitlabtest.Success)
		require.Less(t, reads, 10)
	})
}

// However many jobs there are, few pieces are in memory.
func TestPiecesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReported(t, gitlabtest.Config{}, newLog(strings.Repeat("a line\n", 1000)))
		release := make(chan struct{})
		r.fake.Fail(func(req *http.Request) *gitlabtest.Fault {
			<-release
			return nil
		})
		var jobs sync.WaitGroup
		for range 3 * maxPieces {
			job := newReport(r.client, r.job, r.log.read, position{})
			jobs.Go(func() { _, _, _ = job.send(t.Context()) })
		}
		synctest.Wait()
		require.Len(t, r.client.pieces, maxPieces)
		close(release)
		jobs.Wait()
		require.Empty(t, r.client.pieces)
	})
}
