package service

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// maxKey is the longest key of a variable: it may become the name of a file (NAME_MAX).
const maxKey = 255

// managerSpecOf checks req and returns the job it asks for. The error names the field.
func managerSpecOf(req *runnerproto.RunRequest) (job.Spec, error) {
	dir := cmp.Or(req.GetJob().GetBuildDir(), req.GetWorkDir())
	spec := job.Spec{ID: req.GetId(), WorkDir: dir, Merged: true, Config: engine.Config{
		Env: req.GetEnv(),
		// GitLab documents that the operating system's environment is the last layer. Unknown keys are tolerated
		// because the manager may be newer.
		Policy: engine.Passing("all"), Tolerant: true,
	}}
	dirs := map[string]string{"work_dir": req.GetWorkDir(), "job.build_dir": req.GetJob().GetBuildDir()}
	err := check(&spec, dirs)
	if err != nil {
		return spec, err
	}
	for i, v := range req.GetJob().GetVariables() {
		if key := v.GetKey(); !lang.IsName(key) || len(key) > maxKey {
			return spec, fmt.Errorf("job.variables[%d].key: use letters, digits and _, not a digit first, at most %d in all",
				i, maxKey)
		}
		// A manager may send a key several times. The last value counts, in the place of the first one.
		last := engine.Variable{Key: v.GetKey(), Value: v.GetValue(), File: v.GetFile(), Masked: v.GetMasked()}
		at := slices.IndexFunc(spec.Vars, func(other engine.Variable) bool { return other.Key == last.Key })
		if at < 0 {
			spec.Vars, at = append(spec.Vars, last), len(spec.Vars)
		}
		spec.Vars[at] = last
	}
	if err := setLogLevel(&spec); err != nil {
		return spec, err
	}
	var warnings []*lang.Error
	if spec.Definition, warnings, err = lang.ParseTolerant("steps", []byte(req.GetSteps())); err != nil {
		return spec, err
	}
	spec.Places = lang.NewLocator("steps", []byte(req.GetSteps()))
	for _, w := range warnings {
		spec.Notices = append(spec.Notices, "Warning: "+w.Error())
	}
	spec.Digest, err = digest(req)
	return spec, err
}

// logLevelVariable tells steps how much to log. Every job of this service has it.
const logLevelVariable = "CI_STEPS_LOG_LEVEL"

// setLogLevel sets the log level of a job's steps from the job's variables.
func setLogLevel(spec *job.Spec) error {
	level := "info"
	for _, v := range spec.Vars {
		if v.Key == logLevelVariable && strings.TrimSpace(v.Value) != "" {
			level = strings.ToLower(strings.TrimSpace(v.Value))
		}
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, level) {
		return fmt.Errorf("job.variables: the value of %s is not supported; use debug, info, warn or error", logLevelVariable)
	}
	env := maps.Clone(spec.Env)
	if env == nil {
		env = map[string]string{}
	}
	if _, given := env[logLevelVariable]; !given {
		env[logLevelVariable] = level
	}
	spec.Env = env
	return nil
}
