package job

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/job/joblog"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
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
	dir     string
	started time.Time
	grace   time.Duration
	outputs bool // Spec.Outputs
	// runner has the job's text and its variables. It is nil once the job has ended.
	runner atomic.Pointer[engine.Runner]

	begun atomic.Bool // one of its commands may have been started
	// serverFailed says that a step failed because of a server or the network path to it.
	serverFailed atomic.Bool

	life context.Context // its end kills the job's processes
	kill context.CancelCauseFunc

	logs   []*joblog.Log // by Stream; Merged is missing if the job does not have it
	output *output       // used by the job's goroutine only, nil at the end
	done   chan struct{} // closed once the state is final, after the last event

	// home is the open directory dir, because the job may move that. It is nil if dir could not be made.
	home *os.File

	// traceFile is used by the job's goroutine only, until traced is set. It is nil without a trace.
	traceFile *recording.File

	// Guarded by the store's mu.
	state     State // final once result is set
	result    engine.Result
	finished  time.Time
	size      int64 // bytes of output, and of the trace
	traced    bool  // traceFile has the trace
	traceErr  error // why there is no trace
	level     vmconfig.Level
	levelErr  error // why level is Off although Auto was asked for, or why it is unknown (Auto)
	usage     proc.Usage
	followers int
	gone      bool      // the store has removed it
	goneAt    time.Time // when

	removal sync.Once

	mu      sync.Mutex // guards the following
	events  []event
	changed chan struct{} // closed with the next event, then replaced
}

// newRecord returns the record of a job with the directory dir and logs of at most limit bytes.
func newRecord(spec Spec, dir string, limit int64) *record {
	j := &record{
		id: spec.ID, digest: spec.Digest, dir: dir, outputs: spec.Outputs, started: time.Now(), state: Running,
		output: &output{},
		done:   make(chan struct{}), changed: make(chan struct{}),
	}
	for stream, name := range streamNames {
		if Stream(stream) != Merged || spec.Merged {
			j.logs = append(j.logs, joblog.New(filepath.Join(dir, name), limit))
		}
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
	switch m := j.output.merged; {
	case m == nil:
	case r.Status == engine.Running && r.Kind == engine.Command:
		m.begin(r.Name)
	case r.Status != engine.Running && len(r.Warnings) > 0:
		m.warn(r.Name, r.Warnings)
	}
	if r.Server {
		j.serverFailed.Store(true)
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

func (j *record) statLocked() Stat {
	r := j.result
	stat := Stat{
		ID: j.id, State: j.state, Started: j.started, Finished: j.finished,
		ExitCode: r.ExitCode, Message: r.Message, TimedOut: r.TimedOut, System: r.System,
		Isolation:      string(j.level), // Auto is empty
		Usage:          j.usage,
		Outputs:        j.outputs,
		NothingStarted: j.state != Running && !j.begun.Load(),
		ServerFailed:   j.serverFailed.Load(),
		Stdout:         j.logs[Stdout].Len(), Stderr: j.logs[Stderr].Len(),
	}
	if j.levelErr != nil {
		stat.IsolationReason = j.levelErr.Error()
	}
	return stat
}

// remove deletes the files of the job, which has ended. Reads fail afterwards.
//
//nolint:contextcheck // the files go, even if the caller's context has ended
func (j *record) remove() {
	j.removal.Do(func() {
		// Closing the store removes the rest, or returns an error.
		for _, log := range j.logs {
			_ = log.Remove()
		}
		if j.traceFile != nil {
			j.traceFile.Discard()
		}
		if j.home != nil {
			_ = rmtree.RemoveOpen(context.Background(), j.home)
			j.home.Close()
		}
		_ = rmtree.Remove(j.dir)
	})
}
