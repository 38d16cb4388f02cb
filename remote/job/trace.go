package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// TraceRoom is the disk space that is reserved for a trace before its job begins, in bytes.
const TraceRoom = 64 << 10

// TraceSpec asks for a trace of a job. The trace is written when the job has ended, also when it has failed.
type TraceSpec struct {
	// Source, Text and Secrets are those of [engine.Recording].
	Source  trace.Source
	Text    []byte
	Secrets *trace.Secrets
	// File is the path of the trace. Its space is reserved before the job begins: without space the job does not run. If
	// empty, the trace is a file in the job's directory, and is removed with the job.
	File string
	// Done is called with the trace once it is written, before the job counts as ended. May be nil.
	Done func(*trace.Trace)
}

// record returns the recording of j for the engine, or nil if spec asks for no trace.
func (s *Store) record(spec Spec, j *record) *engine.Recording {
	t := spec.Trace
	if t == nil {
		return nil
	}
	return &engine.Recording{
		Source: t.Source, Text: t.Text, Secrets: t.Secrets, Version: s.cfg.Version, Room: j.reserveTrace,
	}
}

// openTrace makes the file of the trace and reserves its space, if t is not nil.
func (j *record) openTrace(t *TraceSpec) error {
	if t == nil {
		return nil
	}
	path := t.File
	if path == "" {
		path = filepath.Join(j.dir, "trace.json")
	}
	var err error
	j.traceFile, err = trace.Create(path, TraceRoom)
	return err
}

func (j *record) reserveTrace(size int64) error { return j.traceFile.Reserve(size) }

// writeTrace writes the trace of j, which ended with result, if t is not nil. It returns the trace's path, and its size
// if it is among the job's files. It returns a panic as an error: a panic must not end the other jobs.
func (j *record) writeTrace(
	t *TraceSpec, runner *engine.Runner, result engine.Result,
) (path string, size int64, err error) {
	if t == nil || j.traceFile == nil {
		return "", 0, nil
	}
	defer j.traceFile.Discard()
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("write trace: internal error of the step runner")
		}
	}()
	made := runner.Trace(result, j.started, time.Now())
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

// Trace opens the trace of the job, as JSON. The caller closes the file. The error is ErrNoTrace if the job has not
// ended or was created without a TraceSpec, or else the reason for which the trace could not be written.
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
