package giteadoor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// firstLogPause is the least time between the first two calls with rows of a job that runs. It doubles with each call,
	// up to lastLogPause: each call is a write to the server's database. statePause is the time between two calls with its
	// state, whose answers tell of a cancel.
	firstLogPause, lastLogPause, statePause = 3 * time.Second, 15 * time.Second, 4800 * time.Millisecond
	// jobPause is the time that each other job adds before the first call with rows, up to maxPatience.
	jobPause, maxPatience = 50 * time.Millisecond, time.Second
	// maxRows and maxRowBytes bound the rows of a call, and twice as many wait for one.
	maxRows, maxRowBytes = 1000, 1 << 20
	// maxKey and maxValue bound an output, in bytes: the server drops larger ones without a word.
	maxKey, maxValue = 255, 1 << 20
)

// report reports a task: run's goroutine makes the calls, and two others watch the pipeline and read the log.
type report struct {
	d      *Door
	task   *Task
	record *record
	stored string // the key of the record
	shape  shape
	// resumed says that a door before has taken the task.
	resumed bool
	client  *Client
	logger  *slog.Logger

	changed chan struct{} // has room for one: there is something new below
	sent    chan struct{} // has room for one: rows were sent
	grown   chan struct{} // has room for one: the pipeline has changed

	mu      sync.Mutex // guards the following
	rows    *rows
	pending []Row // that the server does not have
	bytes   int   // of them
	first   int64 // index of the first of them
	has     int64 // rows that the server had when the report began
	state   *pb.Pipeline
	ended   bool // the pipeline has ended, or is not kept any more
	read    bool // all logs were read to their ends
}

func newReport(d *Door, r *record, key string, resumed bool) *report {
	return &report{
		d: d, task: r.Task, record: r, stored: key, resumed: resumed, client: d.client.As(r.Runner),
		logger:  d.Host().Logger.With("task", r.Task.ID),
		changed: make(chan struct{}, 1), sent: make(chan struct{}, 1), grown: make(chan struct{}, 1),
	}
}

// gone reports whether the server does not know the task, or its runner, any more. Gitea has no code of its own for the
// former.
func gone(err error) bool {
	told, ok := errors.AsType[*CallError](err)
	return ok && (slices.Contains([]string{codeUnauthenticated, codeNotFound, codeDenied}, told.Code) ||
		strings.Contains(told.Text, "resource does not exist") || strings.Contains(told.Text, "invalid runner for task"))
}

// run runs the task and reports it to its end, or until ctx ends: then the next door goes on.
func (t *report) run(ctx context.Context, room jobdoor.Room) {
	req, shape, err := t.record.pipeline(t.d.cfg.Name)
	if err == nil {
		t.d.cfg.adapt(req)
	}
	t.shape, t.rows = shape, newRows(t.record.Marks, shape.steps, t.add)
	if t.resumed {
		t.repeat(ctx, "ask for the log", func() (err error) {
			t.has, err = t.client.UpdateLog(ctx, t.task.ID, 0, nil, false)
			t.first = t.has
			return err
		})
		if t.isOver(ctx) { // the server has ended it, or the store has it again after its end and a crash
			t.giveUp(ctx)
			return
		}
	}
	if err == nil && shape.calls && ctx.Err() == nil {
		err = t.fetchCalled(ctx, req)
	}
	var id string
	if err == nil && ctx.Err() == nil {
		id, err = t.submit(ctx, req, room)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		t.logger.Warn("a task cannot run", "error", err)
		t.finish(ctx, resultFailure, nil, []string{termtext.Line(err.Error())}, time.Now())
		return
	}
	t.logger = t.logger.With("pipeline", id)
	t.logger.Info("task begins", "repository", t.task.text("repository"), "run", t.task.text("run_number"))
	watching, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { t.watch(watching, id) })
	defer watchers.Wait()
	defer stop()
	if t.follow(ctx) {
		t.conclude(ctx)
	}
}

// isOver reports whether the server has a result for the task, or does not know it.
func (t *report) isOver(ctx context.Context) bool {
	result, known := t.tell(ctx)
	return ctx.Err() == nil && (!known || result != "" && result != resultNone && result != resultCancelled)
}

// key is that of the pipeline of the task.
func (t *report) key() string { return fmt.Sprintf("gitea.%s.%d", t.d.cfg.Name, t.task.ID) }

// submit gives the task to the manager.
func (t *report) submit(ctx context.Context, req *pb.SubmitPipelineRequest, room jobdoor.Room) (id string, err error) {
	t.repeat(ctx, "submit a task", func() error {
		id, err = t.d.Host().Submit(ctx, t.key(), req, room)
		if _, refused := errors.AsType[*jobdoor.RefusedError](err); refused {
			return nil
		}
		return err
	})
	return id, err
}

// repeat is door.repeat, and ends also if the server does not know the task any more.
func (t *report) repeat(ctx context.Context, what string, do func() error) (known bool) {
	known = true
	t.d.Repeat(ctx, what, func() error {
		err := do()
		if gone(err) {
			known = false
			return nil
		}
		return err
	})
	return known && ctx.Err() == nil
}

// add takes a row.
func (t *report) add(row Row) {
	if t.rows.count <= t.has { // the server has it
		return
	}
	t.pending = append(t.pending, row)
	t.bytes += len(row.Content)
}

// wake tells run's goroutine that something is new.
func (t *report) wake() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// watch follows the pipeline, and the logs of its builds.
func (t *report) watch(ctx context.Context, id string) {
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() { t.readLogs(ctx) })
	t.d.Repeat(ctx, "watch a pipeline", func() error {
		return t.d.Host().Watch(ctx, id, func(p *pb.Pipeline) bool {
			t.mu.Lock()
			defer t.mu.Unlock()
			defer t.wake()
			t.state = p
			phase := p.GetPhase()
			t.ended = p == nil || phase == pb.Pipeline_ended || phase == pb.Pipeline_blocked
			select {
			case t.grown <- struct{}{}:
			default:
			}
			return !t.ended
		})
	})
}

// readLogs reads the logs of all builds, one after the other.
func (t *report) readLogs(ctx context.Context) {
	for n := 0; ; n++ {
		b, ok := t.nextBuild(ctx, n)
		if !ok {
			break
		}
		t.readLog(ctx, b)
	}
	t.mu.Lock()
	t.read = true
	t.mu.Unlock()
	t.wake()
}

// readLog reads the log of a build to its end.
func (t *report) readLog(ctx context.Context, b toldBuild) {
	t.mu.Lock()
	before := t.rows.copy()
	t.mu.Unlock()
	t.d.Repeat(ctx, "read a log", func() error {
		t.mu.Lock()
		t.rewind(before)
		if t.shape.calls {
			t.rows.put([]byte("stepmux: the job "+b.Job), time.Now())
		}
		t.mu.Unlock()
		return t.d.Host().Log(ctx, b.Build, 0, true, func(p jobdoor.Piece) error {
			t.mu.Lock()
			if p.Missing > 0 {
				t.rows.write(fmt.Appendf(nil, "stepmux: %d bytes of the log are not kept any more\n", p.Missing), p.At)
			}
			t.rows.write(p.Text, p.At)
			t.mu.Unlock()
			t.wake()
			for t.isFull() {
				select {
				case <-t.sent:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return nil
		})
	})
	t.mu.Lock()
	t.rows.flush(time.Now())
	t.mu.Unlock()
	t.wake()
}

// rewind lets the rows begin again after those of before. mu is held.
func (t *report) rewind(before *rows) {
	t.rows, t.has, t.bytes = before.copy(), t.first, 0
	t.pending = t.pending[:min(max(before.count-t.first, 0), int64(len(t.pending)))]
	for _, row := range t.pending {
		t.bytes += len(row.Content)
	}
}

// isFull reports whether no more rows shall wait.
func (t *report) isFull() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pending) > 2*maxRows || t.bytes > 2*maxRowBytes
}

// isDone reports whether nothing new comes from the pipeline.
func (t *report) isDone() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended && t.read
}

// follow reports the pipeline while it runs. It returns false if nothing is to be reported any more.
func (t *report) follow(ctx context.Context) bool {
	told, sent, canceled := time.Now(), time.Now(), false
	logPause := t.patience()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !t.isDone() {
		now := time.Now()
		if waits, full := t.waiting(); waits && (full || now.Sub(sent) >= logPause) {
			if !full {
				logPause = min(max(2*logPause, firstLogPause), lastLogPause)
			}
			sent = now
			if !t.repeat(ctx, "send a log", func() error { return t.send(ctx, false) }) {
				return t.giveUp(ctx)
			}
			continue // there may be more
		}
		if now.Sub(told) >= statePause {
			told = now
			result, known := t.tell(ctx)
			if !known || result != resultNone && result != resultCancelled && result != "" {
				return t.giveUp(ctx) // the server has ended it
			}
			if result == resultCancelled && !canceled {
				t.logger.Info("the server cancels the task")
				canceled = t.cancel(ctx)
			}
		}
		next := statePause - time.Since(told)
		if waits, _ := t.waiting(); waits {
			next = min(next, logPause-time.Since(sent))
		}
		timer.Reset(max(next, 0))
		select {
		case <-t.changed:
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// patience is how long after its begin the first rows of a job are sent: the more jobs there are, the later, so that a
// burst of short jobs costs one call with rows for each.
func (t *report) patience() time.Duration {
	return min(time.Duration(t.d.Standing().Jobs-1)*jobPause, maxPatience)
}

// waiting reports whether rows wait to be sent, and whether they are enough for a call.
func (t *report) waiting() (any, full bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pending) > 0, len(t.pending) >= maxRows || t.bytes >= maxRowBytes
}

// send sends rows. last says that there are no more.
func (t *report) send(ctx context.Context, last bool) error {
	t.mu.Lock()
	n, size := 0, 0
	for n < len(t.pending) && n < maxRows && size < maxRowBytes {
		size += len(t.pending[n].Content)
		n++
	}
	part, from, all := t.pending[:n:n], t.first, n == len(t.pending)
	t.mu.Unlock()
	have, err := t.client.UpdateLog(ctx, t.task.ID, from, part, last && all)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := min(max(have-t.first, 0), int64(len(t.pending))); n > 0 {
		for _, row := range t.pending[:n] {
			t.bytes -= len(row.Content)
		}
		t.pending, t.first = t.pending[n:], t.first+n
	} else if len(part) > 0 {
		return fmt.Errorf("the server has %d rows of the log, and takes none from %d on", have, from)
	}
	select {
	case t.sent <- struct{}{}:
	default:
	}
	return nil
}

// tell tells the server how the task stands, and returns the server's answer.
func (t *report) tell(ctx context.Context) (result string, known bool) {
	t.mu.Lock()
	state := &State{ID: t.task.ID, Result: resultNone, Steps: t.rows.shown()}
	if at := t.state.GetStarted(); at != nil {
		began := at.AsTime()
		state.StartedAt = &began
	}
	t.mu.Unlock()
	known = t.repeat(ctx, "report a task", func() (err error) {
		result, err = t.client.UpdateTask(ctx, state, nil)
		return err
	})
	return result, known || ctx.Err() != nil
}

// cancel cancels the pipeline.
func (t *report) cancel(ctx context.Context) bool {
	err := t.d.Host().Cancel(ctx, t.key())
	if err != nil && ctx.Err() == nil {
		t.logger.Warn("cannot cancel the pipeline of a task", "error", err)
	}
	return err == nil
}

// giveUp ends the pipeline of a task that the server does not know any more, or has ended.
func (t *report) giveUp(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	t.logger.Info("the server has a result of the task, or does not know it: what is left of its pipeline is cancelled")
	for ctx.Err() == nil && !t.cancel(ctx) {
		_ = pause.For(ctx, jobdoor.FirstBackoff)
	}
	return false
}

// conclude reports the end of the pipeline.
func (t *report) conclude(ctx context.Context) {
	t.mu.Lock()
	p := t.state
	t.mu.Unlock()
	var notes []string
	for _, note := range p.GetNotes() {
		notes = append(notes, "note: "+termtext.Line(note))
	}
	outputs := map[string]string{}
	if len(p.GetJobs()) > 0 {
		var values map[string]string
		t.d.Repeat(ctx, "read the outputs of a task", func() (err error) {
			values, err = t.d.Host().Outputs(ctx, p.GetId(), p.GetJobs()[0])
			return err
		})
		for _, name := range sortedkeys.Of(values) {
			if len(name) > maxKey || len(values[name]) > maxValue {
				notes = append(notes, fmt.Sprintf("the output %q is left out: it is too long for the server",
					termtext.Short(name, 100)))
				continue
			}
			outputs[name] = values[name]
		}
	}
	result, why := resultOf(p, t.shape.calls)
	at := time.Now()
	if end := p.GetEndedAt(); end != nil {
		at = end.AsTime()
	}
	t.finish(ctx, result, outputs, append(notes, why), at)
}

// resultOf returns the result of a task by its pipeline, and a line about it.
func resultOf(p *pb.Pipeline, calls bool) (result, why string) {
	if p == nil {
		return resultFailure, "the pipeline is not kept any more"
	}
	if p.GetError() != "" {
		return resultFailure, "the job failed: " + termtext.Line(p.GetError())
	}
	for _, j := range p.GetJobs()[:min(len(p.GetJobs()), 1)] { // the others are those of a workflow that it calls
		if j.GetWhy() != "" {
			why = ": " + termtext.Line(j.GetWhy())
		}
		if j.GetStatus() == "skipped" {
			return resultSkipped, "the job was skipped" + why
		}
	}
	if calls {
		why = cmp.Or(whyOf(p), why)
	}
	switch p.GetStatus() {
	case "success":
		return resultSuccess, "the job has succeeded"
	case "cancelled":
		if p.GetCanceled() {
			return resultCancelled, "the job was cancelled"
		}
		return resultFailure, "the job was cancelled" + why
	default:
		return resultFailure, "the job failed" + why
	}
}

// finish sends the rest of the log, with last lines, and then the result.
func (t *report) finish(
	ctx context.Context, result string, outputs map[string]string, lines []string, at time.Time,
) {
	t.mu.Lock()
	for _, line := range lines {
		t.rows.put([]byte("stepmux: "+line), at)
	}
	state := &State{ID: t.task.ID, Result: result, StoppedAt: &at, Steps: t.rows.ended(result, at)}
	began := at
	if p := t.state.GetStarted(); p != nil {
		began = p.AsTime()
	}
	state.StartedAt = &began
	t.mu.Unlock()
	for {
		closed := false // by a door before
		if !t.repeat(ctx, "send a log", func() error {
			err := t.send(ctx, true)
			if closed = isCode(err, codeExists); closed {
				return nil
			}
			return err
		}) {
			return
		}
		if waits, _ := t.waiting(); closed || !waits {
			break
		}
	}
	t.repeat(ctx, "report the end of a task", func() error {
		_, err := t.client.UpdateTask(ctx, state, outputs)
		return err
	})
	if ctx.Err() == nil { // else the next door ends it
		t.logger.Info("task ends", "result", result)
	}
}
