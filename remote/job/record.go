package job

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/remote/job/joblog"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// event is a change of a step, and the lengths of stdout and stderr at that time.
type event struct {
	result engine.StepResult
	at     [2]int64
}

// record is a job in the store.
type record struct {
	id      string
	digest  [sha256.Size]byte
	workDir string // as asked for
	merged  bool   // there is a log of that name
	dir     string
	started time.Time
	grace   time.Duration
	// runner has the job's text and its variables; nil once the job has ended.
	runner atomic.Pointer[engine.Runner]

	life context.Context // its end kills the job's processes
	kill context.CancelCauseFunc

	opened chan struct{} // closed once the logs are set, or cannot be
	logs   [3]*joblog.Log
	output *output       // used by the job's goroutine only, nil at the end
	done   chan struct{} // closed once the state is final

	traceFile *trace.File // used by the job's goroutine only; nil without a trace

	// Guarded by the store's mu.
	state     State // final once result is set
	result    engine.Result
	finished  time.Time
	size      int64 // bytes of output, and of the trace
	tracePath string
	traceErr  error // why there is no trace
	followers int
	discard   bool      // remove it when it ends
	gone      bool      // the store has removed it
	goneAt    time.Time // when

	removal sync.Once

	mu      sync.Mutex // guards the following
	events  []event
	changed chan struct{} // closed with the next event, then replaced
	ended   bool          // there will be no more events
}

func newRecord(spec Spec, dir string) *record {
	j := &record{
		id:      spec.ID,
		digest:  spec.Digest,
		workDir: spec.WorkDir,
		merged:  spec.Merged,
		dir:     dir,
		started: time.Now(),
		state:   Running,
		opened:  make(chan struct{}),
		output:  &output{},
		done:    make(chan struct{}),
		changed: make(chan struct{}),
	}
	j.life, j.kill = context.WithCancelCause(context.Background())
	return j
}

// stop stops the job unless it has ended.
func (j *record) stop(why string, grace time.Duration) {
	if r := j.runner.Load(); r != nil {
		r.Stop(why, grace)
	}
}

// observe records a step's change for the engine.
func (j *record) observe(r engine.StepResult) {
	if m := j.output.merged; m != nil && r.Status == engine.Running && r.Kind == engine.Command {
		m.begin(r.Name)
	}
	e := event{result: r}
	for stream := range e.at {
		e.at[stream] = j.logs[stream].Len()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
	close(j.changed)
	j.changed = make(chan struct{})
}

// end says that the last event has come.
func (j *record) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	close(j.changed)
	j.changed = make(chan struct{})
}

// event waits for the event with number n, from 0. After the last one it returns io.EOF.
func (j *record) event(ctx context.Context, n int) (event, error) {
	for {
		j.mu.Lock()
		changed, ended := j.changed, j.ended
		if n < len(j.events) {
			defer j.mu.Unlock()
			return j.events[n], nil
		}
		j.mu.Unlock()
		if ended {
			return event{}, io.EOF
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return event{}, context.Cause(ctx)
		}
	}
}

// readAt reads one of the streams, as [joblog.Log.ReadAt] does. A job that never had logs reads as empty.
func (j *record) readAt(ctx context.Context, stream Stream, p []byte, offset int64) (int, error) {
	select {
	case <-j.opened:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	log := j.logs[stream]
	switch {
	case stream == Merged && !j.merged:
		return 0, ErrNotMerged
	case log != nil:
		return log.ReadAt(ctx, p, offset)
	case offset != 0:
		return 0, fmt.Errorf("read log at %d of 0 bytes: %w", offset, joblog.ErrOffset)
	default:
		return 0, io.EOF
	}
}

// written returns the length of the output.
func (j *record) written() (n int64) {
	for _, log := range j.logs {
		if log != nil {
			n += log.Len()
		}
	}
	return n
}

func (j *record) statLocked() Stat {
	stat := Stat{
		ID:       j.id,
		State:    j.state,
		Started:  j.started,
		Finished: j.finished,
		ExitCode: j.result.ExitCode,
		Message:  j.result.Message,
		TimedOut: j.result.TimedOut,
		System:   j.result.System,
	}
	select {
	case <-j.opened:
		if j.logs[Stdout] != nil {
			stat.Stdout, stat.Stderr = j.logs[Stdout].Len(), j.logs[Stderr].Len()
		}
	default:
	}
	return stat
}

// remove deletes the files of the job, which has ended. Reads fail afterwards.
func (j *record) remove() {
	j.removal.Do(func() {
		var errs []error
		for _, log := range j.logs {
			if log != nil {
				errs = append(errs, log.Remove())
			}
		}
		// Closing the store removes the rest, or returns an error.
		_ = errors.Join(append(errs, rmtree.Remove(j.dir))...)
	})
}
