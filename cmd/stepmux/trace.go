package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/remote/step/trace"
)

func newTraceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Read the traces of jobs: show, compare, export as provenance",
		Long: `Read the traces that local, ci and run have written with --output-file. docs/trace.md describes them. A trace
that was changed later is refused.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError(errors.New("trace needs a command: show, diff or export"))
		},
	}
	cmd.AddCommand(newTraceShowCommand(), newTraceDiffCommand(), newTraceExportCommand())
	return cmd
}

func newTraceShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show TRACE",
		Short:   "Show a trace: the definition, inputs, command and outputs of each step",
		Example: "  stepmux trace show trace.json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := trace.Read(args[0])
			if err != nil {
				return usageError(err)
			}
			if err := t.Show(cmd.OutOrStdout()); err != nil {
				return systemError(fmt.Errorf("write trace: %w", err))
			}
			return nil
		},
	}
}

func newTraceDiffCommand() *cobra.Command {
	var ignore []string
	var output string
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
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var traces [2]*trace.Trace
			var err error
			for i, file := range args {
				if traces[i], err = trace.Read(file); err != nil {
					return usageError(err)
				}
			}
			what := trace.Ignore{Runtime: noRuntime}
			if what.Logs, err = ignoresLogs(ignore); err != nil {
				return usageError(err)
			}
			if err := checkOutput(output); err != nil {
				return usageError(err)
			}
			c, err := trace.Compare(traces[0], traces[1], what)
			if err != nil {
				return usageError(err)
			}
			if err := showComparison(cmd.OutOrStdout(), c, output == "json"); err != nil {
				return systemError(fmt.Errorf("write differences: %w", err))
			}
			if !c.Same() {
				return &exitError{code: exitDifferent}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&ignore, "ignore", nil, "do not compare these: logs; repeatable")
	fl.BoolVar(&noRuntime, "ignore-runtime", false,
		"do not compare the machines, the versions of stepmux and the digests of programs")
	fl.StringVar(&output, "output", "text", "text or json")
	return cmd
}

func showComparison(w io.Writer, c *trace.Comparison, asJSON bool) error {
	if asJSON {
		data, err := json.Marshal(c)
		if err == nil {
			_, err = w.Write(append(data, '\n'))
		}
		return err
	}
	for _, d := range c.Differences {
		if _, err := fmt.Fprintln(w, d); err != nil {
			return err
		}
	}
	for _, more := range []struct {
		count int
		what  string
	}{{c.More, "more differences"}, {c.Unknown, "masked values could not be compared"}} {
		if more.count > 0 {
			if _, err := fmt.Fprintln(w, more.count, more.what); err != nil {
				return err
			}
		}
	}
	return nil
}
