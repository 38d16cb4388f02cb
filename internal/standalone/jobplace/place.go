// Package jobplace reads the containers that jobs of a .gitlab-ci.yml or of a workflow describe.
//
// [Of] returns that of one job, and [Each] those of all jobs of a whole pipeline. The callers decide whether jobs run
// in them, and make them by connector/place.
package jobplace

import (
	"fmt"
	"slices"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Of returns the container that a job of a .gitlab-ci.yml or of a workflow describes, or nil.
func Of(j *standalone.Job) (*place.Spec, error) {
	if len(j.Container) == 0 {
		return nil, nil
	}
	_, own, err := place.FromJob("job "+j.Source.JobName, j.Container)
	if err != nil || j.Source.Kind == trace.FromGitHub {
		return own, err
	}
	var vars []string
	for _, v := range j.Vars {
		vars = append(vars, v.Key+"="+v.Value)
	}
	for i := range own.Services { // as in GitLab, services get the variables of the job
		own.Services[i].Env = append(slices.Clip(vars), own.Services[i].Env...)
	}
	return own, nil
}

// Each calls check with the jobs of p and of the pipelines that these start, and with the containers that they
// describe, or nil. Values that other jobs make are not known yet.
func Each(p *whole.Pipeline, check func(j *standalone.Job, own *place.Spec) error) error {
	for _, j := range p.Jobs {
		if j.Trigger != nil && j.Trigger.Child != nil {
			if err := Each(j.Trigger.Child, check); err != nil {
				return err
			}
		}
		if j.Prepare == nil || j.Trigger != nil {
			continue
		}
		prepared, err := j.Prepare(nil)
		if err != nil { // the values of other jobs may be missing
			continue
		}
		own, err := Of(prepared.Job)
		if err == nil {
			err = check(prepared.Job, own)
		}
		if err != nil {
			return fmt.Errorf("the job %.64q: %w", j.Name, err)
		}
	}
	return nil
}
