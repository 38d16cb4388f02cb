package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote"
	"github.com/stepmux/stepmux/remote/walls"
)

// stepsCommands are the commands that a manager starts.
var stepsCommands = []command{
	{
		name:  "serve --socket PATH",
		short: "Run the step service of one build",
		long: `Run the step service of one build on a unix socket. When it listens it prints on standard error:

  step-runner is listening on socket PATH

It makes the directory of <tmp>/gitlab-runner-steps/<build id>/step-runner.sock and removes it at the end. Any other
PATH must be in a directory that you have made, empty and with mode 0700, as 'mktemp -d' does, and that you remove. If
that directory cannot be used, serve makes one of its own, says why, and prints the socket's new path.

It ends with SIGTERM, SIGINT or SIGHUP, and with its standard input if that is a pipe or a socket, with exit code 0.
Its jobs end with it: SIGTERM, then SIGKILL after --grace.

With --secret-stdin it first reads a secret from standard input, a line of 43 to 128 characters of base64url. It
refuses calls without the metadata "authorization: Bearer SECRET". Without a secret every process of the same user can
use the socket; serve prints a warning about that.

With --linger it outlives the connection to its manager: it starts itself anew in a session of its own and ends
itself there when no manager was attached for that time. Managers attach and come back with the secret.

Example:
  stepmux steps serve --socket /tmp/gitlab-runner-steps/build-1/step-runner.sock </dev/null`,
		prepare: serve,
	},
	{
		name:    "proxy --socket PATH",
		short:   "Join standard input and output to a build's socket",
		prepare: proxy,
	},
	{
		name:  "relay [--temp-dir DIR]",
		short: "Start processes and reach sockets for a manager, all in one session",
		long: `Start the step runners of builds and connect to their sockets, any number at once, for the manager at the
other end of standard input and output. So a build needs no SSH session of its own; a server allows 10 per connection.

A manager starts one relay per VM and speaks the protocol of docs/protocol.md with it. It is not for use by hand. It
ends with its standard input, with SIGTERM, SIGINT or SIGHUP, and when it hears nothing from the manager for 45 s. All
its processes end with it: SIGTERM, then SIGKILL after --grace.`,
		prepare: relay,
	},
	{
		name:  "script --bytes N -- SHELL [ARG]...",
		short: "Run a script that arrives on standard input, for a manager",
		long: `Run a script in a shell, for the manager at the other end of standard input and output. A relay starts it. It
is not for use by hand.

Standard input has a line with a key and then the script. The script starts after its last byte has arrived. It ends
with standard input, or with SIGTERM, SIGINT or SIGHUP: SIGTERM to its processes, then SIGKILL after --grace. At the
end none of its processes is left.`,
		prepare: script,
	},
	{
		name:  "end --socket PATH",
		short: "End a build whose step runner does not end by itself",
		long: `End the build with this socket, for a manager: continue its step runner if that was stopped, send it SIGTERM
and, 6 s later, SIGKILL, and kill the processes of step runners that are dead. Prints a list in JSON of the
processes and the directory that are left.`,
		prepare: end,
	},
	{
		name:  "cache list|prune|verify",
		short: "Look after the cache of fetched steps, for a manager",
		long: `List the components in the cache of fetched steps, remove those that no job uses, or compare them with their
digests and remove those that were changed. Prints an object in JSON with the components that are there, were removed,
or were changed. The manager's command is "stepmux cache".`,
		prepare: cache,
	},
	{
		name:  "clone --url URL",
		short: "Check out a revision of a git repository, for the built-in step git/clone",
		long: `Check out a revision of a git repository with the git of this machine, without hooks. The variable
CI_JOB_TOKEN has the password for the repository's server. Git gets it by a socket, and it is in none of git's arguments
and variables. The built-in step builtin://git/clone runs this command.`,
		prepare: cloneRepository,
	},
}

// runner runs a command with the arguments that follow its flags, and returns the exit code.
type runner func(ctx context.Context, args []string) (int, error)

func serve(fl *pflag.FlagSet) runner {
	return serveWith(fl, remote.ServeConfig{Version: buildinfo.Version()})
}

// serveGitLab is serve for GitLab Runner's manager, which knows no secrets.
func serveGitLab(fl *pflag.FlagSet) runner {
	return serveWith(fl, remote.ServeConfig{Version: buildinfo.Version(), QuietWithoutSecret: true})
}

func serveWith(fl *pflag.FlagSet, cfg remote.ServeConfig) runner {
	socket(fl, &cfg.Socket)
	fl.BoolVar(&cfg.SecretOnStdin, "secret-stdin", false,
		"read the secret of all calls from the first line of standard input, or the second after --socket -")
	fl.BoolVar(&cfg.AllowUnauthenticated, "allow-unauthenticated", false,
		"also accept calls without the secret; serve prints a warning")
	fl.DurationVar(&cfg.Grace, "grace", 5*time.Second,
		"time between SIGTERM and SIGKILL for jobs that still run at the end; 0 for SIGKILL at once")
	fl.StringVar(&cfg.CacheDir, "cache-dir", "", "directory for fetched steps of all builds of this user "+
		"(default stepmux-steps in the user's cache directory)")
	isolation := isolationFlag(fl)
	fl.StringSliceVar(&cfg.PassEnv, "pass-env", nil, "`NAMES` of variables of serve's environment that reach the steps, "+
		"beside those of the machine, the user and the proxies; all for all but those that look like secrets; none "+
		"(default: the caller says; for GitLab Runner's manager, all)")
	fl.StringVar(&cfg.UnsafeExports, "unsafe-exports", "", "what becomes of exports such as LD_PRELOAD: `drop`, refuse "+
		"or allow (default: the caller says; else drop, with a warning)")
	fl.DurationVar(&cfg.Linger, "linger", 0, "go on for this long, at most 24h, while no manager is attached; needs "+
		"--secret-stdin and a build's socket; 0: end with standard input")
	detached := fl.Bool("detached", false, "linger in this very process")
	_ = fl.MarkHidden("detached") // fails only for an unknown flag
	return untilEnd(fl, func(ctx context.Context, stdio remote.Stdio) (err error) {
		if cfg.Grace == 0 {
			cfg.Grace = -1 // no grace, for the package
		}
		if *detached {
			cfg.LetGo = letGo
		} else {
			cfg.Detach = append(slices.Clone(os.Args[1:]), "--detached")
		}
		if cfg.Isolation, err = isolation(); err != nil {
			return err
		}
		return remote.Serve(ctx, stdio, cfg)
	})
}

// letGo gives up the standard files, which this process shares with the one that started it: an SSH server waits for
// all that have a session's files open.
func letGo() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return // the session stays open until the end of the build
	}
	defer null.Close()
	for fd := range 3 {
		_ = unix.Dup3(int(null.Fd()), fd, 0) // fails only if a file is not open
	}
}

func proxy(fl *pflag.FlagSet) runner {
	cfg := remote.ProxyConfig{}
	socket(fl, &cfg.Socket)
	return untilEnd(fl, func(ctx context.Context, stdio remote.Stdio) error {
		runtime.GOMAXPROCS(1)
		return remote.Proxy(ctx, stdio, cfg)
	})
}

func relay(fl *pflag.FlagSet) runner {
	cfg := remote.RelayConfig{Version: buildinfo.Version()}
	fl.StringVar(&cfg.TempDir, "temp-dir", "/tmp",
		"directory of the builds' sockets: the relay connects only to DIR/gitlab-runner-steps/<build id>/<socket>")
	fl.DurationVar(&cfg.Grace, "grace", 15*time.Second,
		"time between SIGTERM and SIGKILL for a process whose build has ended, enough for a step runner to stop its jobs; "+
			"0 for SIGKILL at once")
	return untilEnd(fl, func(ctx context.Context, stdio remote.Stdio) error {
		if cfg.Grace == 0 {
			cfg.Grace = -1 // no grace, for the package
		}
		runtime.GOMAXPROCS(relayProcessors(runtime.NumCPU()))
		return remote.Relay(ctx, stdio, cfg)
	})
}

func end(fl *pflag.FlagSet) runner {
	path := ""
	fl.StringVar(&path, "socket", "", "path of the build's socket (required)")
	return untilEnd(fl, func(ctx context.Context, stdio remote.Stdio) error {
		return remote.End(ctx, stdio.Out, path)
	})
}

func script(fl *pflag.FlagSet) runner {
	cfg := remote.ScriptConfig{}
	fl.Int64Var(&cfg.Size, "bytes", 0, "length of the script (required)")
	fl.DurationVar(&cfg.Grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL; 0 for SIGKILL at once")
	fl.StringVar(&cfg.TempDir, "temp-dir", "/tmp", "directory of the builds' sockets, for the script's own files")
	isolation := isolationFlag(fl)
	return func(ctx context.Context, args []string) (code int, err error) {
		if err := required(fl, "bytes"); err != nil {
			return 0, err
		}
		if cfg.Isolation, err = isolation(); err != nil {
			return 0, err
		}
		if len(args) == 0 {
			return 0, fmt.Errorf("%w: name the SHELL after the flags", errUsage)
		}
		cfg.Shell = args
		return remote.Script(ctx, os.Stdin, os.Stdout, os.Stderr, cfg)
	}
}

// socket defines the flag that serve and proxy need.
// isolationFlag defines --isolation and returns the function that reads it.
func isolationFlag(fl *pflag.FlagSet) func() (walls.Level, error) {
	name := fl.String("isolation", cmp.Or(os.Getenv(wire.IsolationVar), "auto"),
		"how far jobs are held apart from the rest of the machine: "+walls.Levels+"; the variable "+wire.IsolationVar+
			" replaces auto")
	return func() (walls.Level, error) {
		level, err := walls.ParseLevel(*name)
		if err != nil {
			err = fmt.Errorf("%w: --%w", errUsage, err)
		}
		return level, err
	}
}

func socket(fl *pflag.FlagSet, to *string) {
	fl.StringVar(to, "socket", "", "path of the socket: <tmp>/gitlab-runner-steps/<build id>/step-runner.sock, or in a "+
		"private directory of yours (required); -: the first line of standard input is the path")
}

// required returns an error if the command line does not have the flag.
func required(fl *pflag.FlagSet, name string) error {
	if fl.Changed(name) {
		return nil
	}
	return fmt.Errorf("%w: --%s is required", errUsage, name)
}

// untilEnd returns the runner of a command that lasts until a signal or its standard input ends it.
func untilEnd(fl *pflag.FlagSet, run func(context.Context, remote.Stdio) error) runner {
	return func(ctx context.Context, args []string) (int, error) {
		if len(args) > 0 {
			return 0, fmt.Errorf("%w: it takes flags only, not %q", errUsage, args[0])
		}
		if fl.Lookup("socket") != nil {
			if err := required(fl, "socket"); err != nil {
				return 0, err
			}
		}
		err := run(ctx, remote.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
		if code := endsignal.Code(ctx); code != 0 && errors.Is(err, context.Cause(ctx)) { // serve ends well by a signal
			return code, nil
		}
		return 0, err
	}
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
