package standalone

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// traceBegin matches the beginning of a trace.
var traceBegin = regexp.MustCompile(`^\{"id":"[0-9a-f]{64}","identity":\{`)

// CheckTraceFile is CheckOutputFile for a default path, which the user did not choose. It also requires room on the
// disk, and accepts an existing file only if that is a trace.
func CheckTraceFile(path string) error {
	if err := CheckOutputFile(path); err != nil {
		return err
	}
	room, err := recording.Create(path, job.TraceRoom)
	if err != nil {
		return err
	}
	room.Discard()
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	var head [128]byte
	n, err := io.ReadFull(file, head[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if !traceBegin.Match(head[:n]) {
		return fmt.Errorf("%s exists, and is not a trace", path)
	}
	return nil
}

// WriteRefused writes the trace of a job that did not run because its source is not valid. why says the reason. The
// trace has no definition. version is the version of this program.
func WriteRefused(path string, why error, version string) error {
	now := time.Now().UTC()
	t := &trace.Trace{
		Identity: trace.Identity{
			Runtime: recording.Runtime(version), Status: trace.Failure, Reason: string(Invalid), Steps: []trace.Step{},
			Job: trace.Job{Vars: map[string]trace.Variable{}},
		},
		Volatile: trace.Volatile{Started: now, Ended: now, Message: why.Error(), Steps: []trace.StepRun{}},
	}
	data, err := t.Encode()
	if err != nil {
		return err
	}
	return WriteFile(path, data)
}
