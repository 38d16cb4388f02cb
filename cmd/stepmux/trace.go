package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/internal/standalone/inspect"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/trace"
)

func newTraceCommand() *cobra.Command {
	return withCommands(&cobra.Command{
		Use:   "trace",
		Short: "Show, compare and export the traces of jobs, and verify their provenance",
		Long: `Read the traces that local, ci, run and submit have written with --output-file, or that a manager has kept.
docs/trace.md describes them. A trace that was changed later is refused.`,
	}, newTraceGetCommand(), newTraceShowCommand(), newTraceDiffCommand(), newTraceExportCommand(),
		newTraceVerifyCommand())
}

func newTraceShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show TRACE",
		Short:   "Show a trace: the definition, inputs, command and outputs of each step",
		Example: "  stepmux trace show trace.json",
		Args:    arguments("TRACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := trace.Read(args[0])
			if err != nil {
				return err
			}
			if err := inspect.Show(cmd.OutOrStdout(), t); err != nil {
				return systemError(fmt.Errorf("write trace: %w", err))
			}
			return nil
		},
	}
}

func newTraceDiffCommand() *cobra.Command {
	var ignore, output string
	var noRuntime bool
	cmd := &cobra.Command{
		Use:   "diff [flags] OLD NEW",
		Short: "Compare two traces",
		Long: `Compare two traces, and print a line for each difference. Times, process ids and paths are not compared.
Values that are masked in both are compared by their sums if both traces have the same salt, as a trace and its replay
have. Otherwise they cannot be compared.

Exit codes:
  0        the traces are the same
  1        the traces differ
  2        wrong usage, or a file that is not a trace`,
		Example: `  stepmux trace diff trace.json again.json
  stepmux trace diff --output json trace.json again.json`,
		Args: arguments("OLD", "NEW"),
		RunE: func(cmd *cobra.Command, args []string) error {
			was, err := trace.Read(args[0])
			if err != nil {
				return err
			}
			is, err := trace.Read(args[1])
			if err != nil {
				return err
			}
			c, err := inspect.Compare(was, is, inspect.Ignore{Runtime: noRuntime, Logs: ignore == "logs"})
			if err != nil {
				return err
			}
			if err := showComparison(cmd.OutOrStdout(), c, output == "json"); err != nil {
				return systemError(fmt.Errorf("write differences: %w", err))
			}
			if !c.Same() {
				return withCode(exitDifferent, nil)
			}
			return nil
		},
	}
	fl := cmd.Flags()
	choiceFlag(fl, &ignore, "ignore", "do not compare these: logs; repeatable", "logs")
	fl.BoolVar(&noRuntime, "ignore-runtime", false,
		"do not compare the machines, the versions of stepmux and the digests of programs")
	outputFlag(fl, &output, "text or json")
	return cmd
}

func showComparison(w io.Writer, c *inspect.Comparison, asJSON bool) error {
	if asJSON {
		return writeJSON(w, c)
	}
	var text bytes.Buffer
	for _, d := range c.Differences {
		fmt.Fprintln(&text, termtext.Line(d.String()))
	}
	if c.More > 0 {
		fmt.Fprintln(&text, c.More, "more differences")
	}
	if c.Unknown > 0 {
		fmt.Fprintln(&text, c.Unknown, "masked values could not be compared")
	}
	_, err := text.WriteTo(w)
	return err
}

// withCommands adds subcommands to cmd, which does nothing by itself.
func withCommands(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	var names []string
	for _, c := range below {
		names = append(names, c.Name())
	}
	cmd.Args = unknownCommand
	cmd.RunE = func(*cobra.Command, []string) error {
		return fmt.Errorf("%s needs a command: %s", cmd.Name(), either(names))
	}
	cmd.AddCommand(below...)
	return cmd
}
