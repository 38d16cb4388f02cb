package lang

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/stepmux/stepmux/internal/lazyregexp"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// maxWarnings bounds the warnings about one text.
const maxWarnings = 20

const (
	goesOnWarning = "the script has several lines, and goes on after one that fails; begin it with set -e"
	crlfWarning   = "lines of the script end with a carriage return (CRLF), which a shell takes for a part of the last " +
		"word; write the file with line feeds alone (LF)"
)

// Vet is ParseCalled or, for a step, ParseStep. It also returns warnings: about valid parts of the text that may not do
// what their author expects. If there are more than 20, another one says how many.
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
	return def, d.run.vet(), err
}

// VetScript checks a shell script in a file of its own, as Script does, and returns warnings as Vet does.
func VetScript(name, text string) ([]*Error, error) {
	if _, err := Script(name, text); err != nil {
		return nil, err
	}
	var list []*Error
	for _, w := range scriptWarnings(withoutBOM(text)) {
		list = append(list, &Error{Where: name + ":1:1", Line: 1, Column: 1, Message: w})
	}
	return list, nil
}

// Interpreter returns the name of the program that the first line of a script names, without its directory. It is empty
// if the line names none.
func Interpreter(script string) string {
	first, _, _ := strings.Cut(withoutBOM(script), "\n")
	line, found := strings.CutPrefix(first, "#!")
	words := strings.Fields(line)
	if !found || len(words) == 0 {
		return ""
	}
	name := path.Base(words[0])
	for _, word := range words[1:] { // of env
		if name != "env" {
			break
		}
		if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
			name = path.Base(word)
		}
	}
	return name
}

// withoutBOM removes the byte order mark that some editors begin a file with. A shell takes it for a part of the first
// command.
func withoutBOM(script string) string { return strings.TrimPrefix(script, "\ufeff") }

// readByBash matches the names of shells whose scripts bash and sh read as they do.
var readByBash = lazyregexp.New(`\b(sh|bash|dash|ash)\b`)

// scriptWarnings returns the warnings about a script.
func scriptWarnings(script string) (list []string) {
	if program := Interpreter(script); program != "" && !readByBash().MatchString(program) {
		list = append(list, fmt.Sprintf("the first line names %.40q, but bash runs the script, or sh if there is no bash; "+
			"write it for bash, or let it start %.40q", program, program))
	}
	if goesOn(script) {
		list = append(list, goesOnWarning)
	}
	if strings.Contains(script, "\r\n") {
		list = append(list, crlfWarning)
	}
	return list
}

// vet returns at most maxWarnings warnings about the steps of run, and one that says how many more there are.
func (run *draftRun) vet() []*Error {
	list := run.warnings()
	if more := len(list) - maxWarnings; more > 0 {
		list[maxWarnings].Message = fmt.Sprintf("from here on there are more such warnings: %d", more)
		list = list[:maxWarnings+1]
	}
	return list
}

// warnings returns the warnings about the steps of run and the steps below them. run may be nil.
func (run *draftRun) warnings() (list []*Error) {
	if run == nil {
		return nil
	}
	for _, s := range run.steps {
		script := s.shellScript()
		for _, w := range scriptWarnings(script.text) {
			list = append(list, script.at.errorf("%s", w))
		}
		list = append(list, s.run.warnings()...)
	}
	return list
}

// shellScript returns the script of a step that has one: of the key script, or the input of the step builtin://script.
func (d *draft) shellScript() word {
	if d.ref == nil || d.ref.text.text != scriptURL {
		return d.script
	}
	for _, in := range d.inputs {
		if in.name.text != inputScript {
			continue
		}
		var lines []string
		for _, line := range in.value.value.GetListValue().GetValues() {
			lines = append(lines, line.GetStringValue())
		}
		return word{at: in.value.at, text: cmp.Or(in.value.value.GetStringValue(), strings.Join(lines, "\n"))}
	}
	return word{}
}

// continued matches the end of a line of shell whose command goes on in the next line.
var continued = lazyregexp.New(`(\\|\||&&)[ \t]*\n`)

// goesOn reports whether a script has several commands on lines of their own, and continues after one that fails.
func goesOn(script string) bool {
	commands := 0
	for line := range strings.Lines(continued().ReplaceAllString(script, " ")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			commands++
		}
	}
	return commands > 1 && !endsEarly(script)
}
