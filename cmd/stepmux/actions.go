package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/actionmirror"
	"github.com/stepmux/stepmux/internal/termtext"
)

func newActionsCommand() *cobra.Command {
	return withCommands(&cobra.Command{
		Use:   "actions",
		Short: "Download GitHub Actions for jobs that run without github.com",
	}, newActionsVendorCommand())
}

func newActionsVendorCommand() *cobra.Command {
	var f formatFlag
	dir, server := "actions", "https://github.com"
	cmd := &cobra.Command{
		Use:   "vendor [flags] FILE",
		Short: "Download the actions that a file needs into a directory",
		Long: `Copy the actions that a workflow, an action.yml or a file of steps names, and the actions that these use,
into a directory: a bare git repository for each, with the named revisions. --actions-base DIR runs a job with these
copies. Images of docker actions are left out.

Standard output has a line for each action: its reference and its commit. It uses git, with your configuration.`,
		Example: `  stepmux actions vendor .github/workflows/test.yml --dir actions
  stepmux local .github/workflows/test.yml --actions-base actions`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, files []string) error {
			src, err := f.readFile(files[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			uses, err := actionmirror.Uses(src.Name, src.Text, src.Format)
			if err != nil {
				return err
			}
			src.WorkDir = "."
			var locked map[string]string
			if src.Format == standalone.GitHub {
				if locked, err = standalone.LockedCommits(src); err != nil {
					return err
				}
			}
			ctx, _, stop := endings(cmd.Context(), endsignal.All...)
			defer stop()
			none, shown := true, error(nil)
			err = actionmirror.Fill(ctx, server, dir, ".", uses, locked, func(a actionmirror.Action) {
				none = false
				_, err := fmt.Fprintln(cmd.OutOrStdout(), termtext.Text(a.Uses), a.Commit)
				shown = cmp.Or(shown, err)
			})
			if err != nil {
				return withCode(cmp.Or(endsignal.Code(ctx), exitSystem), err)
			}
			if none {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: %s needs no action of a repository\n", termtext.Text(src.Name))
			}
			return systemError(shown)
		},
	}
	fl := cmd.Flags()
	f.register(fl, "steps", "github")
	fl.StringVar(&dir, "dir", dir, "the `directory`; it is made if it is missing")
	fl.StringVar(&server, "server", server, "copy the actions from this `URL`, or from the directory of a mirror")
	return cmd
}
