package whole

import (
	"cmp"
	"context"

	"github.com/stepmux/stepmux/pipeline"
)

// begin waits until a run may begin: until no other run of its group runs. If a newer run stops this one, the context
// ends with its cause. Without an error, the caller calls leave at the end of the run.
func (r *runner) begin(ctx context.Context, p *Pipeline) (own context.Context, leave func(), err error) {
	if p.Group == "" {
		return r.series(ctx, p)
	}
	return r.enter(ctx, Member{Group: p.Group, Cancels: p.CancelInProgress, Newer: errNewerRun}, r.cfg.Say)
}

// replace makes the report that of a run which a newer one has ended, unless it had ended before.
func (r *Report) replace(why error) {
	if r.Status != Success {
		r.Why = why.Error()
	}
	if r.Status == Cancelled {
		r.ExitCode = exitReplaced
	}
	for i := range r.Jobs { // the end of the run may come before that of a build which is about to begin
		if j := &r.Jobs[i]; j.Status == Cancelled && j.Why == Cancelled {
			j.Why = why.Error()
		}
	}
}

// notRun returns the report of a run that was cancelled before it began.
func (p *Pipeline) notRun(why string, code int) *Report {
	r := &Report{Name: p.Name, Status: Cancelled, Why: why, ExitCode: code}
	for _, j := range p.Jobs {
		r.Jobs = append(r.Jobs, JobReport{
			Name: j.Name, Stage: j.Stage, Status: pipeline.Cancelled.String(), Why: cmp.Or(why, Cancelled),
		})
	}
	r.addLeft(p)
	return r
}
