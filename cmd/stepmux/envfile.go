package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/flagfile"
	"github.com/stepmux/stepmux/internal/standalone"
)

// settingFlags name files with flags and variables for a command.
type settingFlags struct {
	configFile string
	envFiles   []string
}

func (f *settingFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.configFile, "config", "",
		"YAML `FILE` with flags, by their names without the dashes; flags on the command line take precedence")
	fl.StringArrayVar(&f.envFiles, "env-file", nil, "`FILE` with lines NAME=VALUE, job variables; NAME alone takes the "+
		"value in the environment, and # begins a comment; repeatable, the last value of a name counts")
	grouped(fl, fileGroup)
}

// apply sets the flags of cmd from the file of --config.
func (f *settingFlags) apply(cmd *cobra.Command) error {
	if f.configFile == "" {
		return nil
	}
	if err := flagfile.Apply(cmd.Flags(), f.configFile); err != nil {
		return err
	}
	if err := cmd.ValidateFlagGroups(); err != nil {
		return fmt.Errorf("%s: %w", f.configFile, err)
	}
	return nil
}

// variables returns the lines NAME=VALUE of the files. If a name occurs several times, the last value counts.
func (f *settingFlags) variables() ([]string, error) {
	vars, err := standalone.ReadEnvFiles(f.envFiles, os.LookupEnv)
	if err != nil {
		return nil, fmt.Errorf("--env-file: %w", err)
	}
	return vars, nil
}
