package job

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

var stateOf = map[engine.Status]State{
	engine.Success: Succeeded, engine.Failure: Failed, engine.Cancelled: Cancelled,
}

// execute runs the job j to its end, and records the result.
func (s *Store) execute(j *record, spec Spec, runner *engine.Runner) {
	result := s.attempt(j, spec, runner)
	j.kill(nil)
	level, levelErr := s.isolation()
	var usage proc.Usage
	if s.cfg.Init != nil {
		usage = s.cfg.Init.Usage()
	}
	traceSize, traceErr := j.writeTrace(spec.Trace, result, usage)
	// The record is kept for a while, but the job's text, its variables and its secrets are not.
	j.output = nil
	j.runner.Store(nil)
	state := stateOf[result.Status]
	if state == Cancelled {
		// Only Shutdown cancels a job with this message; callers do not. An error of the output may stand before it.
		result.System = strings.HasSuffix(result.Message, ErrShutdown.Error())
	}
	traced, size := j.traceFile != nil && traceErr == nil, traceSize
	for _, log := range j.logs {
		size += log.Size()
	}
	s.mu.Lock()
	j.traced, j.traceErr = traced, traceErr
	j.level, j.levelErr, j.usage = level, levelErr, usage
	j.state, j.result, j.finished, j.size = state, result, time.Now(), size
	s.disturbed = s.disturbed || state == Cancelled || result.TimedOut || result.System
	s.finished = append(s.finished, j)
	s.kept += j.size
	if slices.Contains(s.closing, j) {
		s.removeLocked(j)
	}
	s.mu.Unlock()
	s.collector.Reset(0)
	close(j.done)
}

// isolation returns the isolation level of all jobs, and the reason if it is Off or unknown. Without an init for all
// jobs each job has its own, without isolation.
func (s *Store) isolation() (vmconfig.Level, error) {
	if s.cfg.Init == nil {
		return vmconfig.Off, nil
	}
	return s.cfg.Init.Isolation(context.Background()) // the start of the init bounds the wait
}

// attempt runs the job and cleans up after it. Every error on the way, and a panic, is the job's failure.
func (s *Store) attempt(j *record, spec Spec, runner *engine.Runner) (result engine.Result) {
	var jobs *os.File // it is closed after the last job
	fail := func(err error) {
		message := j.output.secrets.Message(err.Error())
		result = engine.Result{Status: engine.Failure, Message: message, System: true, Steps: engine.NotRun(spec.Definition)}
	}
	defer func() {
		if p := recover(); p != nil {
			fail(fmt.Errorf("internal error of the step runner: %v", p))
		}
		switch err := j.finish(&s.reuse, jobs); {
		case err == nil:
		case result.Status == engine.Success:
			result.Status, result.Message, result.System = engine.Failure, err.Error(), true
		default:
			result.Message = err.Error() + "; " + result.Message // the exit status stays at the end of the message
		}
	}()
	var err error
	if jobs, err = s.open(); err != nil {
		fail(err)
		return result
	}
	place, err := j.prepare(spec, jobs, s.reuse.take(jobs, filepath.Base(j.dir)), s.cfg.WorkBase)
	if err != nil {
		fail(err)
		return result
	}
	if s.cfg.Init != nil {
		defer s.cfg.Init.Show(place.WorkDir)() // its first step may be a file there, which is read before any command
	}
	return s.run(j.life, runner, place)
}

// mkdirIn makes the directory name in parent, and opens it. It finds parent even if a job has moved it.
func mkdirIn(parent *os.File, name string) (*os.File, error) {
	err := unix.Mkdirat(int(parent.Fd()), name, 0o700)
	fd := -1
	if err == nil {
		fd, err = unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "mkdir", Path: filepath.Join(parent.Name(), name), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(parent.Name(), name)), nil
}

// prepare makes the job's directories and files. jobs is the open directory of all jobs. kept is an unused directory of
// an earlier job, or nil. base is the base of a relative WorkDir.
func (j *record) prepare(spec Spec, jobs, kept *os.File, base string) (place engine.Place, err error) {
	if j.home = kept; kept == nil {
		if j.home, err = mkdirIn(jobs, filepath.Base(j.dir)); err != nil {
			return place, fmt.Errorf("create job directory: %w", oserr.Hint(err, jobs.Name()))
		}
	}
	for _, log := range j.logs {
		log.In(j.home)
	}
	if t := spec.Trace; t != nil {
		if t.File == "" {
			j.traceFile, err = recording.CreateNameless(j.home, TraceRoom)
		} else {
			j.traceFile, err = recording.Create(t.File, TraceRoom)
		}
		if err != nil {
			return place, err
		}
	}
	notices, err := hideAll(&j.output.secrets, spec)
	if err != nil {
		return place, err
	}
	j.output.connect(j.logs, append(notices, spec.Notices...))
	place = engine.Place{
		ScriptDir: j.dir, Script: j.home, Stdout: j.output.streams[Stdout], Stderr: j.output.streams[Stderr],
	}
	if spec.WorkDir == "" {
		place.WorkDir = filepath.Join(j.dir, workName)
		if kept == nil {
			err = unix.Mkdirat(int(j.home.Fd()), workName, 0o700)
		}
		if err != nil {
			return place, fmt.Errorf("create work directory: %w",
				oserr.Hint(&fs.PathError{Op: "mkdir", Path: place.WorkDir, Err: err}, j.dir))
		}
		return place, nil
	}
	if place.WorkDir = filepath.Clean(spec.WorkDir); !filepath.IsAbs(place.WorkDir) {
		place.WorkDir = filepath.Join(base, place.WorkDir)
	}
	if err := os.MkdirAll(place.WorkDir, 0o755); err != nil {
		return place, fmt.Errorf("create work_dir %s: %w", place.WorkDir, oserr.Hint(err, filepath.Dir(place.WorkDir)))
	}
	return place, nil
}

// isKept reports whether the file stays in the job's directory until the job is removed. Logs do.
func isKept(name string) bool { return slices.Contains(streamNames[:], name) }

// finish closes the logs and removes the job's temporary files, or keeps its directory, one of jobs, for the next job.
// The error names output that was lost and files that could not be removed.
//
//nolint:contextcheck // the files go, even if the caller's context has ended
func (j *record) finish(next *reuse, jobs *os.File) error {
	var errs []error
	if err := j.output.close(); err != nil {
		errs = append(errs, fmt.Errorf("the job's output is not complete: %w", err))
	}
	for stream, log := range j.logs {
		if err := log.Close(); err != nil {
			errs = append(errs, fmt.Errorf("the job's %v is not complete: %w", Stream(stream), err))
		}
	}
	if j.home != nil && next.keep(jobs, j.home, filepath.Base(j.dir)) {
		j.home = nil
	}
	if j.home != nil {
		if err := rmtree.EmptyOpen(context.Background(), j.home, isKept); err != nil {
			errs = append(errs, fmt.Errorf("remove the job's files: %w", err))
		}
	}
	return errors.Join(errs...)
}
