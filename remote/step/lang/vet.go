package lang

import (
	"strings"

	"github.com/stepmux/stepmux/internal/lazyregexp"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	goesOnWarning = "the script has several lines, and goes on after one that fails; begin it with set -e"
	crlfWarning   = "lines of the script end with a carriage return (CRLF), which a shell takes for a part of the last " +
		"word; write the file with line feeds alone (LF)"
)

// Vet is ParseCalled or, for a step, ParseStep. It also returns warnings: about valid parts of the text that may not do
// what their author expects.
func Vet(name string, data []byte, step bool) (*pb.Definition, []*Error, error) {
	read, compile := (*reader).job, compileSequence
	if step {
		read, compile = (*reader).step, compileStep
	}
	d, err := parseDraft(name, data, read)
	if err != nil {
		return nil, nil, err
	}
	def, err := compile(d)
	return def, d.run.warnings(), err
}

// VetScript checks a shell script in a file of its own, as Script does, and returns warnings as Vet does.
func VetScript(name, text string) ([]*Error, error) {
	if _, err := Script(name, text); err != nil {
		return nil, err
	}
	var list []*Error
	for _, w := range scriptWarnings(text) {
		list = append(list, &Error{Where: name + ":1:1", Line: 1, Column: 1, Message: w})
	}
	return list, nil
}

// scriptWarnings returns the warnings about a script.
func scriptWarnings(script string) (list []string) {
	if goesOn(script) {
		list = append(list, goesOnWarning)
	}
	if strings.Contains(script, "\r\n") {
		list = append(list, crlfWarning)
	}
	return list
}

// warnings returns the warnings about the steps of run and the steps below them. run may be nil.
func (run *draftRun) warnings() (list []*Error) {
	if run == nil {
		return nil
	}
	for _, s := range run.steps {
		for _, w := range scriptWarnings(s.script.text) {
			list = append(list, s.script.at.errorf("%s", w))
		}
		list = append(list, s.run.warnings()...)
	}
	return list
}

var (
	// continued matches the end of a line of shell whose command goes on in the next line.
	continued = lazyregexp.New(`(\\|\||&&)[ \t]*\n`)
	// endsEarly matches the command that makes a shell end with the first command that fails.
	endsEarly = lazyregexp.New(`(?m)^\s*set\s(.*\s)?(-[A-Za-z]*e[A-Za-z]*|errexit)(\s|;|$)`)
)

// goesOn reports whether a script has several commands on lines of their own, and continues after one that fails.
func goesOn(script string) bool {
	commands := 0
	for line := range strings.Lines(continued().ReplaceAllString(script, " ")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			commands++
		}
	}
	return commands > 1 && !endsEarly().MatchString(script)
}
