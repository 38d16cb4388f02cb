package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/remote/standalone"
)

type validateFlags struct {
	format  string
	workDir string
	output  string
	schema  bool
}

func newValidateCommand() *cobra.Command {
	var f validateFlags
	cmd := &cobra.Command{
		Use:   "validate [flags] FILE...",
		Short: "Check steps, definitions of steps, and .gitlab-ci.yml",
		Long: `Check each FILE (- is standard input) without running anything: a job's steps, the definition of a step, or a
.gitlab-ci.yml. Each mistake is a line on standard output, with file, line, column and a remedy: the first mistake in
steps, and the first mistake of each job in a .gitlab-ci.yml.

With --output json standard output has one object with the mistakes of each file. --schema prints a JSON Schema for
editors.

Exit codes:
  0  every FILE is valid
  2  wrong usage, or a FILE that is not valid or cannot be read`,
		Example: `  stepmux validate examples/hello.yml
  stepmux validate --schema >steps.schema.json`,
		RunE: func(cmd *cobra.Command, files []string) error { return f.run(cmd, files) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.format, "format", "",
		"steps or gitlab-ci (default gitlab-ci for names that end in .gitlab-ci.yml, else steps)")
	fl.StringVar(&f.workDir, "work-dir", ".", "directory of the files that a .gitlab-ci.yml includes")
	fl.StringVar(&f.output, "output", "text", "text or json")
	fl.BoolVar(&f.schema, "schema", false, "print the JSON Schema of steps")
	return cmd
}

func (f *validateFlags) run(cmd *cobra.Command, files []string) error {
	out := cmd.OutOrStdout()
	switch {
	case f.schema && len(files) > 0:
		return usageError(fmt.Errorf("--schema takes no FILE"))
	case f.schema:
		if _, err := out.Write(standalone.Schema()); err != nil {
			return systemError(err)
		}
		return nil
	case len(files) == 0:
		return usageError(fmt.Errorf("the file to check is missing; name a FILE"))
	}
	if err := checkOutput(f.output); err != nil {
		return usageError(err)
	}
	valid := true
	verdicts := make([]standalone.Verdict, len(files))
	for i, name := range files {
		var err error
		if verdicts[i], err = f.check(cmd, name); err != nil {
			return usageError(fmt.Errorf("--format: %w", err))
		}
		valid = valid && verdicts[i].Valid
		if f.output == "text" {
			for _, problem := range verdicts[i].Errors {
				fmt.Fprintln(out, problem)
			}
		}
	}
	if f.output == "json" {
		writeJSON(out, map[string]any{"valid": valid, "files": verdicts})
	}
	if !valid {
		return &exitError{code: exitUsage}
	}
	return nil
}

// check checks one file.
func (f *validateFlags) check(cmd *cobra.Command, name string) (standalone.Verdict, error) {
	format, err := standalone.ParseFormat(f.format, name)
	if err != nil {
		return standalone.Verdict{}, err
	}
	text, err := standalone.ReadFile(name, cmd.InOrStdin())
	if err != nil {
		return standalone.Unreadable(name, err), nil
	}
	if name == "-" {
		name = "stdin"
	}
	return standalone.Validate(name, text, format, f.workDir), nil
}
