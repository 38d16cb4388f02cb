package giteadoor

import (
	"bytes"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/remote/step/mask"
)

// maxRow bounds a row, in bytes: the server cuts longer ones without a word.
const maxRow = 60 << 10

// rows turns the log of a build into rows, the same each time, and finds the steps in it by the marks of the step
// runner.
type rows struct {
	mark  []byte // begins a mark
	take  func(Row)
	line  []byte // unfinished
	count int64  // rows so far
	steps []Step
}

// newRows returns rows for a job with so many steps, whose marks have a token.
func newRows(token string, steps int, take func(Row)) *rows {
	r := &rows{mark: jobdoor.MarkPrefix(token), take: take, steps: make([]Step, steps)}
	for i := range r.steps {
		r.steps[i].ID = int64(i)
	}
	return r
}

// copy returns a copy, which goes on in the same way.
func (r *rows) copy() *rows {
	c := *r
	c.line, c.steps = bytes.Clone(r.line), slices.Clone(r.steps)
	return &c
}

// write takes a piece of the log, and when it was written.
func (r *rows) write(text []byte, at time.Time) {
	for len(text) > 0 {
		part, rest, ended := bytes.Cut(text, []byte{'\n'})
		text = rest
		r.line = append(r.line, part...)
		for len(r.line) >= maxRow+max(len(r.mark), len(masked)) {
			r.split(at)
		}
		if ended {
			r.end(at)
		}
	}
}

// masked stands in a log for a secret.
var masked = []byte(mask.Replacement)

// split takes a row from the begin of a line that is too long. A mark, the word for a secret, and a character stay in
// one row.
func (r *rows) split(at time.Time) {
	n, low := maxRow, maxRow-len(masked)+1
	upTo := func(end int) []byte { return r.line[:min(len(r.line), end)] }
	if i := bytes.Index(upTo(maxRow+len(r.mark)-1), r.mark); i > 0 {
		n = i
	} else if i := bytes.Index(upTo(maxRow + len(masked) - 1)[low:], masked); i >= 0 {
		n = low + i
	} else {
		for n > maxRow-utf8.UTFMax && !utf8.RuneStart(r.line[n]) {
			n--
		}
	}
	r.put(r.line[:n], at)
	r.line = r.line[n:]
}

// end ends a line.
func (r *rows) end(at time.Time) {
	for len(r.line) > maxRow {
		r.split(at)
	}
	line := bytes.TrimSuffix(r.line, []byte{'\r'})
	before, step, what, found := jobdoor.CutMark(line, r.mark)
	if len(before) > 0 || !found {
		r.put(before, at)
	}
	if found {
		r.note(step, what, at)
	}
	r.line = r.line[:0]
}

// flush ends an unfinished line.
func (r *rows) flush(at time.Time) {
	if len(r.line) > 0 {
		r.end(at)
	}
}

func (r *rows) put(line []byte, at time.Time) {
	r.count++
	r.take(Row{Time: at, Content: strings.ToValidUTF8(string(line), "\uFFFD")})
}

// results are the results of steps by the words of a mark.
var results = map[string]string{
	"success": resultSuccess, "failure": resultFailure, "cancelled": resultCancelled, "skipped": resultSkipped,
}

// note notes a mark: the number of a step, and begin or its result.
func (r *rows) note(i int, word string, at time.Time) {
	if i < 0 || i >= len(r.steps) {
		return
	}
	s := &r.steps[i]
	if word == jobdoor.MarkBegin {
		s.LogIndex, s.StartedAt = r.count, &at
		return
	}
	if result := results[word]; result != "" {
		s.Result, s.StoppedAt = result, &at
		if s.StartedAt == nil {
			s.LogIndex, s.StartedAt = r.count, &at
		}
		s.LogLength = r.count - s.LogIndex
	}
}

// shown returns the steps as they are now. One that runs has the rows so far.
func (r *rows) shown() []Step {
	all := make([]Step, len(r.steps))
	for i, s := range r.steps {
		if s.StartedAt != nil && s.StoppedAt == nil {
			s.LogLength = r.count - s.LogIndex
		}
		all[i] = s
	}
	return all
}

// ended returns the steps of a job that has ended with a result: those that have not begun were skipped, or cancelled
// with it.
func (r *rows) ended(result string, at time.Time) []Step {
	all := r.shown()
	for i := range all {
		s := &all[i]
		switch {
		case s.Result != "":
		case s.StartedAt != nil: // it was cut off
			s.Result, s.StoppedAt = result, &at
		case result == resultCancelled:
			s.Result = resultCancelled
		default:
			s.Result = resultSkipped
		}
	}
	return all
}
