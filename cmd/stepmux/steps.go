package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/remote"
)

func newStepsCommand() *cobra.Command {
	steps := &cobra.Command{
		Use:   "steps",
		Short: "The VM's end: the commands that a manager starts there",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError(errors.New("steps needs a command: serve, proxy, relay or script"))
		},
	}
	steps.AddCommand(newServeCommand(), newProxyCommand(), newRelayCommand(), newScriptCommand())
	return steps
}

func newServeCommand() *cobra.Command {
	var cfg remote.ServeConfig
	cmd := &cobra.Command{
		Use:   "serve --socket PATH",
		Short: "Run the step service of one build",
		Long: `Run the step service of one build on a unix socket, in a new private directory that is removed at the end.
When it listens it prints on standard error:

  step-runner is listening on socket PATH

It ends with SIGTERM, SIGINT or SIGHUP, and with its standard input if that is a pipe or a socket. Its jobs end with
it: SIGTERM, then SIGKILL after --grace.

With --secret-stdin it first reads a secret from standard input, a line of 43 to 128 characters of base64url. It
refuses calls without the metadata "authorization: Bearer SECRET". Without a secret every process of the same user can
use the socket; serve prints a warning about that.`,
		Example: "  stepmux steps serve --socket /tmp/gitlab-runner-steps/build-1/step-runner.sock </dev/null",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return vmCommand(cmd.Context(), func(ctx context.Context, stdio remote.Stdio) error {
				if cfg.Grace == 0 {
					cfg.Grace = -1 // no grace, for the package
				}
				cfg.Version = version()
				return remote.Serve(ctx, stdio, cfg)
			})
		},
	}
	socketFlag(cmd, &cfg.Socket, "; -: the first line of standard input is the path")
	cmd.Flags().BoolVar(&cfg.SecretOnStdin, "secret-stdin", false,
		"read the secret of all calls from the first line of standard input, or the second after --socket -")
	cmd.Flags().BoolVar(&cfg.AllowUnauthenticated, "allow-unauthenticated", false,
		"also accept calls without the secret; serve prints a warning")
	cmd.Flags().DurationVar(&cfg.Grace, "grace", 5*time.Second,
		"time between SIGTERM and SIGKILL for jobs that still run at the end; 0 for SIGKILL at once")
	cmd.Flags().StringVar(&cfg.CacheDir, "cache-dir", "", "directory for fetched steps of all builds of this user "+
		"(default stepmux-steps in the user's cache directory)")
	return cmd
}

func newProxyCommand() *cobra.Command {
	var cfg remote.ProxyConfig
	cmd := &cobra.Command{
		Use:   "proxy --socket PATH",
		Short: "Join standard input and output to a build's socket",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return vmCommand(cmd.Context(), func(ctx context.Context, stdio remote.Stdio) error {
				runtime.GOMAXPROCS(1)
				return remote.Proxy(ctx, stdio, cfg)
			})
		},
	}
	socketFlag(cmd, &cfg.Socket, "; -: the first line of standard input is the path")
	return cmd
}

func newRelayCommand() *cobra.Command {
	cfg := remote.RelayConfig{Version: version()}
	cmd := &cobra.Command{
		Use:   "relay [--temp-dir DIR]",
		Short: "Start processes and reach sockets for a manager, all in one session",
		Long: `Start the step runners of builds and connect to their sockets, any number at once, for the manager at the
other end of standard input and output. So a build needs no SSH session of its own; a server allows 10 per connection.

A manager starts one relay per VM and speaks the protocol of docs/protocol.md with it. It is not for use by hand. It
ends with its standard input, with SIGTERM, SIGINT or SIGHUP, and when it hears nothing from the manager for 45 s. All
its processes end with it: SIGTERM, then SIGKILL after --grace.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return vmCommand(cmd.Context(), func(ctx context.Context, stdio remote.Stdio) error {
				if cfg.Grace == 0 {
					cfg.Grace = -1 // no grace, for the package
				}
				runtime.GOMAXPROCS(relayProcessors(runtime.NumCPU()))
				return remote.Relay(ctx, stdio, cfg)
			})
		},
	}
	cmd.Flags().StringVar(&cfg.TempDir, "temp-dir", "/tmp",
		"directory of the builds' sockets: the relay connects only to DIR/gitlab-runner-steps/<build id>/<socket>")
	cmd.Flags().DurationVar(&cfg.Grace, "grace", 15*time.Second,
		"time between SIGTERM and SIGKILL for a process whose build has ended, enough for a step runner to stop its jobs; "+
			"0 for SIGKILL at once")
	return cmd
}

func newScriptCommand() *cobra.Command {
	var cfg remote.ScriptConfig
	cmd := &cobra.Command{
		Use:   "script --bytes N -- SHELL [ARG]...",
		Short: "Run a script that arrives on standard input, for a manager",
		Long: `Run a script in a shell, for the manager at the other end of standard input and output. A relay starts it. It
is not for use by hand.

Standard input has a line with a key and then the script. The script starts after its last byte has arrived. It ends
with standard input, or with SIGTERM, SIGINT or SIGHUP: SIGTERM to its processes, then SIGKILL after --grace. At the
end none of its processes is left.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Shell = args
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			status, err := remote.Script(ctx, os.Stdin, os.Stdout, os.Stderr, cfg)
			switch {
			case err != nil:
				return systemError(err)
			case status != 0:
				return &exitError{code: status}
			}
			return nil
		},
	}
	cmd.Flags().Int64Var(&cfg.Size, "bytes", 0, "length of the script (required)")
	cmd.Flags().DurationVar(&cfg.Grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL; 0 for SIGKILL at once")
	_ = cmd.MarkFlagRequired("bytes") // fails only for an unknown flag
	return cmd
}

// relayProcessors returns the number of processors that a relay uses on a machine with n. A relay and a proxy copy
// bytes between system calls. More processors mostly wake each other, which costs a quarter of the work, and the jobs
// have better use for them. The SSH server takes one.
func relayProcessors(n int) int {
	if n <= 2 {
		return 1
	}
	return 2
}

func socketFlag(cmd *cobra.Command, to *string, more string) {
	cmd.Flags().StringVar(to, "socket", "",
		"path of the socket: <tmp>/gitlab-runner-steps/<build id>/step-runner.sock (required)"+more)
	_ = cmd.MarkFlagRequired("socket") // fails only for an unknown flag
}

// vmCommand runs a command of the VM's end until it ends or a signal ends it.
func vmCommand(ctx context.Context, command func(context.Context, remote.Stdio) error) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	err := command(ctx, remote.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if code := signalCode(ctx); code != 0 {
		return &exitError{code: code}
	}
	if err != nil {
		return systemError(err)
	}
	return nil
}
