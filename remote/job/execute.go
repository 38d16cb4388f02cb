package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/remote/job/joblog"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// execute is the life of a job's goroutine.
func (s *Store) execute(j *record, spec Spec, runner *engine.Runner) {
	result := s.attempt(j, spec, runner)
	j.kill(nil)
	tracePath, traceSize, traceErr := j.writeTrace(spec.Trace, runner, result)
	// The record is kept for a while, without the job's text, its variables and its secrets.
	j.output = nil
	j.runner.Store(nil)
	state := Failed
	switch result.Status { //nolint:exhaustive // a job that has run has no other status
	case engine.Success:
		state = Succeeded
	case engine.Cancelled:
		state = Cancelled
		// Only Shutdown did this, and no caller. An error of the output may precede it in the message.
		result.System = strings.HasSuffix(result.Message, ErrShutdown.Error())
	}
	s.mu.Lock()
	j.tracePath, j.traceErr = tracePath, traceErr
	j.state, j.result, j.finished, j.size = state, result, time.Now(), j.written()+traceSize
	s.finished = append(s.finished, j)
	s.kept += j.size
	if j.discard {
		s.removeLocked(j)
	}
	s.mu.Unlock()
	j.end()
	s.wakeCollector()
	close(j.done)
}

// attempt runs the job and cleans up after it. Every error on the way, and a panic, is the job's failure.
func (s *Store) attempt(j *record, spec Spec, runner *engine.Runner) (result engine.Result) {
	fail := func(err error) {
		message := hideMessage(&j.output.secrets, err.Error())
		result = engine.Result{
			Status: engine.Failure, Message: message, System: true, Steps: engine.NotRun(spec.Definition),
		}
	}
	defer func() {
		if p := recover(); p != nil {
			fail(fmt.Errorf("internal error of the step runner: %v", p))
		}
		switch err := j.finish(); {
		case err == nil:
		case result.Status == engine.Success:
			result.Status, result.Message, result.System = engine.Failure, err.Error(), true
		default:
			result.Message = err.Error() + "; " + result.Message // the exit status stays at the end
		}
	}()
	if err := j.open(s.cfg.OutputLimit); err != nil {
		fail(err)
		return result
	}
	if err := j.openTrace(spec.Trace); err != nil {
		fail(err)
		return result
	}
	notices, err := hideAll(&j.output.secrets, spec.Vars, spec.Secrets)
	if err != nil {
		fail(err)
		return result
	}
	j.output.connect(j.logs, notices, spec.Trace != nil)
	place, err := j.place(s.cfg.WorkBase)
	if err != nil {
		fail(err)
		return result
	}
	return s.run(j.life, runner, place)
}

// open makes the job's directory and its logs.
func (j *record) open(limit int64) error {
	defer close(j.opened)
	if err := os.Mkdir(j.dir, 0o700); err != nil {
		return fmt.Errorf("create job directory: %w", err)
	}
	for stream, name := range streamNames {
		if Stream(stream) == Merged && !j.merged {
			continue
		}
		j.logs[stream] = joblog.New(filepath.Join(j.dir, name), limit)
	}
	return nil
}

// place makes the job's work directory.
func (j *record) place(base string) (engine.Place, error) {
	p := engine.Place{
		ScriptDir: j.dir, Stdout: j.output.streams[Stdout], Stderr: j.output.streams[Stderr],
		Taps: j.output.taps,
	}
	if j.workDir == "" {
		p.WorkDir = j.tempWorkDir()
		if err := os.Mkdir(p.WorkDir, 0o700); err != nil {
			return p, fmt.Errorf("create work directory: %w", err)
		}
		return p, nil
	}
	if p.WorkDir = filepath.Clean(j.workDir); !filepath.IsAbs(p.WorkDir) {
		p.WorkDir = filepath.Join(base, p.WorkDir)
	}
	if err := os.MkdirAll(p.WorkDir, 0o755); err != nil {
		return p, fmt.Errorf("create work_dir %s: %w", p.WorkDir, err)
	}
	return p, nil
}

// tempWorkDir is the work directory of a job without a WorkDir.
func (j *record) tempWorkDir() string { return filepath.Join(j.dir, "work") }

// finish closes the logs and removes the job's temporary files. The error names output that was lost and files that
// could not be removed.
func (j *record) finish() error {
	var errs []error
	if err := j.output.close(); err != nil {
		errs = append(errs, fmt.Errorf("the job's output is not complete: %w", err))
	}
	for stream, log := range j.logs {
		if log == nil {
			continue
		}
		if err := log.Close(); err != nil {
			errs = append(errs, fmt.Errorf("the job's %v is not complete: %w", Stream(stream), err))
		}
	}
	if err := rmtree.Remove(j.tempWorkDir()); err != nil {
		errs = append(errs, fmt.Errorf("remove work directory: %w", err))
	}
	return errors.Join(errs...)
}
