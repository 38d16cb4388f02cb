package replay

import (
	"cmp"
	"context"
	"errors"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/inspect"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Result compares the runs of a plan with the trace.
type Result struct {
	// Schema names this form.
	Schema string `json:"schema"`
	// Same says that all runs are equal to the trace.
	Same bool `json:"same"`
	// Runs is the number of runs.
	Runs int `json:"runs"`
	// Status, Reason and ExitCode are those of the last run.
	Status   string            `json:"status"`
	Reason   standalone.Reason `json:"reason,omitempty"`
	ExitCode *int              `json:"exit_code,omitempty"`
	// Differences has each difference once, with the values of the first run that had it.
	Differences []Difference `json:"differences"`
	// More is the number of further differences, in the run that had most of them.
	More int `json:"more,omitempty"`
	// Unknown is how many values are masked by different salts, so that they cannot be compared.
	Unknown int `json:"unknown,omitempty"`
}

const resultSchema = "stepmux-replay/v1"

// Difference is a place that was different in some of the runs.
type Difference struct {
	inspect.Difference
	// Runs is the number of runs in which it was different.
	Runs int `json:"runs"`
}

// Run runs the plan in its work directory, as [standalone.Run] does, and compares the result with t, the plan's trace.
// It does so times times, one after the other, and ends early when the job is stopped or this machine fails.
//
// If cfg has a file for a trace, the trace of the first run that differs is written there, or else that of the last
// run. ended is called after each run; it may be nil. The error is a *RefusedError if the job needed a component that
// is not in the trace, or an error of standalone.Run: then there is no comparison.
func (p *Plan) Run(
	ctx, abort context.Context,
	t *trace.Trace,
	times int,
	ignore inspect.Ignore,
	cfg standalone.Config,
	ended func(*standalone.Report),
) (*Result, error) {
	file := ""
	if cfg.Trace != nil {
		file = cfg.Trace.File
	}
	cfg.WorkDir, cfg.Fetcher = p.workDir, p.Fetcher
	result := &Result{Schema: resultSchema, Same: true, Differences: []Difference{}}
	for range times {
		cfg.Trace = &standalone.Trace{File: file, Salt: p.Salt}
		report, err := standalone.Run(ctx, abort, p.Job, cfg)
		if err = errors.Join(err, p.Refused()); report == nil || report.Trace == nil {
			return nil, cmp.Or(err, errors.New("the job has left no trace"))
		}
		if ended != nil && !errors.Is(err, standalone.ErrStuck) {
			ended(report)
		}
		result.Runs++
		result.Status, result.Reason, result.ExitCode = report.Status, report.Reason, report.ExitCode
		if err != nil {
			return nil, err
		}
		now := *report.Trace
		if p.vmsEnd {
			now.Identity.Runtime.Runner = t.Identity.Runtime.Runner
		}
		if err := result.compare(t, &now, ignore); err != nil {
			return nil, err
		}
		if !result.Same {
			file = "" // it has the trace of a run that differs
		}
		if ctx.Err() != nil || report.Reason == standalone.System {
			break
		}
	}
	return result, nil //nolint:nilerr // the owner of ctx knows that it has ended
}

// compare adds the differences of one run.
func (r *Result) compare(old, now *trace.Trace, ignore inspect.Ignore) error {
	c, err := inspect.Compare(old, now, ignore)
	if err != nil {
		return err
	}
	known := make(map[string]int, len(r.Differences))
	for i, d := range r.Differences {
		known[d.Pointer] = i
	}
	for _, d := range c.Differences {
		if i, twice := known[d.Pointer]; twice {
			r.Differences[i].Runs++
			continue
		}
		r.Differences = append(r.Differences, Difference{d, 1})
	}
	r.Same = r.Same && c.Same()
	r.More, r.Unknown = max(r.More, c.More), max(r.Unknown, c.Unknown)
	return nil
}
