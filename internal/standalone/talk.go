package standalone

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// Talk shows the progress of a job to a person: the name of each step when it begins, and the results at the end. Its
// methods and those of its writers are not safe for concurrent use.
type Talk struct {
	err    io.Writer
	colour bool
	// open says that the cursor is in the middle of a line.
	open bool
}

// NewTalk returns a Talk on err. colour says whether it uses colours.
func NewTalk(err io.Writer, colour bool) *Talk { return &Talk{err: err, colour: colour} }

// Beside returns a writer to w, which is on the same terminal as the Talk. The Talk then begins its lines on a new
// line.
func (t *Talk) Beside(w io.Writer) io.Writer { return &besides{t, w} }

type besides struct {
	talk *Talk
	to   io.Writer
}

func (b *besides) Write(p []byte) (int, error) {
	n, err := b.to.Write(p)
	if n > 0 {
		b.talk.open = p[n-1] != '\n'
	}
	return n, err
}

// The colours.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
)

func (t *Talk) paint(colour, text string) string {
	if !t.colour || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (t *Talk) line(text string) {
	if t.open {
		text = "\n" + text
		t.open = false
	}
	_, _ = io.WriteString(t.err, text+"\n") // ignore errors: the reader may have gone
}

// Notice shows a notice about the job.
func (t *Talk) Notice(text string) { t.line(t.paint(dim, "note: "+termtext.Line(text))) }

// Say shows a line about the result.
func (t *Talk) Say(text string) { t.line(termtext.Line(text)) }

// Observe shows that a step begins.
func (t *Talk) Observe(r engine.StepResult) {
	if r.Status == engine.Running && r.Kind != engine.Unknown {
		t.line(t.paint(bold, "> "+termtext.Line(strings.Join(r.Path, " / "))))
	}
}

// End shows how the job and its steps ended.
func (t *Talk) End(r *Report) {
	colour := red
	if r.Status == engine.Success.String() {
		colour = green
	}
	text := fmt.Sprintf("%s in %s", r.Status, seconds(r.Duration))
	if r.Message != "" {
		text += ": " + r.Message
	}
	t.line(t.paint(colour, termtext.Line(text)))
	t.tree(r.Steps, "  ", r.Message)
}

// tree shows the ends of steps. told is the message of the job: a reason that is in it is not shown again.
func (t *Talk) tree(steps []StepReport, indent, told string) {
	for _, s := range steps {
		colour, took := red, seconds(s.Duration)
		switch s.Status {
		case engine.Success.String():
			colour = green
		case engine.Skipped.String():
			colour, took = dim, ""
		}
		status := t.paint(colour, fmt.Sprintf("%-9s", termtext.Line(s.Status)))
		text := fmt.Sprintf("%s%s %7s  %s", indent, status, took, termtext.Line(s.Name))
		if s.ExitCode != nil && *s.ExitCode != 0 && len(s.Steps) == 0 {
			text += fmt.Sprintf(" (exit status %d)", *s.ExitCode)
		}
		t.line(text)
		if why := s.reason(); why != "" && !strings.Contains(told, why) {
			t.line(indent + "  " + t.paint(red, termtext.Line(why)))
		}
		for _, w := range s.Warnings {
			t.line(indent + "  " + t.paint(dim, "warning: "+termtext.Line(w)))
		}
		t.tree(s.Steps, indent+"  ", told)
	}
}

// reason returns why a step failed by itself, or "" if there is only its exit status, or a step below it failed.
func (s *StepReport) reason() string {
	why := strings.TrimPrefix(s.Message, fmt.Sprintf("step %q: ", s.Name))
	isKnown := strings.HasPrefix(why, "exec: exit status ") || strings.HasPrefix(why, "step ")
	if isKnown || s.Status != engine.Failure.String() {
		return ""
	}
	return why
}

// seconds formats a duration with few digits.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}
