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
		Short: "The VM's end: what a manager starts there",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError(errors.New("steps what? use serve, proxy, relay or script"))
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
		Long: `Run the step service of one build on a unix socket, in a private directory that is made for it and removed
with everything in it at the end. Once it listens it says so on stderr:

  step-runner is listening on socket PATH

It ends with SIGTERM, SIGINT or SIGHUP, and with its standard input if that is a pipe or a socket. Its jobs end
with it: SIGTERM, then SIGKILL after --grace.

With --secret-stdin it first reads a secret from standard input, a line of 43 to 128 characters of base64url,
and refuses calls that do not carry it as metadata, "authorization: Bearer SECRET". Without it every process of the
same user can use the socket; serve says so.`,
		Example: "  stepmux steps serve --socket /tmp/gitlab-runner-steps/build-1/step-runner.sock </dev/null",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return vmCommand(cmd.Context(), func(ctx context.Context, stdio remote.Stdio) error {
				if cfg.Grace == 0 {
					cfg.Grace = -1 // none, to the package
				}
				cfg.Version = version()
				return remote.Serve(ctx, stdio, cfg)
			})
		},
	}
	socketFlag(cmd, &cfg.Socket, "; -: the first line of standard input says it")
	cmd.Flags().BoolVar(&cfg.SecretOnStdin, "secret-stdin", false,
		"read the secret that calls must carry from standard input, the first line, or the second after --socket -")
	cmd.Flags().BoolVar(&cfg.AllowUnauthenticated, "allow-unauthenticated", false,
		"take calls without the secret too; serve says so")
	cmd.Flags().DurationVar(&cfg.Grace, "grace", 5*time.Second,
		"time between SIGTERM and SIGKILL for jobs that run at the end; 0 for SIGKILL at once")
	cmd.Flags().StringVar(&cfg.CacheDir, "cache-dir", "", "where steps that were fetched are kept, for all builds of "+
		"this user (default stepmux-steps in the user's cache directory)")
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
	socketFlag(cmd, &cfg.Socket, "; -: the first line of standard input says it")
	return cmd
}

func newRelayCommand() *cobra.Command {
	cfg := remote.RelayConfig{Version: version()}
	cmd := &cobra.Command{
		Use:   "relay [--temp-dir DIR]",
		Short: "Start processes and reach sockets for a manager, all in one session",
		Long: `Start the step runners of builds and connect to their sockets, any number at a time, for the manager at the
other end of standard input and output. That saves each build its SSH sessions, of which a server allows 10 on a
connection.

A manager starts it, once per VM, and speaks the protocol of docs/protocol.md with it: there is nothing to be done
with it by hand. It ends with its standard input, with SIGTERM, SIGINT or SIGHUP, and when the manager gives no
sign of life for 45 s. Every process it started ends with it: SIGTERM, then SIGKILL after --grace.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return vmCommand(cmd.Context(), func(ctx context.Context, stdio remote.Stdio) error {
				if cfg.Grace == 0 {
					cfg.Grace = -1 // none, to the package
				}
				runtime.GOMAXPROCS(relayProcessors(runtime.NumCPU()))
				return remote.Relay(ctx, stdio, cfg)
			})
		},
	}
	cmd.Flags().StringVar(&cfg.TempDir, "temp-dir", "/tmp",
		"where the builds' sockets are: it connects to DIR/gitlab-runner-steps/<build id>/<socket> and nothing else")
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
		Long: `Run a script by a shell, for the manager at the other end of standard input and output. A relay starts it;
there is nothing to be done with it by hand.

Standard input has a line with a key and then the script. The script begins when all of it is there, and ends with
standard input, or with SIGTERM, SIGINT or SIGHUP: SIGTERM to its processes, then SIGKILL after --grace. Nothing
that it started is left in the end.`,
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
	_ = cmd.MarkFlagRequired("bytes") // fails only for a flag that is not there
	return cmd
}

// relayProcessors returns how many processors a relay uses on a machine that has n. A relay and a proxy hand on
// bytes from one system call to the next: more processors mostly wake each other, which costs a quarter of the
// work, and the jobs have better use for them. SSH's own end of it takes one.
func relayProcessors(n int) int {
	if n <= 2 {
		return 1
	}
	return 2
}

func socketFlag(cmd *cobra.Command, to *string, more string) {
	cmd.Flags().StringVar(to, "socket", "",
		"path of the socket: <tmp>/gitlab-runner-steps/<build id>/step-runner.sock (required)"+more)
	_ = cmd.MarkFlagRequired("socket") // fails only for a flag that is not there
}

// vmCommand runs a command of the VM's end until it ends or a signal asks it to.
func vmCommand(ctx context.Context, command func(context.Context, remote.Stdio) error) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	err := command(ctx, remote.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	switch code := signalCode(ctx); {
	case err != nil && ctx.Err() == nil:
		return systemError(err)
	case code != 0:
		return &exitError{code: code}
	case err != nil:
		return systemError(err)
	}
	return nil
}
