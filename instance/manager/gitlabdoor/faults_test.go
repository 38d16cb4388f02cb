package gitlabdoor

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
)

// prints is a build that prints a line every 10 seconds, 30 times.
func prints(ctx context.Context, log *buildLog) {
	for i := range 30 {
		log.write(fmt.Sprintf("line %d\n", i))
		if pause.For(ctx, 10*time.Second) != nil {
			return
		}
	}
}

// whole is the trace of prints.
func whole() string {
	var all strings.Builder
	for i := range 30 {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	return "\x1b[36;1mPreparing environment\x1b[0;m\n" + all.String() + "\x1b[32;1mJob succeeded\x1b[0;m\n"
}

// phase is a phase of a job, by the call that it makes.
type phase struct {
	name string
	is   func(req *http.Request, body string) bool
}

func phases() []phase {
	put := func(states ...string) func(*http.Request, string) bool {
		return func(req *http.Request, body string) bool {
			for _, state := range states {
				if req.Method == http.MethodPut && strings.Contains(body, `"state":"`+state+`"`) {
					return true
				}
			}
			return false
		}
	}
	ends := func(path string) func(*http.Request, string) bool {
		return func(req *http.Request, _ string) bool { return strings.HasSuffix(req.URL.Path, path) }
	}
	return []phase{
		{"verify", ends("/runners/verify")},
		{"request", ends("/jobs/request")},
		{"acknowledge", put("pending")},
		{"start", put("running")},
		{"trace", ends("/trace")},
		{"final state", put("success", "failed")},
	}
}

// ended waits for the final state of a job, or of the one that took its place.
func (h *host) ended(id int64) gitlabtest.Job {
	h.t.Helper()
	for range 4 * 3600 {
		j := h.fake.Job(id)
		switch {
		case j.Retry > 0:
			id = j.Retry
		case j.Final > 0 && j.Status != gitlabtest.Running:
			synctest.Wait() // the manager has its answer
			return j
		}
		time.Sleep(time.Second) //nolint:forbidigo // of the bubble
	}
	require.Fail(h.t, "the job does not end", "%+v", h.fake.Job(id))
	return gitlabtest.Job{}
}

// once is a fault of the first call that is of a phase.
func (p phase) once(fault gitlabtest.Fault) func(*http.Request, []byte) *gitlabtest.Fault {
	used := false
	return func(req *http.Request, body []byte) *gitlabtest.Fault {
		if used || !p.is(req, string(body)) {
			return nil
		}
		used = true
		return &fault
	}
}

// A server may refuse each call once, in each way that it knows: the job runs once, and its trace and state arrive.
func TestEachRefusalOfACallIsAnswered(t *testing.T) {
	t.Parallel()
	retry := http.Header{"Retry-After": {"7"}}
	for _, p := range phases() {
		for _, fault := range []gitlabtest.Fault{
			{Status: http.StatusTooManyRequests, Header: retry},
			{Status: http.StatusConflict},
			{Status: http.StatusForbidden, Header: http.Header{"Content-Type": {"text/html"}}}, // by a proxy
			{Status: http.StatusInternalServerError, Acts: p.name != "request"},
		} {
			t.Run(fmt.Sprintf("%s/%d", p.name, fault.Status), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h := newHost(t, gitlabtest.Config{Acknowledges: true, Interval: 5 * time.Second}, prints)
					h.fake.FailBody(p.once(fault))
					h.serve()
					got := h.ended(h.fake.Add(gitlabtest.Script("true")))
					require.Equal(t, gitlabtest.Success, got.Status)
					require.Equal(t, whole(), shown(t, got.Trace))
					require.Equal(t, 1, h.count())
				})
			})
		}
	}
}

// The server has another trace than the manager: it has lost the end of it (416), or finds it wrong at the end (412).
func TestATraceThatTheServerLosesIsSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, gitlabtest.Config{Interval: 5 * time.Second}, prints)
		cut := 0
		h.fake.FailBody(func(req *http.Request, body []byte) *gitlabtest.Fault {
			if id := int64(1); req.Method == http.MethodPatch && cut == 0 && len(h.fake.Job(id).Trace) > 20 {
				cut = len(h.fake.Job(id).Trace)
				h.fake.Cut(id, 9)
			} else if strings.Contains(string(body), `"success"`) && h.fake.Job(id).Final == 0 {
				h.fake.Cut(id, 100)
			}
			return nil
		})
		h.serve()
		got := h.ended(h.fake.Add(gitlabtest.Script("true")))
		require.Equal(t, whole(), shown(t, got.Trace))
		require.Positive(t, cut)
		require.Equal(t, 2, got.Final)
		statuses := map[int]int{}
		for _, c := range h.fake.Calls() {
			statuses[c.Status]++
		}
		require.Equal(t, 1, statuses[http.StatusRequestedRangeNotSatisfiable])
		require.Equal(t, 1, statuses[http.StatusPreconditionFailed])
	})
}

// The clock of this machine and that of the server differ by hours. A time until which the server refuses calls
// counts by its own clock.
func TestAClockThatJumpsDelaysNothing(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			h := newHost(t, gitlabtest.Config{Interval: 5 * time.Second}, prints)
			at := time.Now().Add(off).UTC()
			header := http.Header{
				"Date":                {at.Format(http.TimeFormat)},
				"Ratelimit-Resettime": {at.Add(20 * time.Second).Format(http.TimeFormat)},
			}
			h.fake.FailBody(phases()[4].once(gitlabtest.Fault{Status: http.StatusTooManyRequests, Header: header}))
			h.serve()
			got := h.ended(h.fake.Add(gitlabtest.Script("true")))
			require.Equal(t, whole(), shown(t, got.Trace))
			var pieces []time.Time
			for _, c := range h.fake.Calls() {
				if c.Method == http.MethodPatch {
					pieces = append(pieces, c.At)
				}
			}
			require.Equal(t, 20*time.Second, pieces[1].Sub(pieces[0]).Round(time.Second))
		})
	}
}

// A slot is not kept while the server refuses questions for a time.
func TestAServerThatIsAskedTooOftenKeepsNoSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, gitlabtest.Config{Hold: -1}, prints)
		h.fake.FailBody(phases()[1].once(gitlabtest.Fault{
			Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"60"}},
		}))
		h.serve()
		time.Sleep(30 * time.Second) //nolint:forbidigo // of the bubble
		require.Empty(t, h.slots)
		require.Equal(t, 2, len(h.fake.Calls()), "verify, and one question")
		got := h.ended(h.fake.Add(gitlabtest.Script("true")))
		require.Equal(t, gitlabtest.Success, got.Status)
	})
}

// The token of the runner is revoked while a job runs, which has a token of its own: the job goes on to its end. The
// operator sees the reason, and with another token the next job comes.
func TestATokenThatIsRevokedEndsNoJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, gitlabtest.Config{Interval: 5 * time.Second}, prints)
		d := h.serve()
		id := h.fake.Add(gitlabtest.Script("true"))
		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
		h.fake.Revoke()
		time.Sleep(2 * time.Minute) //nolint:forbidigo // of the bubble: a question may have been held
		require.Equal(t, jobdoor.Away, d.Standing().State)
		require.Contains(t, d.Standing().Reason, "the token is none of a runner there")
		require.EqualValues(t, 1, d.Standing().Jobs)
		got := h.ended(id)
		require.Equal(t, gitlabtest.Success, got.Status)
		require.Equal(t, whole(), shown(t, got.Trace))
		require.Equal(t, jobdoor.Away, d.Standing().State)
		h.fake.Renew()
		require.Equal(t, gitlabtest.Success, h.ended(h.fake.Add(gitlabtest.Script("true"))).Status)
		require.Equal(t, jobdoor.Ready, d.Standing().State)
	})
}

// The server is away for an hour, from a phase of a job on: its call breaks, before or after the server has acted on
// it, or the proxy before it answers. The job runs once, and its trace and its state arrive when the server is back.
// It is called less than ten times a minute until then, and the operator sees why.
//
//stepmux:faults users | A GitLab is away for an hour in any phase of a job, refuses calls, or ends the job: it runs
//stepmux:more once, its trace arrives, and its slot is free
//stepmux:with instance/manager/gitlabdoor.TestEachRefusalOfACallIsAnswered
//stepmux:with instance/manager.TestAJobThatGitLabHasEndedEndsOnTheVM
func TestAServerThatIsAwayForAnHourLosesNoJob(t *testing.T) {
	t.Parallel()
	for i, p := range phases() {
		for _, how := range []gitlabtest.Fault{{}, {Acts: true}, {Status: http.StatusBadGateway}} {
			// The job of an answer that is lost is lost as well, unless the server waits for an acknowledgement.
			acknowledges := i%2 == 0 || p.name == "request"
			t.Run(fmt.Sprintf("%s/acts=%v,status=%d", p.name, how.Acts, how.Status), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { beAway(t, p, how, acknowledges) })
			})
		}
	}
}

func beAway(t *testing.T, p phase, how gitlabtest.Fault, acknowledges bool) {
	t.Helper()
	h := newHost(t, gitlabtest.Config{Acknowledges: acknowledges, Interval: 5 * time.Second}, prints)
	var since time.Time
	calls := 0
	h.fake.FailBody(func(req *http.Request, body []byte) *gitlabtest.Fault {
		if since.IsZero() && p.is(req, string(body)) {
			since = time.Now()
			return &how
		}
		if since.IsZero() || time.Since(since) > time.Hour {
			return nil
		}
		calls++
		return &gitlabtest.Fault{Status: how.Status}
	})
	d := h.serve()
	id := h.fake.Add(gitlabtest.Script("true"))
	time.Sleep(30 * time.Minute) //nolint:forbidigo // of the bubble
	standing := d.Standing()
	require.Equal(t, jobdoor.Away, standing.State)
	require.NotEmpty(t, standing.Reason)
	time.Sleep(35 * time.Minute) //nolint:forbidigo // of the bubble
	got := h.ended(id)
	require.Equal(t, gitlabtest.Success, got.Status)
	require.Equal(t, whole(), shown(t, got.Trace))
	require.Equal(t, 1, h.count(), "it runs once")
	require.LessOrEqual(t, got.Final, 2, "one whose answer was lost is told again")
	time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
	require.Equal(t, jobdoor.Ready, d.Standing().State, "%+v", d.Standing())
	require.Less(t, calls, 600)
}
