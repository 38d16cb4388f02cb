package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// TraceRoom is how much room is set aside for a trace before its job begins, in bytes.
const TraceRoom = 64 << 10

// TraceSpec asks for a trace of a job, which is written when the job has ended, however it did.
type TraceSpec struct {
	// Source, Text, Steps and Salt are those of [recording.Config].
	Source trace.Source
	Text   []byte
	Steps  string
	Salt   *mask.Salt
	// File is where it is written, with room set aside from the beginning: a job that finds none does not run. If empty,
	// among the files of the job, which go when that is forgotten.
	File string
	// Done is told the trace once it is written, before the job counts as ended. May be nil.
	Done func(*trace.Trace)
}

// record lets a Recorder watch the job that cfg is for, if a trace is wanted.
func (s *Store) record(t *TraceSpec, j *record, cfg *engine.Config) {
	if t == nil {
		return
	}
	j.output.recorder = recording.New(*cfg, recording.Config{
		Source: t.Source, Text: t.Text, Steps: t.Steps, Salt: t.Salt, Version: s.cfg.Version,
		Room: func(size int64) error { return j.traceFile.Reserve(size) },
	})
	cfg.Events = j.output.recorder
}

// openTrace sets aside the file of the trace, if one is wanted.
func (j *record) openTrace(t *TraceSpec) error {
	if t == nil {
		return nil
	}
	path := t.File
	if path == "" {
		path = filepath.Join(j.dir, "trace.json")
	}
	var err error
	j.traceFile, err = recording.Create(path, TraceRoom)
	return err
}

// writeTrace writes the trace of j, which ended as result says, if one is wanted. It returns where it is and how many
// bytes of the job's files it has. A panic is an error too: it must not end the other jobs.
func (j *record) writeTrace(t *TraceSpec, result engine.Result) (path string, size int64, err error) {
	if t == nil || j.traceFile == nil {
		return "", 0, nil
	}
	defer j.traceFile.Discard()
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("write trace: internal error of the step runner")
		}
	}()
	made := j.output.recorder.Trace(result, j.started, time.Now())
	data, err := made.Encode()
	if err != nil {
		return "", 0, err
	}
	if _, err := j.traceFile.Write(data); err != nil {
		return "", 0, err
	}
	if err := j.traceFile.Commit(); err != nil {
		return "", 0, err
	}
	if t.Done != nil {
		t.Done(made)
	}
	if t.File == "" {
		size = int64(len(data))
	}
	return j.traceFile.Path(), size, nil
}

// Trace returns the trace of the job, as JSON, which the caller closes. It is for jobs that have ended. The error is
// ErrNoTrace if none was asked for, or why there is none.
func (f *Follower) Trace() (*os.File, error) {
	f.store.mu.Lock()
	err, path := f.job.traceErr, f.job.tracePath
	ended := f.job.state != Running
	f.store.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case path == "" || !ended:
		return nil, ErrNoTrace
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return file, nil
}
