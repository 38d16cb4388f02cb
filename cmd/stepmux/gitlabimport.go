package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/instance/manager/gitlabdoor/runnerconfig"
	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/privatefile"
	"github.com/stepmux/stepmux/internal/sortedkeys"
)

// newGitLabImportCommand returns the command that converts a config.toml.
func newGitLabImportCommand() *cobra.Command {
	var tokens string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Make the file of a manager from the config.toml of a GitLab Runner",
		Long: `Print the file of a manager that takes the jobs of the runners in FILE, a config.toml of GitLab Runner.
Comments in it say which keys have no place here, and what to do instead. Read them, and write the inventory that it
names.

The tokens of the runners are not printed. --tokens writes each into a file, which only you can read.

Nothing is changed at the server or in FILE. If GitLab Runner and the manager run with the same token, each gets a part
of the jobs.

Exit codes:
  0  the file is printed
  2  wrong usage, or FILE is not a valid config.toml
  3  a file with a token could not be written`,
		Example: "  stepmux gitlab import /etc/gitlab-runner/config.toml --tokens /etc/stepmux >/etc/stepmux/manager.yml\n" +
			"  stepmux manager --config /etc/stepmux/manager.yml --check",
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&tokens, "tokens", "", "write the tokens into new files in this `DIR`, which is made if it is "+
		"missing (default: none is written; the printed file expects them in /etc/stepmux)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text, err := boundedfile.Read(args[0], runnerconfig.MaxFile)
		if err != nil {
			return err
		}
		dir := "/etc/stepmux"
		if tokens != "" {
			if dir, err = filepath.Abs(tokens); err != nil {
				return err
			}
		}
		made, err := runnerconfig.Convert(text, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if tokens != "" {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return systemError(err)
			}
			for _, name := range sortedkeys.Of(made.Tokens) {
				err := privatefile.Create(name, []byte(made.Tokens[name]+"\n"))
				if errors.Is(err, fs.ErrExist) {
					err = fmt.Errorf("%s exists: remove it, or name another directory by --tokens", name)
				}
				if err != nil {
					return systemError(err)
				}
			}
		}
		_, err = cmd.OutOrStdout().Write(made.File)
		return err
	}
	return cmd
}
