package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/remote/step/engine"
)

// policyFlags decide which environment variables reach the steps of a job.
type policyFlags struct {
	passEnv       []string
	unsafeExports string
}

// registerPassEnv registers --pass-env. whose names the environment in the help.
func (f *policyFlags) registerPassEnv(fl *pflag.FlagSet, whose string) {
	fl.StringSliceVar(&f.passEnv, "pass-env", nil,
		"`NAMES` of variables of "+whose+" environment that reach the steps, in addition to those about the machine, the "+
			"user and the proxies; or all, without those that look like secrets; or none")
	_ = fl.SetAnnotation("pass-env", valuesKey, []string{"all", "none"}) // cannot fail: the flag exists
}

func (f *policyFlags) registerUnsafeExports(fl *pflag.FlagSet) {
	choiceFlag(fl, &f.unsafeExports, "unsafe-exports",
		"treatment of exports such as LD_PRELOAD: drop (the default, with a warning), refuse or allow",
		"drop", "refuse", "allow")
}

// policies returns the values of the flags, nil for flags that were not given.
func (f *policyFlags) policies() (*engine.PassEnv, *engine.UnsafeExports, error) {
	var pass *engine.PassEnv
	if len(f.passEnv) > 0 {
		p, err := engine.ParsePassEnv(f.passEnv)
		if err != nil {
			return nil, nil, fmt.Errorf("--pass-env: %w", err)
		}
		pass = &p
	}
	if f.unsafeExports == "" {
		return pass, nil, nil
	}
	unsafe, err := engine.ParseUnsafeExports(f.unsafeExports)
	return pass, &unsafe, err
}
