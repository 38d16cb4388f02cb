package trace

import "github.com/stepmux/stepmux/remote/step/mask"

// The functions that cut a trace return words for a warning about it.

// cutLastHalf leaves out the large data of the last half of the steps.
func (t *Trace) cutLastHalf() string {
	all := stepsBelow(t.Identity.Steps, nil)
	return cutSteps(all[len(all)/2:])
}

// cutSteps leaves out the large data of all steps.
func (t *Trace) cutSteps() string { return cutSteps(stepsBelow(t.Identity.Steps, nil)) }

// cutResults leaves out the outputs and the exports of the job.
func (t *Trace) cutResults() string {
	t.Identity.Outputs, t.Identity.Exports = nil, nil
	return "the outputs and the exports of the job are left out"
}

// stepsBelow adds steps, and those below them, to all.
func stepsBelow(steps []Step, all []*Step) []*Step {
	for i := range steps {
		all = stepsBelow(steps[i].Steps, append(all, &steps[i]))
	}
	return all
}

func cutSteps(steps []*Step) string {
	for _, s := range steps {
		s.Definition, s.Inputs, s.EnvSet, s.Env, s.Outputs, s.Exports = nil, nil, nil, nil, nil, nil
		if s.Exec != nil {
			s.Exec.Argv = []mask.Text{}
		}
		s.Truncated = true
	}
	return "steps marked as truncated lack large data"
}
