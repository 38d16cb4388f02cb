package gitlabdoor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/mask/tokens"
)

// record is a job that this door has. With it another manager can go on.
type record struct {
	Job    *Job            `json:"job"`
	Answer json.RawMessage `json:"answer"`
	// Marks is the token of the marks in the log, and At is when the job came.
	Marks string    `json:"marks,omitempty"`
	At    time.Time `json:"at"`
	// Runner has facts about the runner at that time.
	Runner runnerFacts `json:"runner"`
	// Refused is why the job cannot run, if that was found out when it came.
	Refused string `json:"refused,omitempty"`
}

// maxRecord bounds a record, in bytes: the store takes no larger ones.
const maxRecord = 4 << 20

// encode returns the record as it is kept. A job that is too large is refused.
func (r *record) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err == nil && len(text) > maxRecord {
		r.Refused = fmt.Sprintf("the job, with its variables, has %d bytes; at most %d can be kept", len(text), maxRecord)
		r.Answer = json.RawMessage("{}")
		text, err = json.Marshal(r)
	}
	return text, err
}

// task runs a job and reports it: run's goroutine makes the calls, and another one watches the pipeline.
type task struct {
	d      *Door
	record *record
	fresh  bool // no manager before has begun with it
	logger *slog.Logger

	mu      sync.Mutex    // guards the following
	changed chan struct{} // closed at the next change
	build   string        // of the job; empty before it has one
	ended   bool          // the job has ended, and has the following
	logged  int64         // the length of its log
	last    []string      // the lines after the log
	final   Update

	shape    *shape       // of the trace
	reasons  []string     // of failures that the server knows
	prefixes []string     // of tokens
	reads    [2]traceRead // of the trace: by the report, and by its watch. Each has one goroutine.
}

func newTask(d *Door, r *record) *task {
	t := &task{d: d, record: r, logger: d.Host().Logger.With("job", r.Job.ID), changed: make(chan struct{})}
	p := &payload{}
	_ = json.Unmarshal(r.Answer, p) // submit tells it
	_, t.shape, _ = p.pipeline(t.origin())
	t.reasons, t.prefixes = p.Features.FailureReasons, p.Features.MaskPrefixes
	return t
}

// origin says where the job comes from.
func (t *task) origin() origin {
	cfg := &t.d.cfg
	return origin{cfg.Name, cfg.URL, t.record.Marks, cfg.Labels, t.record.Runner}
}

// key is that of the pipeline of the job.
func (t *task) key() string {
	return "gitlab." + t.d.cfg.Name + "." + strconv.FormatInt(t.record.Job.ID, 10)
}

// run runs the job and reports it to its end, or until ctx ends: then the next door goes on.
func (t *task) run(ctx context.Context, room jobdoor.Room) {
	defer t.d.numbers.free(t.record.Runner.Number)
	if !t.d.learned.Load() && t.learn(ctx) != nil {
		return
	}
	report := newReport(t.d.client, t.record.Job, t.trace, position{})
	report.fails = func(err error) { t.d.Fails(ctx, "report a job", err) }
	report.cancel = func() bool {
		t.logger.Info("the server cancels the job")
		return t.cancel(ctx)
	}
	if reply, err := report.touch(ctx); err != nil || reply.Verdict == Ended { // it starts the job
		t.giveUp(ctx)
		return
	}
	t.d.Works()
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer stop()
	if report.canceled && t.fresh {
		t.ends("", &jobdoor.Result{Reason: canceled, Message: "the job was cancelled before it started"})
	} else {
		id, err := t.submit(ctx, room)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			t.logger.Warn("a job cannot run", "error", err)
			t.ends("", &jobdoor.Result{Reason: systemFailure, Message: err.Error()})
		default:
			t.logger.Info("job begins", "pipeline", id)
			watcher.Go(func() { t.watch(watching, id) })
			if report.canceled { // there may have been no pipeline yet
				t.cancel(ctx)
			}
		}
	}
	known, err := report.follow(ctx)
	if err == nil && !known {
		t.giveUp(ctx)
		return
	}
	if err != nil {
		return
	}
	t.mu.Lock()
	final := t.final
	t.mu.Unlock()
	if report.finish(ctx, final) == nil {
		t.logger.Info("job ends", "state", final.State, "reason", final.Reason)
	}
}

// learn finds out whether the server waits until a job is acknowledged: it then takes the state pending.
func (t *task) learn(ctx context.Context) (err error) {
	t.d.Repeat(ctx, "acknowledge a job", func() error {
		reply, err := t.d.client.Update(ctx, t.record.Job, Update{State: Pending})
		switch {
		case StatusOf(err) == http.StatusBadRequest:
			t.d.learned.Store(true)
			return nil
		case err == nil && reply.Verdict != Ended: // a job that has ended says nothing about the server
			t.d.acknowledges.Store(true)
			t.d.learned.Store(true)
		}
		return err
	})
	return context.Cause(ctx)
}

// submit gives the job to the manager.
func (t *task) submit(ctx context.Context, room jobdoor.Room) (id string, err error) {
	if t.record.Refused != "" {
		return "", errors.New(t.record.Refused)
	}
	p := &payload{}
	if err := json.Unmarshal(t.record.Answer, p); err != nil {
		return "", fmt.Errorf("the server sent a job of another form: %w", err)
	}
	req, _, err := p.pipeline(t.origin())
	if err != nil {
		return "", err
	}
	req.Options.Env = t.d.cfg.Environment
	t.d.Repeat(ctx, "submit a job", func() error {
		id, err = t.d.Host().Submit(ctx, t.key(), req, room)
		if _, refused := errors.AsType[*jobdoor.RefusedError](err); refused {
			return nil
		}
		return err
	})
	return id, err
}

// change changes the task, and wakes those that wait for a change.
func (t *task) change(do func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	do()
	close(t.changed)
	t.changed = make(chan struct{})
}

// watch follows the pipeline to its end.
func (t *task) watch(ctx context.Context, id string) {
	var last *pb.Pipeline
	t.d.Repeat(ctx, "watch a pipeline", func() error {
		return t.d.Host().Watch(ctx, id, func(p *pb.Pipeline) bool {
			last = p
			for _, j := range p.GetJobs() {
				if j.GetBuild() != "" {
					t.change(func() { t.build = j.GetBuild() })
				}
			}
			phase := p.GetPhase()
			return p != nil && phase != pb.Pipeline_ended && phase != pb.Pipeline_blocked
		})
	})
	if ctx.Err() != nil {
		return
	}
	build := t.build // nobody else writes to it
	var result *jobdoor.Result
	if build != "" {
		t.d.Repeat(ctx, "read the result of a job", func() (err error) {
			result, err = t.d.Host().Result(ctx, build)
			return err
		})
	}
	if result == nil {
		result = &jobdoor.Result{Reason: systemFailure, Message: whyOf(last)}
	}
	if ctx.Err() == nil {
		t.ends(build, result)
	}
}

// whyOf returns why a pipeline has no build that is kept.
func whyOf(p *pb.Pipeline) string {
	if p.GetError() != "" {
		return p.GetError()
	}
	for _, j := range p.GetJobs() {
		if j.GetWhy() != "" {
			return j.GetWhy()
		}
	}
	return "the job is not kept any more"
}

// The reasons of failures that all servers know.
const (
	scriptFailure, systemFailure, timeoutFailure = "script_failure", "runner_system_failure", "job_execution_timeout"
)

// canceled is the reason of the manager for a job that was cancelled.
const canceled = "job_canceled"

// scriptTimeout begins the message about a script that ran for longer than RUNNER_SCRIPT_TIMEOUT. To the step runner,
// it is a step that has failed.
const scriptTimeout = `step "script": timeout: the step "script" ran for longer than `

// ends notes the end of the job.
func (t *task) ends(build string, result *jobdoor.Result) {
	final, last := Update{State: Success}, "\x1b[32;1mJob succeeded\x1b[0;m"
	if result.Reason != "" {
		final = Update{State: Failed, Reason: result.Reason, ExitCode: result.ExitCode}
		if strings.HasPrefix(result.Message, scriptTimeout) {
			final = Update{State: Failed, Reason: timeoutFailure}
		}
		if !slices.Contains([]string{scriptFailure, systemFailure, timeoutFailure}, final.Reason) &&
			!slices.Contains(t.reasons, final.Reason) {
			final.Reason = systemFailure
		}
		last = fmt.Sprintf("\x1b[31;1mERROR: Job failed: %s\x1b[0;m", tokens.Mask(termtext.Line(result.Message), t.prefixes))
	}
	t.change(func() {
		t.build, t.ended, t.logged, t.last, t.final = build, true, result.LogBytes, []string{last}, final
	})
}

// traceRead is how far a reader of the trace has come: all of the log before raw is in the first made bytes of the
// trace, or in the renderer.
type traceRead struct {
	raw, made int64
	renderer
}

// trace is a source: the log of the build as the server gets it, and then the last lines.
func (t *task) trace(ctx context.Context, offset int64, follow bool, take func(text []byte) error) error {
	reader := &t.reads[0]
	if follow {
		reader = &t.reads[1]
	}
	if reader.shape == nil || reader.made > offset {
		*reader = traceRead{renderer: renderer{shape: t.shape, at: t.record.At}}
	}
	at := traceRead{reader.raw, reader.made, reader.copy()}
	if at.made == 0 && at.raw == 0 {
		at.begin()
	}
	pass := func() error {
		text := at.out
		at.out = at.out[:0]
		skip := min(max(offset-at.made, 0), int64(len(text)))
		at.made += int64(len(text))
		if text = text[skip:]; len(text) == 0 {
			return nil
		}
		offset = at.made
		return take(text)
	}
	keep := func() { *reader = traceRead{at.raw, at.made, at.copy()} } // a piece that is taken in part is made again
	if err := pass(); err != nil {
		return err
	}
	for {
		t.mu.Lock()
		build, ended, logged, last, changed := t.build, t.ended, t.logged, t.last, t.changed
		t.mu.Unlock()
		if build != "" && (!ended || at.raw < logged) {
			err := t.d.Host().Log(ctx, build, at.raw, follow && !ended, func(p jobdoor.Piece) error {
				keep()
				if err := at.fill(p.Missing, pass); err != nil {
					return err
				}
				at.raw += p.Missing
				for part := range slices.Chunk(p.Text, maxFill) {
					keep()
					at.write(part, p.At)
					at.raw += int64(len(part))
					if err := pass(); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			keep()
		}
		if ended {
			if err := at.fill(logged-at.raw, pass); err != nil { // the rest is not kept any more
				return err
			}
			at.finish(last...)
			return pass()
		}
		if !follow {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// fill writes as many other bytes as there are that are not kept any more: the server counts them.
func (r *traceRead) fill(n int64, pass func() error) error {
	for n > 0 {
		part := min(n, maxFill)
		r.write(bytes.Repeat([]byte{'.'}, int(part)), r.at)
		if err := pass(); err != nil {
			return err
		}
		n -= part
	}
	return nil
}

const maxFill = 64 << 10

// cancel cancels the pipeline.
func (t *task) cancel(ctx context.Context) bool {
	err := t.d.Host().Cancel(ctx, t.key())
	if err != nil && ctx.Err() == nil {
		t.logger.Warn("cannot cancel the pipeline of a job", "error", err)
	}
	return err == nil
}

// giveUp ends the pipeline of a job that the server does not know any more, or has ended.
func (t *task) giveUp(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	t.logger.Info("the server has ended the job, or does not know it: what is left of its pipeline is cancelled")
	for ctx.Err() == nil && !t.cancel(ctx) {
		_ = pause.For(ctx, jobdoor.FirstBackoff)
	}
}
