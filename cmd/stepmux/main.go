// The stepmux program: both ends in one binary. See `stepmux --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/remote/proc"
)

// Exit codes. A build that failed gives its own.
const (
	exitSystem  = 3
	exitUsage   = 2
	exitTimeout = 124 // as timeout(1)
	exitSignal  = 128 // plus the signal's number
)

const exitHelp = `Exit codes:
  0        every build succeeded
  2        wrong usage, or a FILE that is not valid
  3        the system failed: a VM, a connection, a step runner; it says nothing about the script
  124      a build took longer than --timeout
  129 130 143  ended by a signal: hang-up, Ctrl-C (SIGINT), SIGTERM
  other    the exit code of the first build that failed by its own script`

func main() {
	proc.Main() // this binary is also the shim of the processes it starts
	os.Exit(run(os.Args[1:]))
}

// run runs the program and returns its exit code.
func run(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	coded := (*exitError)(nil)
	if !errors.As(err, &coded) {
		coded = &exitError{code: exitUsage, err: err} // cobra's own are about usage
	}
	if coded.err != nil {
		fmt.Fprintf(os.Stderr, "stepmux: %v\n", coded.err)
	}
	if coded.code == exitUsage {
		fmt.Fprintln(os.Stderr, "See 'stepmux --help'.")
	}
	return coded.code
}

// exitError is an error with the exit code it gives. A nil err has been reported already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usageError(err error) error  { return &exitError{exitUsage, err} }
func systemError(err error) error { return &exitError{exitSystem, err} }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "stepmux",
		Short: "Run CI builds on VMs over one SSH connection per VM",
		Long: `stepmux runs the steps of CI jobs on VMs. All builds on a VM share one SSH connection; each has a step
runner of its own there, in a private directory, and leaves nothing behind.

Start with:  stepmux run examples/hello.yml

` + exitHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
	}
	root.SetVersionTemplate(versionText())
	root.AddCommand(newRunCommand(), newPsCommand(), newDrainCommand(), newUndrainCommand(), newDoctorCommand(),
		newCICommand(), newLocalCommand(), newReplayCommand(), newTraceCommand(), newValidateCommand(), newStepsCommand(),
		newVersionCommand())
	return root
}

// untilSignal returns a context that ends with a signal that asks the program to end, with a cause
// that names the signal.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return untilSignalOf(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
}

// untilSignalOf is untilSignal for these signals.
func untilSignalOf(ctx context.Context, which ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, which...)
	done := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			cancel(signalError{s})
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel(nil)
	}
}

// signalError says which signal ended the program.
type signalError struct{ os.Signal }

func (e signalError) Error() string { return "signal: " + e.String() }

// signalCode returns the exit code for the signal that is ctx's cause, 0 if none is.
func signalCode(ctx context.Context) int {
	by := signalError{}
	if errors.As(context.Cause(ctx), &by) {
		if n, ok := by.Signal.(syscall.Signal); ok {
			return exitSignal + int(n)
		}
	}
	return 0
}
