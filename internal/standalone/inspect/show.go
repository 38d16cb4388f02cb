package inspect

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Show prints t: a line for the job and for each step, and below it the inputs, the command and the results. It escapes
// every character that a terminal could interpret.
func Show(w io.Writer, t *trace.Trace) error {
	s := &shower{w: bufio.NewWriter(w), runs: make(map[string]*trace.StepRun, len(t.Volatile.Steps))}
	for i := range t.Volatile.Steps {
		s.runs[t.Volatile.Steps[i].Path] = &t.Volatile.Steps[i]
	}
	s.job(t)
	for i := range t.Identity.Steps {
		s.step(&t.Identity.Steps[i], 0)
	}
	return s.w.Flush()
}

// shower writes a trace. The writer keeps the first error.
type shower struct {
	w    *bufio.Writer
	runs map[string]*trace.StepRun
}

func (s *shower) job(t *trace.Trace) {
	id, v := &t.Identity, &t.Volatile
	s.line(0, "job %s", ended(id.Status, id.ExitCode, v.Started, v.Ended))
	s.text(1, "message", v.Message)
	s.line(1, "id       %s", one(t.ID))
	source := strings.Fields(id.Job.Source.Kind + " " + id.Job.Source.JobName + " " + digests(id.Job.Source.Digest))
	s.line(1, "source   %s", one(strings.Join(source, " ")))
	if id.Runtime.Image != "" {
		s.line(1, "image    %s", one(id.Runtime.Image))
	}
	s.line(1, "runner   stepmux %s on %s/%s %s", one(id.Runtime.Runner.Version), one(id.Runtime.OS), one(id.Runtime.Arch),
		one(digests(id.Runtime.Runner.Digest)))
	vars := mask.Texts{}
	for name, variable := range id.Job.Vars {
		vars[name] = variable.Value
	}
	s.texts("vars", 1, vars)
	s.texts("env", 1, id.Job.Env)
	s.values("inputs", 1, id.Job.Inputs)
	s.values("outputs", 1, id.Outputs)
	s.values("exports", 1, id.Exports)
	for _, warning := range v.Warnings {
		s.text(1, "warning", warning)
	}
}

func (s *shower) step(step *trace.Step, depth int) {
	run := s.runs[step.Path]
	if run == nil {
		run = &trace.StepRun{}
	}
	s.line(depth, "step %s %s", one(step.Name), ended(step.Status, step.ExitCode, run.Started, run.Ended))
	depth++
	s.text(depth, "message", run.Message)
	if c := step.Component; c != nil {
		s.line(depth, "from     %s", one(component(c)))
		s.text(depth, "digest", digests(c.Digest))
	}
	s.values("inputs", depth, step.Inputs)
	s.texts("env", depth, step.EnvSet)
	if e := step.Exec; e != nil {
		argv := make([]string, len(e.Argv))
		for i, arg := range e.Argv {
			argv[i] = textOf(arg)
		}
		s.line(depth, "command  %s", cut(strings.Join(argv, " ")))
		s.line(depth, "in       %s", textOf(e.WorkDir))
		if p := e.Program; p != nil {
			s.line(depth, "program  %s %s", textOf(p.Path), one(digests(p.Digest)))
		}
	}
	s.values("outputs", depth, step.Outputs)
	s.values("exports", depth, step.Exports)
	if l := step.Logs; l.Stdout.SHA256 != "" {
		s.line(depth, "logs     stdout %d bytes, stderr %d bytes", l.Stdout.Bytes, l.Stderr.Bytes)
	}
	for i := range step.Steps {
		s.step(&step.Steps[i], depth)
	}
}

// ended returns the end of a job or a step in words.
func ended(status string, code *int, from, to time.Time) string {
	text := one(status)
	if code != nil && *code != 0 {
		text += fmt.Sprintf(" (exit code %d)", *code)
	}
	if !from.IsZero() && to.After(from) {
		text += " in " + to.Sub(from).Round(time.Millisecond).String()
	}
	return text
}

// component says where a step was found.
func component(c *trace.Component) string {
	text := strings.TrimSpace(c.Kind + " " + c.Location)
	if c.Version != "" {
		text += "@" + c.Version
	}
	if commit := c.Digest[trace.GitCommit]; commit != "" && commit != c.Version {
		text += " (" + commit + ")"
	}
	if at := strings.TrimPrefix(c.Dir+"/"+c.File, "./"); strings.Trim(at, "/") != "" {
		text += " in " + strings.Trim(at, "/")
	}
	return text
}

// digests returns the most telling digest of d as a text.
func digests(d trace.Digest) string {
	kinds := slices.SortedFunc(maps.Keys(d), func(a, b string) int {
		rank := func(kind string) int {
			return slices.Index([]string{trace.GitTree, trace.GitCommit, trace.SHA256, trace.SHA256Tree}, kind)
		}
		return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a, b))
	})
	if len(kinds) == 0 {
		return ""
	}
	return kinds[0] + ":" + d[kinds[0]]
}

func (s *shower) text(depth int, what, text string) {
	if text != "" {
		s.line(depth, "%-8s %s", what, one(text))
	}
}

func (s *shower) texts(what string, depth int, texts mask.Texts) {
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		s.line(depth, "%-8s %s=%s", what, one(name), textOf(texts[name]))
	}
}

func (s *shower) values(what string, depth int, values mask.Values) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		text := "[MASKED]"
		if v := values[name]; !v.Masked {
			data, err := v.Value.MarshalJSON()
			if err != nil {
				data = []byte("?")
			}
			text = one(string(data))
		}
		s.line(depth, "%-8s %s=%s", what, one(name), text)
	}
}

func (s *shower) line(depth int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	_, _ = fmt.Fprintf(s.w, "%s%s\n", strings.Repeat("  ", depth), strings.TrimRight(text, " ")) // Flush returns the error
}

func textOf(t mask.Text) string {
	if t.Masked {
		return "[MASKED]"
	}
	return one(t.Value)
}

// one returns text as a piece of one line that is safe to show.
func one(text string) string { return cut(termtext.Escape(text)) }
