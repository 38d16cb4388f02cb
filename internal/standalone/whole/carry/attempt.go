package carry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/remote/archive"
)

// Executor carries out attempts of jobs at some place: on a VM, for example.
type Executor interface {
	// Execute carries out an attempt to its end. [Attempt.Gather] and [Attempt.GatherFrom] make its outcome. When ctx
	// ends, the job gets SIGTERM, its grace and SIGKILL; when abort ends, it is killed. An error says that the attempt
	// could not be carried out to its end. Several goroutines may call Execute at once.
	Execute(ctx, abort context.Context, a *Attempt) (*Outcome, error)
}

// Attempt is an attempt of a job.
type Attempt struct {
	// Name is the name of the job, which no other job of the run has. Number counts its attempts from 1.
	Name   string
	Number int
	// Keeps says that the job goes on when the run is cancelled, and Interruptible that a newer run may end it.
	Keeps, Interruptible bool
	// Prepared is the job itself.
	*Prepared
	// Archives are unpacked one after the other into the empty directory of the job: that of the project, which is always
	// there, and then the artifacts of other jobs.
	Archives []Archive
	// Timeout bounds the attempt, from its start. Zero if the job is not bounded.
	Timeout time.Duration
	// Stdout and Stderr get the output of the job.
	Stdout, Stderr io.Writer
	// Started is called when the attempt has its slot. Until then the job counts as waiting.
	Started func()
	// Say shows a line about the job, and SayOnce one that is about other jobs, too. They may be called at any time until
	// Execute has returned.
	Say, SayOnce func(line string)
	// Shelf is where the archives of the run are. TempDir is for directories, which are removed when Execute returns.
	Shelf   Shelf
	TempDir string
	// WithTests says that the run asks for reports of tests.
	WithTests bool
	// Tracked returns the files of the project.
	Tracked func() map[string]bool
}

// Outcome says how an attempt ended. It has the files and values that the job gives to others.
type Outcome struct {
	// Report has the Status, the Reason and the ExitCode. The rest of it is for [Prepared.Values].
	Report *standalone.Report
	// Artifacts are its artifacts, and Values the values that it has reported.
	Artifacts Archive
	Values    map[string]string
	// Tests are elements testsuite in the form of JUnit, if the run asks for them.
	Tests []byte
}

// Patterns are the patterns of the files in the directory of the job that GatherFrom needs. The list may be empty.
func (a *Attempt) Patterns() (all []string) {
	if a.Artifacts.Untracked {
		return []string{"."}
	}
	return slices.Concat(a.Artifacts.Paths, a.Reports())
}

// PatternsAfter are the Patterns after a job that succeeded, or that failed.
func (a *Attempt) PatternsAfter(succeeded bool) []string {
	if a.Artifacts.When.after(succeeded) {
		return a.Patterns()
	}
	return a.Reports()
}

// Reports are those of the patterns that GatherFrom needs after any outcome.
func (a *Attempt) Reports() []string {
	if !a.WithTests {
		return a.ValueFiles
	}
	return slices.Concat(a.ValueFiles, a.Tests)
}

// Gather returns the outcome of an attempt from the directory in which the job has run.
func (a *Attempt) Gather(ctx context.Context, dir string, report *standalone.Report) (*Outcome, error) {
	o := &Outcome{Report: report}
	var err error
	if a.WithTests {
		if o.Tests, err = readTests(ctx, a.Name, dir, a.Tests, func(text string) { a.Say("tests: " + text) }); err != nil {
			return nil, err
		}
	}
	if a.Values != nil {
		if o.Values, err = a.Values(dir, report); err != nil {
			a.Say("artifacts: " + err.Error())
		}
	}
	if !a.Artifacts.wanted(report) {
		return o, nil
	}
	selection := a.selection(dir, a.Artifacts.Paths, a.Artifacts.Untracked, func(text string) {
		a.Say("artifacts: " + text)
	})
	selection.Exclude, selection.OnlyInside = a.Artifacts.Exclude, true
	found, err := archive.Find(ctx, selection)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	if len(found.Names()) == 0 {
		return o, nil
	}
	if o.Artifacts, err = a.Shelf.Pack(ctx, found); err != nil {
		return nil, fmt.Errorf("keep the artifacts: %w", err)
	}
	return o, nil
}

// GatherFrom is Gather for a job that has run elsewhere. packed is an archive in Shelf of the files that match
// Patterns, and untrusted. It is nil if no file matches. GatherFrom may rename it.
func (a *Attempt) GatherFrom(ctx context.Context, packed *os.File, report *standalone.Report) (o *Outcome, err error) {
	if a.isWhole() {
		o = &Outcome{Report: report}
		if packed != nil && a.Artifacts.wanted(report) {
			o.Artifacts, err = a.Shelf.keep(packed)
		}
		return o, err
	}
	dir, err := os.MkdirTemp(a.TempDir, "job-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rmtree.Remove(dir)) }()
	if packed != nil {
		if _, err := archive.Extract(ctx, packed, dir, archive.Bounds{}); err != nil {
			return nil, fmt.Errorf("unpack the artifacts: %w", err)
		}
	}
	return a.Gather(ctx, dir, report)
}

// isWhole reports whether the files that match Patterns are the artifacts, and nothing else.
func (a *Attempt) isWhole() bool {
	return !a.Artifacts.Untracked && len(a.Artifacts.Exclude) == 0 && len(a.Patterns()) == len(a.Artifacts.Paths) &&
		a.Values == nil
}

// selection selects files of a job.
func (a *Attempt) selection(dir string, paths []string, untracked bool, warn func(string)) archive.Selection {
	s := archive.Selection{Dir: dir, Paths: paths, Untracked: untracked, Info: func(string) {}, Warn: warn}
	if untracked {
		s.Tracked = a.Tracked()
	}
	return s
}
