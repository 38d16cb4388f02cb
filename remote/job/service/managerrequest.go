package service

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// maxKey is the longest key of a variable, which may be the name of a file (NAME_MAX).
const maxKey = 255

// managerSpecOf checks req and returns the job it asks for. The error names the field.
func managerSpecOf(req *runnerproto.RunRequest) (job.Spec, error) {
	spec := job.Spec{
		ID:      req.GetId(),
		WorkDir: cmp.Or(req.GetJob().GetBuildDir(), req.GetWorkDir()),
		Merged:  true,
		Config:  engine.Config{Env: req.GetEnv()},
	}
	if err := checkID(spec.ID); err != nil {
		return spec, err
	}
	if err := checkPath("work_dir", req.GetWorkDir()); err != nil {
		return spec, err
	}
	if err := checkPath("job.build_dir", req.GetJob().GetBuildDir()); err != nil {
		return spec, err
	}
	err := lang.CheckEnv("env", spec.Env)
	if err != nil {
		return spec, err
	}
	for i, v := range req.GetJob().GetVariables() {
		if key := v.GetKey(); !lang.IsName(key) || len(key) > maxKey {
			return spec, fmt.Errorf("job.variables[%d].key: use letters, digits and _, not a digit first, at most %d in all",
				i, maxKey)
		}
		spec.Vars = setVariable(spec.Vars, engine.Variable{
			Key: v.GetKey(), Value: v.GetValue(), File: v.GetFile(), Masked: v.GetMasked(),
		})
	}
	if spec.Definition, err = lang.Parse("steps", []byte(req.GetSteps())); err != nil {
		return spec, err
	}
	spec.Digest, err = digest(req)
	return spec, err
}

// setVariable appends v, or replaces a variable of the same key: a manager may send several, and the last one counts.
func setVariable(vars []engine.Variable, v engine.Variable) []engine.Variable {
	i := slices.IndexFunc(vars, func(other engine.Variable) bool { return other.Key == v.Key })
	if i < 0 {
		return append(vars, v)
	}
	vars[i] = v
	return vars
}
