package replay

import (
	"cmp"
	"context"
	"errors"

	"github.com/stepmux/stepmux/remote/standalone"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/inspect"
)

// Result is how runs of a plan compare with the trace.
type Result struct {
	// Schema names this form.
	Schema string `json:"schema"`
	// Same tells that all runs equal the trace.
	Same bool `json:"same"`
	// Runs is how many there were.
	Runs int `json:"runs"`
	// Status, Reason and ExitCode are those of the last one.
	Status   string            `json:"status"`
	Reason   standalone.Reason `json:"reason,omitempty"`
	ExitCode *int              `json:"exit_code,omitempty"`
	// Differences are all that was different in any of them, with the values of the first.
	Differences []Difference `json:"differences"`
	// More is how many beyond these the run with most of them had.
	More int `json:"more,omitempty"`
	// Unknown is how many values were masked by salts that differ, so that nobody can tell.
	Unknown int `json:"unknown,omitempty"`
}

const resultSchema = "stepmux-replay/v1"

// Difference is a place that was different in some of the runs.
type Difference struct {
	inspect.Difference
	// Runs is in how many.
	Runs int `json:"runs"`
}

// Run runs the plan in its work directory, as [standalone.Run] does, and compares the result with t, the plan's
// trace. It repeats that times times, one after the other; it ends early when the job is stopped or this machine
// fails. If cfg has a file for a trace, the first run that differs is written there, or else the last run. ended is
// told of each run; it may be nil. The error is a *RefusedError if the job was refused something while it ran, or one
// of standalone.Run: then there is no comparison.
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
		if ended != nil {
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
			file = "" // it has what was different
		}
		if ctx.Err() != nil || report.Reason == standalone.System {
			break
		}
	}
	return result, nil //nolint:nilerr // whoever ended ctx knows that
}

// compare adds how one run differs.
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
