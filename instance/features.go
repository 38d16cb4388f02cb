package instance

import (
	"errors"
	"fmt"
	"strconv"
)

// The names of the feature flags, as GitLab Runner has them. They are independent of each other.
const (
	// FlagFunctionMigrations allows jobs with `script:` to be migrated to steps on instances.
	FlagFunctionMigrations = "FF_FUNCTION_MIGRATIONS_ON_INSTANCE_EXECUTOR"
	// FlagScriptToStep requests the migration of `script:` to steps, by any executor with native steps.
	FlagScriptToStep = "FF_SCRIPT_TO_STEP_MIGRATION"
)

// Features are the abilities of an executor for one job, named as in GitLab's FeaturesInfo.
type Features struct {
	// Variables: it takes the job's variables. Always.
	Variables bool
	// Shared: it may be used by runners of several projects. Always.
	Shared bool
	// NativeStepsIntegration: it can run the job as steps with its own step runner.
	NativeStepsIntegration bool
	// UseNativeSteps: the job must be run as steps, by Connect and Execute, and not as a shell script, by Run.
	// It has `run:`, or its `script:` is to be migrated. It is not part of FeaturesInfo.
	UseNativeSteps bool
}

// Features returns the features for a job on any of the instances, as they must be known before the job has one.
// hasRun tells whether the job has `run:`, which needs no flag.
//
// The flags are read in the same way as by GitLab Runner: a flag in configured, the runner's configuration, has that
// value; otherwise the job's variable of that name counts, and is true if strconv.ParseBool returns true. An invalid
// value counts as false; the error names it, and the features are valid nevertheless. Both maps may be nil.
func (p *Provider) Features(configured map[string]bool, variables map[string]string, hasRun bool) (Features, error) {
	migrate, err := flag(FlagFunctionMigrations, configured, variables)
	toStep, toStepErr := flag(FlagScriptToStep, configured, variables)
	native := p.cfg.Group.allLinux() && (hasRun || migrate)
	return Features{
		Variables:              true,
		Shared:                 true,
		NativeStepsIntegration: native,
		UseNativeSteps:         native && (hasRun || toStep),
	}, errors.Join(err, toStepErr)
}

// flag returns the value of a feature flag.
func flag(name string, configured map[string]bool, variables map[string]string) (bool, error) {
	if on, ok := configured[name]; ok {
		return on, nil
	}
	value := variables[name]
	if value == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("feature flag %s is %q, which counts as false: use true or false", name, value)
	}
	return on, nil
}
