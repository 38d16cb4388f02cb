package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/wire"
)

// Exit codes.
const (
	exitUsage  = 2
	exitFailed = 3
)

// errUsage is the cause of an error about the arguments of a command.
var errUsage = errors.New("wrong usage")

// command is one command of the command line.
type command struct {
	name  string // with its arguments, as the help shows it
	short string // one line
	long  string
	// prepare defines the flags. It returns the function that runs the command with the arguments after the flags.
	prepare func(fl *pflag.FlagSet) runner
}

// Program is a program with the commands of the VM's end.
type Program struct {
	// Name is how it is called, as in "stepmux-vm".
	Name string
	// Carries says which VM's ends a manager's program carries. The command version prints that. Optional.
	Carries func() string

	gitLab bool   // it stands in for GitLab Runner's program: see as
	report string // the version that it then reports; empty for its own
}

// Main runs the command line of the program that has no other commands, without the program's name, and returns its
// exit code.
func (p Program) Main(args []string) int {
	if len(args) > 0 {
		switch args[0] {
		case "steps":
			return p.Steps(args[1:])
		case "version":
			return p.Version(args[1:])
		case "--version", "-v":
			return p.Version(nil)
		case "help", "--help", "-h":
			fmt.Fprint(os.Stdout, p.help()+gitLabHelp)
			return 0
		}
		if code, found := p.Helper(args[0], args[1:]); found {
			return code
		}
		return p.wrongUsage("", fmt.Errorf("unknown command %q", args[0]))
	}
	return p.wrongUsage("", errors.New("it needs a command"))
}

// Steps runs the command line that follows the word "steps", and returns its exit code.
func (p Program) Steps(args []string) int {
	if len(args) == 0 {
		return p.wrongUsage("steps", errors.New("steps needs a command: serve, proxy, relay, script, end, cache or clone"))
	}
	for _, c := range stepsCommands {
		if c.word() == args[0] {
			if p.gitLab && args[0] == "serve" {
				c.prepare = serveGitLab
			}
			return p.run("steps "+args[0], c, args[1:])
		}
	}
	switch args[0] {
	case "help", "--help", "-h":
		fmt.Fprint(os.Stdout, p.stepsHelp())
		return 0
	}
	return p.wrongUsage("steps",
		fmt.Errorf("unknown command %q: use serve, proxy, relay, script, end, cache or clone", args[0]))
}

// Version runs the command line that follows the word "version", and returns its exit code.
func (p Program) Version(args []string) int { return p.run("version", p.version(), args) }

func (c command) word() string {
	word, _, _ := strings.Cut(c.name, " ")
	return word
}

func (p Program) help() string {
	return p.Name + ` is the VM's end of stepmux. A manager puts it on a VM and starts it there.

Usage:
  ` + p.Name + ` steps serve|proxy|relay|script|cache|clone
  ` + p.Name + " " + p.version().name + "\n" + p.helperHelp()
}

func (p Program) stepsHelp() string {
	var b strings.Builder
	b.WriteString("The VM's end: the commands that a manager starts there\n\nCommands:\n")
	for _, c := range stepsCommands {
		fmt.Fprintf(&b, "  %-8s %s\n", c.word(), c.short)
	}
	fmt.Fprintf(&b, "\nUse '%s steps COMMAND --help' for more.\n", p.Name)
	return b.String()
}

func (p Program) wrongUsage(of string, err error) int {
	fmt.Fprintf(os.Stderr, "stepmux: %v\nSee '%s --help'.\n", err, strings.TrimSpace(p.Name+" "+of))
	return exitUsage
}

// run runs one command. name is how it was called.
func (p Program) run(name string, c command, args []string) int {
	if os.Args[0] == wire.OpenProgram {
		_ = syscall.Close(wire.OpenDescriptor) // jobs would inherit it
	}
	if strings.HasPrefix(os.Args[0], "/proc/self/") {
		_ = os.WriteFile("/proc/self/comm", []byte("stepmux"), 0) // for ps; else it is the name in /proc
	}
	fl := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fl.SortFlags = false
	start := c.prepare(fl)
	fl.Usage = func() {
		text := c.short
		if c.long != "" {
			text = c.long
		}
		prefix := strings.TrimSuffix(name, c.word())
		fmt.Fprintf(os.Stdout, "%s\n\nUsage:\n  %s %s%s\n\nFlags:\n%s", text, p.Name, prefix, c.name, fl.FlagUsages())
	}
	switch err := fl.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return p.wrongUsage(name, flagError(err))
	}
	ctx, stop := endsignal.Until(context.Background(), endsignal.All...)
	defer stop()
	code, err := start(ctx, fl.Args())
	switch {
	case errors.Is(err, errUsage):
		return p.wrongUsage(name, err)
	case err != nil:
		fmt.Fprintf(os.Stderr, "stepmux: %v\n", err)
		return exitFailed
	}
	return code
}

// flagError returns an error of the flag parser in our words.
func flagError(err error) error {
	wrong, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	form := ""
	switch wrong.GetFlag().Value.Type() {
	case "int64": // the length of something, or the number of a job
		if form = "a whole number of bytes"; wrong.GetFlag().Name == "id" {
			form = "the number of a job"
		}
	case "duration":
		form = "a number with a unit, as in 30s, 5m or 2h"
	default:
		return err
	}
	return fmt.Errorf("--%s %.40q: write %s", wrong.GetFlag().Name, wrong.GetValue(), form)
}
