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
  3        the system failed: a VM, a connection, a step runner; the script may be right
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
		coded = &exitError{code: exitUsage, err: err} // errors of cobra are about usage
	}
	if coded.err != nil {
		fmt.Fprintf(os.Stderr, "stepmux: %v\n", coded.err)
	}
	if coded.code == exitUsage {
		fmt.Fprintln(os.Stderr, "See 'stepmux --help'.")
	}
	return coded.code
}

// exitError is an error with an exit code. If err is nil, it was reported already.
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
		Long: `stepmux runs the steps of CI jobs on VMs. All builds on a VM share one SSH connection. Each build has its own
step runner there, in a private directory. At its end all its processes and files are removed.

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

// endSignals are the signals that end the program.
var endSignals = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}

// untilSignal returns a context that ends with SIGTERM, SIGINT or SIGHUP. Its cause names the signal.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return untilSignalOf(ctx, endSignals...)
}

// untilSignalOf is untilSignal for other signals.
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

// signalError names the signal that ended the program.
type signalError struct{ os.Signal }

func (e signalError) Error() string { return "signal: " + e.String() }

// signalCode returns the exit code of the signal that ended ctx, or 0.
func signalCode(ctx context.Context) int {
	by := signalError{}
	if errors.As(context.Cause(ctx), &by) {
		if n, ok := by.Signal.(syscall.Signal); ok {
			return exitSignal + int(n)
		}
	}
	return 0
}

// endings returns the two contexts of a job: ctx ends with the first of the signals and asks the job to end, abort ends
// with a second signal and kills the job. Until stop is called SIGPIPE is caught: a reader that goes away must not stop
// the clean-up. (Caught and not ignored, because child processes inherit ignored signals.)
func endings(parent context.Context, which ...os.Signal) (ctx, abort context.Context, stop func()) {
	brokenPipe := make(chan os.Signal, 1)
	signal.Notify(brokenPipe, syscall.SIGPIPE)
	ctx, stopFirst := untilSignalOf(parent, which...)
	abort, stopSecond := untilSecondSignal(ctx)
	return ctx, abort, func() {
		stopSecond()
		stopFirst()
		signal.Stop(brokenPipe)
	}
}

var errSecondSignal = errors.New("a second signal")

// untilSecondSignal returns a context that ends with a signal that comes after ctx has ended.
func untilSecondSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	abort, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stopped := context.AfterFunc(ctx, func() {
		again, stop := untilSignal(abort)
		defer stop()
		<-again.Done()
		cancel(errSecondSignal)
	})
	return abort, func() {
		stopped()
		cancel(nil)
	}
}

// checkOutput checks a flag --output.
func checkOutput(output string) error {
	if output != "text" && output != "json" {
		return fmt.Errorf("--output %q: use text or json", output)
	}
	return nil
}
