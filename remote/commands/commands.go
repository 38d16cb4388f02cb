package commands

import (
	"cmp"
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

// The exit codes for wrong usage, and for any other failure.
const (
	ExitUsage  = 2
	ExitFailed = 3
)

// ErrUsage is the cause of an error about the arguments of a command.
var ErrUsage = errors.New("wrong usage")

// Runner runs a command with the arguments after its flags, if it takes any, and returns the exit code.
type Runner func(ctx context.Context, args []string) (int, error)

// Set has commands by their name in the command line, such as "version" and "steps serve". Each entry defines the
// command's flags and returns the function that runs it.
type Set map[string]func(fl *pflag.FlagSet) Runner

// GitLab is the prefix of commands that work differently when the program stands in for GitLab Runner's.
const GitLab = "gitlab-runner "

// Program is a program with the commands of the VM's end.
type Program struct {
	// Name is the program's name, such as "stepmux-vm".
	Name string
	// Sets are its commands.
	Sets []Set
	// Long has more text for --help, by the names in Sets. Optional.
	Long map[string]string
	// Beside replaces this process by the program that has the other commands, and returns only if that fails. If nil,
	// there are no other commands.
	Beside func() error
	// Carries says which VM's ends a manager's program carries, for the command version. Optional.
	Carries func() string

	gitLab bool   // it stands in for GitLab Runner's program, see as
	report string // the version for that role; empty for its own
}

// Main runs the command line of a program that has only these commands, without the program's name, and returns its
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
		if args[0] == ciText.name && p.own(ciText.name) != nil {
			return p.run(ciText.name, ciText, args[1:])
		}
		if code, found := p.Helper(args[0], args[1:]); found {
			return code
		}
		return p.wrongUsage("", fmt.Errorf("unknown command %q", args[0]))
	}
	return p.wrongUsage("", errors.New("a command is missing"))
}

// Steps runs the command line after the word "steps", and returns its exit code.
func (p Program) Steps(args []string) int {
	if len(args) == 0 {
		return p.wrongUsage("steps", errors.New("steps needs a command: "+p.stepsNames()))
	}
	for _, c := range stepsCommands {
		if c.word() == args[0] && p.has("steps "+args[0]) {
			return p.run("steps "+args[0], c, args[1:])
		}
	}
	switch args[0] {
	case "help", "--help", "-h":
		fmt.Fprint(os.Stdout, p.stepsHelp())
		return 0
	}
	return p.wrongUsage("steps",
		fmt.Errorf("unknown command %q: use %s", args[0], p.stepsNames()))
}

// stepsNames lists the commands after the word "steps" that a person may need.
func (p Program) stepsNames() string {
	names := p.steps()
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

func (p Program) steps() (names []string) {
	for _, name := range []string{"serve", "proxy", "relay", "script", "end", "cache", "clone"} {
		if p.has("steps " + name) {
			names = append(names, name)
		}
	}
	return names
}

// HelperNames returns the names of the commands that the scripts of a GitLab manager call without the word steps, each
// with a line about it.
func HelperNames() map[string]string {
	names := map[string]string{}
	for _, c := range helperCommands {
		names[c.word()] = c.short
	}
	return names
}

// Helper runs the helper command with that name and returns its exit code: 0, 1 for a failure, 2 for wrong usage. found
// is false if there is no such command.
func (p Program) Helper(name string, args []string) (code int, found bool) {
	for _, c := range helperCommands {
		if c.word() == name && p.has(name) {
			return p.run(name, c, args), true
		}
	}
	return 0, false
}

// Version runs the command line after the word "version", and returns its exit code.
func (p Program) Version(args []string) int { return p.run("version", versionText, args) }

// own returns this program's function for a command, or nil.
func (p Program) own(name string) func(fl *pflag.FlagSet) Runner {
	for _, set := range p.Sets {
		if special := set[GitLab+name]; p.gitLab && special != nil {
			return special
		}
		if prepare := set[name]; prepare != nil {
			return prepare
		}
	}
	if name == "version" {
		return p.version
	}
	return nil
}

// has reports whether this program, or the one beside it, has a command.
func (p Program) has(name string) bool { return p.own(name) != nil || p.Beside != nil }

func (c command) word() string {
	word, _, _ := strings.Cut(c.name, " ")
	return word
}

func (p Program) help() string {
	return p.Name + ` is the VM's end of stepmux. A manager puts it on a VM and starts it there.

Usage:
  ` + p.Name + ` steps ` + strings.Join(p.steps(), "|") + `
  ` + p.Name + " " + versionText.name + "\n" + p.helperHelp()
}

// helperHelp lists the helper commands.
func (p Program) helperHelp() string {
	var b strings.Builder
	b.WriteString("\nCommands that the scripts of a GitLab manager call:\n")
	for _, c := range helperCommands {
		fmt.Fprintf(&b, "  %-21s %s\n", c.word(), c.short)
	}
	return b.String()
}

func (p Program) stepsHelp() string {
	var b strings.Builder
	b.WriteString("The VM's end: the commands that a manager starts there\n\nCommands:\n")
	for _, c := range stepsCommands {
		if p.has("steps " + c.word()) {
			fmt.Fprintf(&b, "  %-8s %s\n", c.word(), c.short)
		}
	}
	fmt.Fprintf(&b, "\nUse '%s steps COMMAND --help' for more.\n", p.Name)
	return b.String()
}

func (p Program) wrongUsage(of string, err error) int {
	fmt.Fprintf(os.Stderr, "stepmux: %v\nSee '%s --help'.\n", err, strings.TrimSpace(p.Name+" "+of))
	return ExitUsage
}

// run runs one command. name is its name in the command line.
func (p Program) run(name string, c command, args []string) int {
	if os.Args[0] == wire.OpenProgram {
		_ = syscall.Close(wire.OpenDescriptor) // otherwise jobs inherit it
	}
	if strings.HasPrefix(os.Args[0], "/proc/self/") {
		_ = os.WriteFile("/proc/self/comm", []byte("stepmux"), 0) // the name in ps; without it ps shows a descriptor
	}
	prepare := p.own(name)
	if prepare == nil {
		return p.become(name)
	}
	fl := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fl.SortFlags = false
	start := prepare(fl)
	fl.Usage = func() {
		text := c.short
		if long := cmp.Or(c.long, p.Long[name]); long != "" {
			text = long
		}
		prefix := strings.TrimSuffix(name, c.word())
		fmt.Fprintf(os.Stdout, "%s\n\nUsage:\n  %s %s%s\n\nFlags:\n%s", text, p.Name, prefix, c.name, fl.FlagUsages())
	}
	switch err := fl.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return p.wrongUsage(name, flagError(err))
	case fl.NArg() > 0 && !c.args:
		return p.wrongUsage(name, fmt.Errorf("the command takes flags only, not %q", fl.Arg(0)))
	}
	ctx, stop := endsignal.Until(context.Background())
	defer stop()
	code, err := start(ctx, fl.Args())
	switch {
	case errors.Is(err, ErrUsage):
		return p.wrongUsage(name, err)
	case err != nil && errors.Is(err, context.Cause(ctx)): // a signal has ended it
		return endsignal.Code(ctx)
	case err != nil:
		fmt.Fprintf(os.Stderr, "stepmux: %v\n", err)
		return ExitFailed
	}
	return code
}

// become runs a command by replacing this process with the program beside it. It returns the exit code of a failure.
func (p Program) become(name string) int {
	err := p.Beside() // a signal ends this process, or the one that it becomes
	fmt.Fprintf(os.Stderr, "stepmux: %s: %v\n", name, err)
	if !strings.HasPrefix(name, "steps ") {
		return 1 // the exit code that the scripts of GitLab's manager expect
	}
	return ExitFailed
}

// Required returns an error if the command line does not have the flag.
func Required(fl *pflag.FlagSet, name string) error {
	if fl.Changed(name) {
		return nil
	}
	return fmt.Errorf("%w: --%s is required", ErrUsage, name)
}

// flagError rewords an error of the flag parser.
func flagError(err error) error {
	wrong, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	form := ""
	switch wrong.GetFlag().Value.Type() {
	case "int64": // a length, or the number of a job
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
