package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// policyFlags decide which environment variables reach the steps of a job.
type policyFlags struct {
	policy engine.Policy
	strict bool
}

// registerStrict registers --strict-scripts.
func (f *policyFlags) registerStrict(fl *pflag.FlagSet) {
	fl.BoolVar(&f.strict, "strict-scripts", false,
		"refuse a job that 'stepmux validate' warns about: one whose script goes on after a line that fails, or has lines "+
			"that end with CRLF")
}

// checkScripts returns the error about the first warning of a job, with --strict-scripts.
func (f *policyFlags) checkScripts(warnings []standalone.Problem) error {
	if f.strict && len(warnings) > 0 {
		return fmt.Errorf("%s (--strict-scripts)", warnings[0])
	}
	return nil
}

// options returns the flags as options of a job.
func (f *policyFlags) options() *stepmuxv1.Job {
	return &stepmuxv1.Job{PassEnv: f.policy.PassEnv, UnsafeExports: f.policy.UnsafeExports}
}

// registerEnvironment registers --pass-env. whose names the environment in the help.
func (f *policyFlags) registerEnvironment(fl *pflag.FlagSet, whose string) {
	fl.StringSliceVar(&f.policy.PassEnv, "pass-env", nil,
		"`NAMES` of variables of "+whose+" environment that reach the steps, in addition to those about the machine, the "+
			"user and the proxies; or all, without those that look like secrets; or none")
	_ = fl.SetAnnotation("pass-env", valuesKey, []string{"all", "none"}) // cannot fail: the flag exists
}

func (f *policyFlags) registerUnsafeExports(fl *pflag.FlagSet) {
	choiceFlag(fl, &f.policy.UnsafeExports, "unsafe-exports",
		"treatment of exports such as LD_PRELOAD: drop (the default, with a warning), refuse or allow",
		"drop", "refuse", "allow")
}

// check returns an error if a value of the flags is not valid.
func (f *policyFlags) check() error {
	if err := f.policy.Check(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	return nil
}
