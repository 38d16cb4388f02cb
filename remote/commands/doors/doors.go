package doors

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/pages"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/pipe"
)

// Commands are the commands that a manager starts on a VM and that need no network.
var Commands = commands.Set{
	"steps serve": serve, "steps proxy": proxy, "steps relay": relay, "steps script": script, "steps end": end,
	"steps hold": hold, "steps isolation": tellIsolation, "ci": ci,
	commands.GitLab + "steps serve": serveGitLab,
}

func serve(fl *pflag.FlagSet) commands.Runner {
	return serveWith(fl, remote.ServeConfig{Version: buildinfo.Version()})
}

// serveGitLab is serve for GitLab Runner's manager, which does not know secrets.
func serveGitLab(fl *pflag.FlagSet) commands.Runner {
	return serveWith(fl, remote.ServeConfig{Version: buildinfo.Version(), QuietWithoutSecret: true})
}

func serveWith(fl *pflag.FlagSet, cfg remote.ServeConfig) commands.Runner {
	socket(fl, &cfg.Socket)
	fl.BoolVar(&cfg.SecretOnStdin, "secret-stdin", false,
		"read the secret of all calls from the first line of standard input, or the second after --socket -")
	fl.BoolVar(&cfg.AllowUnauthenticated, "allow-unauthenticated", false,
		"also accept calls without the secret; serve prints a warning")
	fl.DurationVar(&cfg.Grace, "grace", 5*time.Second,
		"time between SIGTERM and SIGKILL for jobs that still run at the end; 0 for SIGKILL at once")
	fl.StringVar(&cfg.CacheDir, "cache-dir", "", "directory for fetched steps of all builds of this user "+
		"(default stepmux-steps in the user's cache directory)")
	check := optionFlags(fl, &cfg.Options, vmconfig.LingerFlag)
	// Not a string slice: with that the VM's end would link a reader of CSV.
	fl.Func("pass-env", "`NAMES` of variables of serve's environment that reach the steps, "+
		"in addition to those of the machine, the user and the proxies; all: all except those that look like secrets; "+
		"none (default: the caller decides; for GitLab Runner's manager, all)", func(names string) error {
		if names != "" {
			cfg.Policy.PassEnv = append(cfg.Policy.PassEnv, strings.Split(names, ",")...)
		}
		return nil
	})
	fl.StringVar(&cfg.Policy.UnsafeExports, "unsafe-exports", "", "how to treat exports such as LD_PRELOAD: `drop`, "+
		"refuse or allow (default: the caller decides; else drop, with a warning)")
	ActionFlags(fl, &cfg.Actions)
	detached := fl.Bool("detached", false, "linger in this very process")
	fl.BoolVar(&cfg.Reuse, "reuse", false, "serve build after build, for the relay at descriptor 3")
	for _, name := range []string{"detached", "reuse"} { // a relay adds them
		_ = fl.MarkHidden(name) // fails only for an unknown flag
	}
	return untilEnd(fl, func(ctx context.Context, stdio remote.Stdio) error {
		if cfg.Grace == 0 {
			cfg.Grace = -1 // a negative grace is none in package remote
		}
		more := sync.OnceFunc(runtime.SetDefaultGOMAXPROCS) // see oneproc
		cfg.Ready = func() {
			more()
			pages.UnmapAfterStart()
			if *detached && !cfg.Reuse { // else the relay sees by them that the build has ended
				_ = pipe.LetGo() // if it fails, the session stays open until the end of the build
			}
		}
		if !*detached {
			cfg.Detach = append(slices.Clone(os.Args[1:]), "--detached")
		}
		if err := check(); err != nil {
			return err
		}
		return remote.Serve(ctx, stdio, cfg)
	})
}

func proxy(fl *pflag.FlagSet) commands.Runner {
	cfg := remote.ProxyConfig{}
	socket(fl, &cfg.Socket)
	gone := false
	run := untilEnd(fl, func(ctx context.Context, stdio remote.Stdio) error {
		runtime.GOMAXPROCS(1)
		err := remote.Proxy(ctx, stdio, cfg)
		var refused wire.RelayResponse
		errors.As(err, &refused)
		if gone = refused.Code == wire.RelayNotFound; gone {
			fmt.Fprintf(os.Stderr, "stepmux: %v\n", err)
			return nil
		}
		return err
	})
	return func(ctx context.Context, args []string) (int, error) {
		code, err := run(ctx, args)
		if gone {
			code = wire.ProxyNotFound
		}
		return code, err
	}
}

func relay(fl *pflag.FlagSet) commands.Runner {
	cfg := remote.RelayConfig{Version: buildinfo.Version()}
	fl.StringVar(&cfg.TempDir, "temp-dir", "/tmp",
		"directory of the builds' sockets: the relay connects only to DIR/gitlab-runner-steps/<build id>/<socket>")
	fl.DurationVar(&cfg.Grace, "grace", 15*time.Second,
		"time between SIGTERM and SIGKILL for a process whose build has ended, enough for a step runner to stop its jobs; "+
			"0 for SIGKILL at once")
	fl.BoolVar(&cfg.Stay, "stay", false,
		"end only after the step runners that linger: for the main process of a container")
	return untilEnd(fl, func(ctx context.Context, stdio remote.Stdio) error {
		if cfg.Grace == 0 {
			cfg.Grace = -1 // a negative grace is none in package remote
		}
		runtime.GOMAXPROCS(relayProcessors(runtime.NumCPU()))
		pages.UnmapAfterStart()
		return remote.Relay(ctx, stdio, cfg)
	})
}

func end(fl *pflag.FlagSet) commands.Runner {
	path := ""
	fl.StringVar(&path, "socket", "", "path of the build's socket (required)")
	return untilEnd(fl, func(ctx context.Context, stdio remote.Stdio) error {
		return remote.End(ctx, stdio.Out, path)
	})
}

func hold(fl *pflag.FlagSet) commands.Runner {
	cfg := remote.HoldConfig{}
	fl.DurationVar(&cfg.Idle, "idle", 5*time.Minute, "end when no other process has been there for this long")
	fl.DurationVar(&cfg.First, "first", 0, "how long to wait for the first other process (default as --idle)")
	return untilEnd(fl, func(ctx context.Context, _ remote.Stdio) error { return remote.Hold(ctx, cfg) })
}

func tellIsolation(fl *pflag.FlagSet) commands.Runner {
	o := vmconfig.Options{}
	check := optionFlags(fl, &o, vmconfig.TempDirFlag)
	return untilEnd(fl, func(ctx context.Context, stdio remote.Stdio) error {
		if err := check(); err != nil {
			return err
		}
		return remote.TellIsolation(ctx, stdio.Out, o)
	})
}

func ci(*pflag.FlagSet) commands.Runner {
	return func(ctx context.Context, _ []string) (int, error) {
		return remote.CI(ctx, remote.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, remote.CIConfig{
			WorkDir: os.Getenv("CI_PROJECT_DIR"), Environ: os.Environ(), Version: buildinfo.Version(),
		})
	}
}

func script(fl *pflag.FlagSet) commands.Runner {
	cfg := remote.ScriptConfig{}
	fl.Int64Var(&cfg.Size, "bytes", 0, "length of the script (required)")
	fl.DurationVar(&cfg.Grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL; 0 for SIGKILL at once")
	check := optionFlags(fl, &cfg.Options, vmconfig.TempDirFlag)
	return func(ctx context.Context, args []string) (int, error) {
		if err := commands.Required(fl, "bytes"); err != nil {
			return 0, err
		}
		if err := check(); err != nil {
			return 0, err
		}
		if len(args) == 0 {
			return 0, fmt.Errorf("%w: name the SHELL after the flags", commands.ErrUsage)
		}
		cfg.Shell = args
		runtime.SetDefaultGOMAXPROCS()
		return remote.Script(ctx, os.Stdin, os.Stdout, os.Stderr, cfg)
	}
}

// optionFlags defines the flags for options of the VM; more is as for [vmconfig.Options.Flags]. The returned function
// checks the options.
func optionFlags(fl *pflag.FlagSet, o *vmconfig.Options, more ...string) func() error {
	o.Isolation = vmconfig.Level(os.Getenv(vmconfig.LevelVar))
	for _, f := range o.Flags(more...) {
		fl.Var(f, f.Name, f.Usage)
	}
	return func() error {
		if err := o.Check(); err != nil {
			return fmt.Errorf("%w: --%w", commands.ErrUsage, err)
		}
		return nil
	}
}

// socket defines the flag --socket of serve and proxy.
func socket(fl *pflag.FlagSet, to *string) {
	fl.StringVar(to, "socket", "", "path of the socket: <tmp>/gitlab-runner-steps/<build id>/step-runner.sock, or in a "+
		"private directory of yours (required); -: the first line of standard input is the path")
}

// untilEnd returns the runner of a command that runs until a signal or the end of its standard input.
func untilEnd(fl *pflag.FlagSet, run func(context.Context, remote.Stdio) error) commands.Runner {
	return func(ctx context.Context, _ []string) (int, error) {
		if fl.Lookup("socket") != nil {
			if err := commands.Required(fl, "socket"); err != nil {
				return 0, err
			}
		}
		return 0, run(ctx, remote.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	}
}

// relayProcessors returns the number of processors that a relay uses on a machine with n. A relay only copies bytes
// between system calls. More processors mostly wake each other, which costs a quarter of the work, and jobs need the
// processors. The SSH server takes one.
func relayProcessors(n int) int {
	if n <= 2 {
		return 1
	}
	return 2
}
