package commands

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/wire"
)

// gitLabNames are the names that GitLab Runner uses for its program on a VM.
var gitLabNames = []string{"gitlab-runner", "gitlab-runner-helper"}

const gitLabHelp = `
Called as gitlab-runner or gitlab-runner-helper, or with --as NAME before the command, it does what GitLab Runner asks
of its own program on a VM. --report-version VERSION, before the command, is the version that --version then reports.
`

// refused has the other commands of GitLab Runner's program, with advice what to do instead.
var refused = []struct {
	names   []string
	instead string
}{
	{[]string{"proxy-exec"}, "set proxy_exec = false for this runner in the manager's config.toml"},
	{
		[]string{"cache-init", "health-check", "read-logs", "probe-url"},
		"the docker and kubernetes executors call it; let them use GitLab Runner's own helper image",
	},
	{
		[]string{
			"run", "run-single", "register", "unregister", "verify", "list", "install", "uninstall", "start", "stop",
			"restart", "status", "reset-token", "fleeting", "wrapper", "exec",
		},
		"the command belongs to a manager; install GitLab Runner on the manager's machine",
	},
}

// Run runs the command line args, which begins with the program's name. It stands in for GitLab Runner's program if
// args ask for that; otherwise it is Main.
func (p Program) Run(args []string) int {
	p, rest, err := p.as(args)
	if err == nil && p.gitLab && len(rest) > 0 {
		err = refusal(rest[0])
	}
	if err != nil {
		return p.wrongUsage("", err)
	}
	return p.Main(rest)
}

// StandsIn reports whether args, a command line with the program's name, ask the program to stand in for GitLab
// Runner's: by that name, or by options before the command.
func StandsIn(args []string) bool {
	p, rest, err := Program{}.as(args)
	return p.gitLab || err != nil || len(rest) < len(args)-1
}

// as returns the program for args, a command line with the program's name, and the arguments from the command on.
func (p Program) as(args []string) (Program, []string, error) {
	if len(args) == 0 {
		return p, nil, nil
	}
	rest := args[1:]
	if called := filepath.Base(args[0]); slices.Contains(gitLabNames, called) {
		p.Name, p.gitLab = called, true
	}
	for len(rest) > 0 {
		option, value, joined := strings.Cut(rest[0], "=")
		if option != "--as" && option != "--report-version" {
			break
		}
		rest = rest[1:]
		if !joined {
			if len(rest) == 0 {
				return p, nil, fmt.Errorf("%s needs a value", option)
			}
			value, rest = rest[0], rest[1:]
		}
		switch {
		case option == "--as" && slices.Contains(gitLabNames, value):
			p.Name, p.gitLab = value, true
		case option == "--as":
			return p, nil, fmt.Errorf("--as %q: use %s", value, strings.Join(gitLabNames, " or "))
		case !wire.ValidVersion(value):
			return p, nil, fmt.Errorf("--report-version %q: use the version of the manager, such as 19.4.0", value)
		default:
			p.report = value
		}
	}
	if p.report != "" && !p.gitLab {
		return p, nil, errors.New("--report-version needs --as gitlab-runner, or that the program is called gitlab-runner")
	}
	return p, rest, nil
}

// refusal returns the error about a command of GitLab Runner's program that this one does not have, or nil.
func refusal(name string) error {
	for _, r := range refused {
		if slices.Contains(r.names, name) {
			return fmt.Errorf("stepmux does not have GitLab Runner's command %q: %s", name, r.instead)
		}
	}
	return nil
}
