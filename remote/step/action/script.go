package action

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// shells are the command lines of the shells that a step can name. {0} is the path of the script's file.
var shells = map[string]string{
	"bash": "bash --noprofile --norc -e -o pipefail {0}", "sh": "sh -e {0}", "python": "python {0}",
	"pwsh": "pwsh -command \". '{0}'\"", "powershell": "powershell -command \". '{0}'\"",
}

// extensions are the file extensions of scripts, by shell.
var extensions = map[string]string{"python": ".py", "pwsh": ".ps1", "powershell": ".ps1", "bash": ".sh", "sh": ".sh"}

// shellCommand returns the command that runs a script by the shell. The shell's name may be empty.
func shellCommand(shell, file, dir string, env []string) ([]string, error) {
	line := shells[shell]
	switch {
	case shell == "":
		line = "sh -e {0}"
		if _, err := proc.Find("bash", dir, env); err == nil {
			line = "bash -e {0}"
		}
	case line == "":
		line = shell
		if !strings.Contains(line, "{0}") {
			return nil, fmt.Errorf("shell %.160q is not valid: write bash, sh, python, pwsh, or a command with {0} in "+
				"the place "+
				"of the script's file", shell)
		}
	}
	argv, err := split(line)
	if err != nil {
		return nil, fmt.Errorf("shell %.160q: %w", shell, err)
	}
	for i := range argv {
		argv[i] = strings.ReplaceAll(argv[i], "{0}", file)
	}
	return argv, nil
}

// split splits a command line at blanks. Parts may be in double or single quotes.
func split(line string) ([]string, error) {
	var argv []string
	var word strings.Builder
	quote, inWord := rune(0), false
	for _, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '"' || c == '\'' && !inWord:
			quote, inWord = c, true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			if inWord {
				argv = append(argv, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote is not closed")
	}
	if inWord {
		argv = append(argv, word.String())
	}
	if len(argv) == 0 {
		return nil, errors.New("the shell has no program")
	}
	return argv, nil
}

// runScript runs a step with a script.
func (x *running) runScript(ctx context.Context) engine.Result {
	s := x.spec
	p := process{files: newFiles(x.call), script: true}
	x.github["action"] = expression.String(actionName(s))
	for _, kind := range fileKinds {
		x.github[kind] = expression.String(p.files.path(kind))
	}
	shell, dir := s.shell, s.dir
	if shell == "" {
		shell = x.shell
	}
	if dir == "" {
		dir = x.dir
	}
	var script string
	texts := map[*string]struct{ template, label string }{
		&script: {s.run, "run"}, &shell: {shell, "shell"}, &dir: {dir, "working-directory"},
	}
	for to, from := range texts {
		v, err := x.eval(from.template, s.line, from.label, x.env)
		if err != nil {
			return engine.Failed(err)
		}
		*to = v.Text()
	}
	var err error
	if p.with, err = newValues(map[string]string{"script": script, "shell": shell}, "%s: %w"); err == nil {
		err = x.begin(x.res, p, engine.Command)
	}
	if err != nil {
		return engine.Failed(err)
	}
	p.Dir = x.path(dir)
	if err := p.files.create(); err != nil {
		return engine.Failed(err)
	}
	env := x.environment(p.files)
	program, _, _ := strings.Cut(strings.TrimSpace(shell), " ")
	if extensions[program] == ".ps1" { // as on GitHub, it ends with its first error, or as its last program
		script = "$ErrorActionPreference = 'stop'\n" + script +
			"\nif (Test-Path variable:LASTEXITCODE) { exit $LASTEXITCODE }\n"
	}
	name := "script" + extensions[program]
	if p.Argv, err = shellCommand(strings.TrimSpace(shell), p.files.path(name), p.Dir, lines(env)); err != nil {
		return engine.Failed(x.at(s.line, err))
	}
	if err := x.call.WriteFile(p.files.entry(name), script); err != nil {
		return engine.Failed(err)
	}
	return x.exec(ctx, p, env)
}

// path returns a directory of the step. It is relative to the directory of the job.
func (x *running) path(dir string) string {
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(x.work(), dir)
	}
	return dir
}

// lines returns env in the form of [os.Environ].
func lines(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}
