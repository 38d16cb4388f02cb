package job

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// TraceRoom is the disk space that is reserved for a trace before its job begins, in bytes.
const TraceRoom = 64 << 10

// TraceSpec asks for a trace of a job. The trace is written when the job has ended, also when it has failed.
type TraceSpec struct {
	// Source, Text, Steps, Salt and Image are those of [recording.Config].
	Source trace.Source
	Image  string
	Text   []byte
	Steps  string
	Salt   *mask.Salt
	// File is the path of the trace. Its space is reserved before the job begins: without space the job does not run.
	// If empty, the trace is a file without a name, which no job can replace, and is removed with the job.
	File string
	// Done is called with the trace once it is written, before callers see that the job has ended. May be nil.
	Done func(*trace.Trace)
}

// writeTrace writes the trace of j, which ended with result. It does nothing if t is nil. usage is the usage at the
// job's end. It returns the trace's size if it is among the job's files. It turns a panic into an error, because a
// panic would end the other jobs too.
func (j *record) writeTrace(t *TraceSpec, result engine.Result, usage proc.Usage) (size int64, err error) {
	if t == nil || j.traceFile == nil {
		return 0, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("write trace: internal error of the step runner")
		}
		if err != nil {
			j.traceFile.Discard()
		}
	}()
	made := j.output.recorder.Trace(result, j.started, time.Now())
	v := &made.Volatile
	v.CPU, v.PeakMemory, v.LargestProcess = usage.CPU.Seconds(), usage.PeakMemory, usage.LargestProcess
	data, err := made.Encode()
	if err == nil {
		_, err = j.traceFile.Write(data)
	}
	if err == nil {
		err = j.traceFile.Commit()
	}
	if err != nil {
		return 0, err
	}
	if t.Done != nil {
		t.Done(made)
	}
	if t.File != "" {
		return 0, nil
	}
	return int64(len(data)), nil
}

// Trace opens the trace of the job, as JSON. The caller closes the file. The error is ErrNoTrace if the job has not
// ended or was created without a TraceSpec; otherwise it is the reason why the trace could not be written.
func (f *Follower) Trace() (*os.File, error) {
	f.store.mu.Lock()
	err, traced := f.job.traceErr, f.job.traced
	f.store.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case !traced:
		return nil, ErrNoTrace
	}
	file, err := f.job.traceFile.Open()
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return file, nil
}
