package instance

import (
	"errors"
	"fmt"
	"strconv"
)

// The names of the feature flags, as GitLab Runner has them.
const (
	// FlagFunctionMigrations lets jobs with `script:` be migrated to steps on instances.
	FlagFunctionMigrations = "FF_FUNCTION_MIGRATIONS_ON_INSTANCE_EXECUTOR"
	// FlagScriptToStep asks for the migration of `script:` to steps, by whatever executor has native steps.
	FlagScriptToStep = "FF_SCRIPT_TO_STEP_MIGRATION"
)

// FeatureFlags are the feature flags that decide how a job with `script:` is run. They are independent of
// each other, and a job with `run:` needs neither.
type FeatureFlags struct {
	FunctionMigrations bool // FlagFunctionMigrations
	ScriptToStep       bool // FlagScriptToStep
}

// ParseFeatureFlags returns the flags as GitLab Runner finds them: a flag that the runner's configuration
// names has that value; else the job's variable of its name counts, true if strconv.ParseBool says so. A
// variable with another value counts as false; the error names those, and the flags are good all the same.
// Both maps may be nil.
func ParseFeatureFlags(configured map[string]bool, variables map[string]string) (FeatureFlags, error) {
	var flags FeatureFlags
	var wrong []error
	for name, flag := range map[string]*bool{
		FlagFunctionMigrations: &flags.FunctionMigrations,
		FlagScriptToStep:       &flags.ScriptToStep,
	} {
		if on, ok := configured[name]; ok {
			*flag = on
			continue
		}
		value := variables[name]
		if value == "" {
			continue
		}
		on, err := strconv.ParseBool(value)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("feature flag %s is %q, which counts as false: use true or false", name, value))
		}
		*flag = on
	}
	return flags, errors.Join(wrong...)
}

// Features are what an executor can do for a job, of those that GitLab's FeaturesInfo names.
type Features struct {
	// Variables: it takes the job's variables. Always.
	Variables bool
	// Shared: it may be used by runners of several projects. Always.
	Shared bool
	// NativeStepsIntegration: it can run the job as steps by a step runner of its own.
	NativeStepsIntegration bool
}

// features returns the features for a job with these flags, which has `run:` or not, on instances that
// all run Linux or not. `run:` needs no flag.
func features(linux bool, flags FeatureFlags, hasRun bool) Features {
	return Features{
		Variables:              true,
		Shared:                 true,
		NativeStepsIntegration: linux && (hasRun || flags.FunctionMigrations),
	}
}

// UseNativeSteps reports whether a job is to be run as steps, by Connect and Execute, and not as a shell
// script, by Run: because it has `run:`, or because its `script:` is to be migrated.
func (f Features) UseNativeSteps(flags FeatureFlags, hasRun bool) bool {
	return f.NativeStepsIntegration && (hasRun || flags.ScriptToStep)
}

// Features returns what the Provider can do for a job with these flags, which has `run:` or not, on
// whichever of its instances. That is known before an instance is.
func (p *Provider) Features(flags FeatureFlags, hasRun bool) Features {
	return features(p.cfg.Group.allLinux(), flags, hasRun)
}
