package gitlabdoor

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/internal/termtext"
)

// maxEntry bounds a line in the trace, in bytes: the rest of a longer one follows as its continuation.
const maxEntry = 8 << 10

// stream is where an entry of the trace comes from, as the server's pages show it.
type stream int

// The streams: lines of the runner, and the output of the job.
const (
	runnerStream stream = iota
	jobStream
)

// section is a part of the trace that can be folded, in the words of GitLab Runner. Steps that follow each other with
// the same section are in one.
type section struct{ name, title string }

// The sections of jobs. Those with Failed in their names are for jobs that have failed so far.
var (
	prepareSection  = section{"prepare_script", "Preparing environment"}
	sourcesSection  = section{"get_sources", "Getting source from Git repository"}
	downloadSection = section{"download_artifacts", "Downloading artifacts"}
	afterSection    = section{"after_script", "Running after_script"}
	uploadSection   = section{"upload_artifacts_on_success", "Uploading artifacts for successful job"}
	uploadFailed    = section{"upload_artifacts_on_failure", "Uploading artifacts for failed job"}
	saveSection     = section{"archive_cache", "Saving cache for successful job"}
	saveFailed      = section{"archive_cache_on_failure", "Saving cache for failed job"}
	cleanupSection  = section{"cleanup_file_variables", "Cleaning up project directory and file based variables"}
)

// stepSection is the section of a script of the job.
func stepSection(name string) section {
	name = "step_" + name
	return section{name, fmt.Sprintf("Executing %q stage of the job script", name)}
}

// ofFailed has the sections that failed jobs have in place of others.
var ofFailed = map[section]section{uploadSection: uploadFailed, saveSection: saveFailed}

// shape says how the log of a job becomes its trace. It does not change while the job is reported.
type shape struct {
	marks    []byte    // the beginning of the marks in the log; nil without marks
	steps    []section // of the steps of the job, in their order
	end      section   // of the log after the last step
	notes    []string  // warnings at the begin
	sections bool      // the server knows sections
	stamps   bool      // each line begins with its time
}

// renderer makes the trace of a job from its log. The same log gives the same trace, in whatever pieces it comes, and
// its length does not depend on the times: those of a log that grows are less exact than those that are stored.
type renderer struct {
	*shape
	line    []byte    // the line, as far as it is not in the trace
	begun   time.Time // when its first byte was stored
	goesOn  [2]bool   // by stream: the last entry is unfinished
	open    section   // the present one, if there is one
	between bool      // the last step has ended, and no other has begun
	failed  bool      // a step has failed
	at      time.Time // of the last piece
	out     []byte    // of the trace, until it is taken
}

// begin begins the trace with the notes.
func (r *renderer) begin() {
	for _, note := range r.notes {
		r.entry(runnerStream, r.at, []byte("\x1b[0;33mWARNING: "+termtext.Line(note)+"\x1b[0;m"), true)
	}
}

// copy returns a copy that goes on in the same way. Its out is empty.
func (r *renderer) copy() renderer {
	c := *r
	c.line, c.out = bytes.Clone(r.line), nil
	return c
}

// write takes a piece of the log, and when it was stored.
func (r *renderer) write(text []byte, at time.Time) {
	if !at.IsZero() {
		r.at = at
	}
	for len(text) > 0 {
		if len(r.line) == 0 {
			r.begun = r.at
		}
		piece := text[:min(len(text), maxEntry)]
		n := bytes.IndexByte(piece, '\n')
		if n < 0 {
			r.line, text = append(r.line, piece...), text[len(piece):]
			r.split()
			continue
		}
		r.line, text = append(r.line, piece[:n]...), text[n+1:]
		r.endLine()
	}
}

// clear clears the line: programs send it after a carriage return.
var clear = []byte("\x1b[0K")

// split puts the begin of an unfinished line into the trace if it is long enough, or ends with a carriage return: a
// program shows its progress by them.
func (r *renderer) split() {
	for {
		end := r.progress()
		if end == 0 && len(r.line) > maxEntry+len(r.marks)+len(clear) { // longer than all that progress waits for
			if end = maxEntry; len(r.marks) > 0 { // a mark is a whole line
				if i := bytes.Index(r.line[1:maxEntry+len(r.marks)-1], r.marks); i >= 0 {
					end = i + 1
				}
			}
		}
		if end == 0 {
			return
		}
		r.text(r.line[:end], false)
		r.line, r.begun = slices.Delete(r.line, 0, end), r.at
	}
}

// progress returns the length of the begin of the line that ends with a carriage return, or with that and clear, once
// more of the line is there.
func (r *renderer) progress() int {
	i := bytes.IndexByte(r.line[:min(len(r.line), maxEntry)], '\r')
	if i < 0 {
		return 0
	}
	end := i + 1
	if rest := r.line[end:]; bytes.HasPrefix(rest, clear) {
		end += len(clear)
	} else if bytes.HasPrefix(clear, rest) {
		return 0
	}
	if len(r.line) == end {
		return 0
	}
	return end
}

// endLine ends a line.
func (r *renderer) endLine() {
	r.split()
	before, step, what, found := jobdoor.CutMark(r.line, r.marks)
	if len(r.marks) == 0 {
		before, found = r.line, false
	}
	if len(before) > 0 || !found {
		r.text(before, true)
	}
	if found {
		r.mark(step, what)
	}
	r.line = r.line[:0]
}

// text puts a part of the job's output into the trace.
func (r *renderer) text(text []byte, whole bool) {
	switch {
	case r.open == section{} && len(r.marks) > 0:
		r.enter(prepareSection)
	case r.between:
		r.enter(r.end)
	}
	r.entry(jobStream, r.begun, text, whole)
}

// mark notes the begin or the end of a step.
func (r *renderer) mark(step int, what string) {
	switch {
	case step < 0 || step >= len(r.steps):
	case what == jobdoor.MarkBegin:
		r.enter(r.steps[step])
	default:
		r.between = true
		r.failed = r.failed || what != stepSuccess && r.steps[step] != afterSection
	}
}

// stepSuccess is the result of a step that has succeeded, in a mark.
const stepSuccess = "success"

// enter begins a section, and ends the one before.
func (r *renderer) enter(s section) {
	if other, differs := ofFailed[s]; differs && r.failed {
		s = other
	}
	r.between = false
	if s == r.open {
		return
	}
	r.leave()
	r.open = s
	if r.sections {
		r.entry(runnerStream, r.at, fmt.Appendf(nil, "section_start:%d:%s\r%s", r.at.Unix(), s.name, clear), false)
	}
	r.entry(runnerStream, r.at, []byte("\x1b[36;1m"+s.title+"\x1b[0;m"), true)
}

// leave ends the section.
func (r *renderer) leave() {
	if (r.open != section{}) && r.sections {
		r.entry(runnerStream, r.at, fmt.Appendf(nil, "section_end:%d:%s\r%s", r.at.Unix(), r.open.name, clear), false)
	}
	r.open = section{}
}

// entry adds an entry to the trace: a line, or a part of one. With times, each is a line: its time, the stream, and a
// sign that it continues the last entry of the stream.
func (r *renderer) entry(s stream, at time.Time, text []byte, whole bool) {
	if r.stamps {
		r.out = at.UTC().AppendFormat(r.out, "2006-01-02T15:04:05.000000Z ")
		sign := byte(' ')
		if r.goesOn[s] {
			sign = '+'
		}
		r.out = append(r.out, '0', '0'+byte(s), 'O', sign)
	}
	r.out = append(r.out, text...)
	if r.goesOn[s] = !whole; whole || r.stamps {
		r.out = append(r.out, '\n')
	}
}

// finish ends the trace, with lines of the runner.
func (r *renderer) finish(lines ...string) {
	if len(r.line) > 0 {
		r.endLine()
	}
	if r.goesOn[jobStream] && !r.stamps {
		r.entry(jobStream, r.at, nil, true)
	}
	r.leave()
	for _, line := range lines {
		r.entry(runnerStream, r.at, []byte(line), true)
	}
}
