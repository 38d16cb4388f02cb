package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/remote/standalone"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// maxVariables bounds the variables of all --env-file.
const maxVariables = 10_000

// settingFlags name the files that a command takes flags and variables from.
type settingFlags struct {
	configFile string
	envFiles   []string
}

func (f *settingFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.configFile, "config", "",
		"YAML `FILE` with flags, by their names without the dashes; flags on the command line go first")
	fl.StringArrayVar(&f.envFiles, "env-file", nil, "`FILE` with lines NAME=VALUE, job variables; NAME alone takes the "+
		"value in the environment, and # begins a comment; repeatable, the last of several values counts")
	grouped(fl, fileGroup)
}

// apply sets the flags of cmd that the file of --config names.
func (f *settingFlags) apply(cmd *cobra.Command) error {
	if f.configFile == "" {
		return nil
	}
	if err := applyConfig(cmd.Flags(), f.configFile); err != nil {
		return err
	}
	if err := cmd.ValidateFlagGroups(); err != nil {
		return fmt.Errorf("%s: %w", f.configFile, err)
	}
	return nil
}

// variables returns the lines NAME=VALUE of the files, the last of several values for a name.
func (f *settingFlags) variables(lookup func(string) (string, bool)) (vars []string, err error) {
	for _, name := range f.envFiles {
		text, err := standalone.ReadFile(name, os.Stdin)
		if err == nil && len(text) > lang.MaxText {
			err = fmt.Errorf("%s: it has more than %d MiB", name, lang.MaxText>>20)
		}
		if err != nil {
			return nil, fmt.Errorf("--env-file: %w", err)
		}
		if vars, err = addVariables(vars, name, text, lookup); err != nil {
			return nil, fmt.Errorf("--env-file: %w", err)
		}
	}
	return vars, nil
}

// addVariables adds those of a text in the form of docker's --env-file: values stand as they are, quotes too, and a
// name alone without a value in the environment is passed over.
func addVariables(vars []string, file string, text []byte, lookup func(string) (string, bool)) ([]string, error) {
	n := 0
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		n++
		line = bytes.TrimLeft(bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), " \t")
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(string(line), "=")
		switch {
		case !utf8.Valid(line) || bytes.ContainsRune(line, 0):
			return nil, fmt.Errorf("%s:%d: the line is not valid UTF-8, or has a zero byte", file, n)
		case !lang.IsName(name):
			return nil, fmt.Errorf("%s:%d: the variable name%s is not valid; write NAME=VALUE, or NAME for its value in the "+
				"environment", file, n, lang.Quote(name))
		case !ok:
			if value, ok = lookup(name); !ok {
				continue
			}
		}
		vars = slices.DeleteFunc(vars, func(other string) bool { return strings.HasPrefix(other, name+"=") })
		if vars = append(vars, name+"="+value); len(vars) > maxVariables {
			return nil, fmt.Errorf("%s:%d: there are more than %d variables", file, n, maxVariables)
		}
	}
	return vars, nil
}
