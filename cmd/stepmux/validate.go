package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote"
)

type validateFlags struct {
	formatFlag
	workDir string
	output  string
	schema  bool
}

func newValidateCommand() *cobra.Command {
	var f validateFlags
	cmd := &cobra.Command{
		Use:   "validate [flags] FILE...",
		Short: "Check steps, definitions of steps, .gitlab-ci.yml files and GitHub workflows",
		Long: `Check each FILE (- is standard input) without running anything: a job's steps, the definition of a step, a
.gitlab-ci.yml, a workflow of GitHub Actions, or a shell script for stepmux run. Each mistake is a line on standard
output, with file, line, column and a remedy: the first mistake in steps or in a workflow, and the first mistake of each
job in a .gitlab-ci.yml. Local steps are checked too; nothing is fetched, and no shell is parsed.
A warning names a valid part that may not do what its author expects. It does not change the exit code.

With --output json standard output has one object with the mistakes of each file. --schema prints a JSON Schema for
editors.

Exit codes:
  0  every FILE is valid
  2  wrong usage, or a FILE that is not valid or cannot be read`,
		Example: `  stepmux validate examples/hello.yml
  stepmux validate --schema >steps.schema.json`,
		RunE: f.run,
	}
	fl := cmd.Flags()
	f.register(fl, "steps", "gitlab-ci", "github")
	fl.StringVar(&f.workDir, "work-dir", ".",
		"directory of the job, with its local steps and the files that a .gitlab-ci.yml includes")
	outputFlag(fl, &f.output, "text or json")
	fl.BoolVar(&f.schema, "schema", false, "print the JSON Schema of steps")
	return cmd
}

func (f *validateFlags) run(cmd *cobra.Command, files []string) error {
	out := cmd.OutOrStdout()
	switch {
	case f.schema && len(files) > 0:
		return errors.New("--schema takes no FILE")
	case f.schema:
		_, err := out.Write(standalone.Schema())
		return systemError(err)
	case len(files) == 0:
		return errors.New("the file to check is missing; name a FILE")
	}
	valid := true
	verdicts := make([]standalone.Verdict, len(files))
	for i, name := range files {
		verdicts[i] = f.verdict(cmd, name)
		valid = valid && verdicts[i].Valid
		if f.output == "text" {
			if err := showProblems(out, verdicts[i]); err != nil {
				return systemError(err)
			}
		}
	}
	if f.output == "json" {
		if err := writeJSON(out, map[string]any{"valid": valid, "files": verdicts}); err != nil {
			return systemError(err)
		}
	}
	if !valid {
		return withCode(exitUsage, nil)
	}
	return nil
}

// verdict checks one FILE.
func (f *validateFlags) verdict(cmd *cobra.Command, name string) standalone.Verdict {
	src, err := f.readFile(name, cmd.InOrStdin())
	if err == nil && src.Format == standalone.Steps {
		script, other := isScript(src.Name, src.Text)
		switch {
		case other != nil && len(src.Text) > remote.MaxSteps:
			return standalone.Unreadable(name, other)
		case other == nil && script:
			return standalone.ValidateScript(src.Name, string(src.Text))
		}
		src.Text, _, err = place.FromJob(src.Name, src.Text)
	}
	if err != nil {
		return standalone.Unreadable(name, err)
	}
	if src.WorkDir = f.workDir; src.Format == standalone.GitLabCI {
		if src.WorkDir, err = filepath.Abs(f.workDir); err != nil {
			return standalone.Unreadable(name, err)
		}
		addCheckout(cmd.Context(), &src, src.WorkDir)
	}
	return standalone.Validate(cmd.Context(), src)
}

// formatFlag holds --format, the format of files with steps, and its companions.
type formatFlag struct{ format, includes string }

// register adds the flags of a command that reads these formats: steps, gitlab-ci and github, or some of them.
func (f *formatFlag) register(fl *pflag.FlagSet, formats ...string) {
	var names []string
	if slices.Contains(formats, "gitlab-ci") {
		names = append(names, "gitlab-ci for names that end in .gitlab-ci.yml")
	}
	if slices.Contains(formats, "github") {
		names = append(names, "github for files in .github/workflows")
	}
	choiceFlag(fl, &f.format, "format",
		fmt.Sprintf("%s (default %s, else steps)", either(formats), strings.Join(names, ", ")), formats...)
	if !slices.Contains(formats, "gitlab-ci") {
		return
	}
	fl.StringVar(&f.includes, "includes", "", "directory with the files that a .gitlab-ci.yml includes from elsewhere, "+
		"as PROJECT/PATH, HOST/PATH of a URL or component, or templates/NAME (default: they are left out)")
}

// readFile reads a file, or standard input if name is "-".
func (f *formatFlag) readFile(name string, stdin io.Reader) (src standalone.Source, err error) {
	if src.Format, err = standalone.ParseFormat(f.format, name); err != nil {
		return src, err
	}
	if src.Name = name; name == "-" {
		src.Name = "stdin"
	}
	src.Text, err = standalone.ReadFile(name, stdin)
	src.Includes = f.includes
	return src, err
}

func showProblems(w io.Writer, v standalone.Verdict) error {
	var text strings.Builder
	for _, problem := range v.Errors {
		fmt.Fprintln(&text, termtext.Text(problem.String()))
	}
	for _, warning := range v.Warnings {
		warning.Message = "warning: " + warning.Message
		fmt.Fprintln(&text, termtext.Text(warning.String()))
	}
	_, err := io.WriteString(w, text.String())
	return err
}
