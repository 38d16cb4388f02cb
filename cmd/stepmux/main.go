// The stepmux program: both ends in one binary. See `stepmux --help`.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/grpclog"

	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/proc"
)

// Exit codes. A failed build determines the exit code itself.
const (
	exitSystem  = 3
	exitUsage   = 2
	exitTimeout = 124 // as timeout(1)
)

const exitHelp = `Exit codes:
  0        every build succeeded
  2        wrong usage, or a FILE that is not valid
  3        the system failed: a VM, a connection, a step runner; the script may be right
  124      a build took longer than --timeout
  129 130 143  ended by a signal: hang-up, Ctrl-C (SIGINT), SIGTERM
  other    the exit code of the first build that failed by its own script`

func main() {
	proc.Main() // this binary is also the init of the processes that it starts
	buildinfo.FromGo = debug.ReadBuildInfo
	// gRPC would print text that a VM's step runner sends. Its errors are returned as well.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	if commands.StandsIn(os.Args) {
		os.Exit(vmsEnd.Run(os.Args))
	}
	os.Exit(run(os.Args[1:]))
}

// run runs the program and returns its exit code.
func run(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		addCompletions(root)
	}
	var helpErr error
	show := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) { // it returns no error
		var text bytes.Buffer
		cmd.SetOut(&text)
		show(cmd, args)
		cmd.SetOut(nil)
		_, err := text.WriteTo(os.Stdout)
		helpErr = cmp.Or(helpErr, err)
	})
	cmd, err := root.ExecuteC()
	if err = cmp.Or(err, helpErr); err == nil {
		return 0
	}
	coded, ok := errors.AsType[*exitError](err)
	wrote, isPath := errors.AsType[*fs.PathError](err)
	switch {
	case ok:
	case isPath && wrote.Op == "write" && wrote.Path == os.Stdout.Name():
		coded = &exitError{exitSystem, err}
	default:
		coded = &exitError{exitUsage, err}
	}
	if errors.Is(coded.err, errShown) {
		return coded.code
	}
	if coded.err != nil {
		showError(os.Stderr, coded.err)
	}
	if coded.code == exitUsage && coded.err != nil {
		fmt.Fprintf(os.Stderr, "See '%s --help'.\n", cmd.CommandPath())
	}
	return coded.code
}

// exitError is an error with an exit code. If err is nil, it has been reported already. An error of a command that is
// not an exitError is about usage.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.err) }

// withCode sets the exit code of err, which may be nil. With code 0 it returns err unchanged.
func withCode(code int, err error) error {
	if code == 0 {
		return err
	}
	if coded, ok := err.(*exitError); ok { //nolint:errorlint // one that is wrapped has more to say
		err = coded.err
	}
	return &exitError{code, err}
}

// systemError marks err as an error of the system. It returns nil for nil.
func systemError(err error) error {
	if err == nil {
		return nil
	}
	return withCode(exitSystem, err)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "stepmux",
		Short: "Run CI builds on VMs over one SSH connection per VM",
		Long: `stepmux runs the steps of CI jobs on VMs. All builds on a VM share one SSH connection. Each build has its own
step runner there, in a private directory. At its end all its processes and files are removed.

Start with:  stepmux run examples/hello.yml

` + exitHelp,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       buildinfo.Version(),
	}
	root.SetVersionTemplate(buildinfo.Text())
	root.SetFlagErrorFunc(flagError)
	root.SetUsageFunc(showUsage)
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err == nil && cmd.DisableFlagParsing { // it has a help of its own
				return cmd.RunE(cmd, append(rest, "--help"))
			}
			if err = cmp.Or(err, unknownCommand(cmd, rest)); err != nil {
				return err
			}
			return cmd.Help()
		},
	})
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run builds on VMs", []*cobra.Command{
			newRunCommand(), newManagerCommand(), newSubmitCommand(), newLogsCommand(), newCancelCommand(),
			newArtifactsCommand(), newBuildsCommand(), newPipelinesCommand(), newPlayCommand(), newRetryCommand(),
		}},
		{"Look after VMs", append(newServerCommands(), newVMCommands()...)},
		{"Run a job on this machine", []*cobra.Command{
			newLocalCommand(), newCICommand(), newReplayCommand(), newTraceCommand(), newValidateCommand(), newActionsCommand(),
		}},
		{"For other programs", append(newHelperCommands(), newStepsCommand(), newCustomExecutorCommand())},
		{"About this program", []*cobra.Command{newVersionCommand(), newManCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
		root.SetHelpCommandGroupID(g.title) // the last call counts, here and below
		root.SetCompletionCommandGroupID(g.title)
	}
	return root
}

// endings returns the two contexts of a job. ctx ends with the first signal and asks the job to end; abort ends with
// the second and kills the job. Until stop is called SIGPIPE is caught: a reader that goes away must not stop the
// clean-up. (It is caught rather than ignored, because child processes inherit ignored signals.)
func endings(parent context.Context, which ...os.Signal) (ctx, abort context.Context, stop func()) {
	brokenPipe := make(chan os.Signal, 1)
	signal.Notify(brokenPipe, syscall.SIGPIPE)
	ctx, abort, stopSignals := endsignal.Twice(parent, which...)
	return ctx, abort, func() {
		stopSignals()
		signal.Stop(brokenPipe)
	}
}

// showError shows the error that ends the program.
func showError(w io.Writer, err error) { fmt.Fprintln(w, "stepmux: "+termtext.Text(err.Error())) }
