package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// mostFailures bounds the kinds of failures in a summary, mostNames the length of a list of builds there.
	mostFailures, mostNames = 10, 400
)

// failures groups the failed builds of a run: builds with the same cause are one kind.
type failures struct {
	kinds []*failure // in the order of their first builds
	of    map[string]*failure
}

// failure is one kind of failure.
type failure struct {
	text   string // of its first build
	builds []string
}

// add adds a failed build, which runs a file, and reports whether it is the first of its kind.
func (f *failures) add(r batch.Report, file string) (first bool) {
	text := r.Err.Error()
	like := fmt.Sprint(file, "\x00", r.Err.ExitCode, "\x00", likeness(text, r.Build, r.Instance))
	kind := f.of[like]
	if kind == nil {
		kind = &failure{text: fmt.Sprintf("%s: %s", placed(r, file), text)}
		if f.of == nil {
			f.of = map[string]*failure{}
		}
		f.of[like] = kind
		f.kinds = append(f.kinds, kind)
	}
	kind.builds = append(kind.builds, r.Build)
	return len(kind.builds) == 1
}

// placed names a build, its file and its VM.
func placed(r batch.Report, file string) string {
	if r.Instance == "" {
		return fmt.Sprintf("%s (%s)", r.Build, file)
	}
	return fmt.Sprintf("%s (%s on %s)", r.Build, file, r.Instance)
}

// numbers matches the parts in which failures of one kind differ: process ids, ports, times.
var numbers = regexp.MustCompile(`[0-9]{3,}|[0-9.]+(ms|s|m)`)

// likeness reduces a failure's text to the part that all failures of its kind share.
func likeness(text, build, vm string) string {
	text = strings.ReplaceAll(text, build, "*")
	if vm != "" {
		text = strings.ReplaceAll(text, vm, "*")
	}
	return numbers.ReplaceAllString(text, "#")
}

// summary returns the lines about the failures: for each kind an example and its builds.
func (f *failures) summary() []string {
	var lines []string
	for i, kind := range f.kinds {
		if i == mostFailures {
			rest := 0
			for _, other := range f.kinds[i:] {
				rest += len(other.builds)
			}
			return append(lines, fmt.Sprintf("failed in %s: %s (--output json has each)",
				plural.Count(len(f.kinds)-i, "other way"), plural.Count(rest, "build")))
		}
		if len(kind.builds) == 1 {
			lines = append(lines, "failed: "+termtext.Text(kind.text))
			continue
		}
		lines = append(lines,
			fmt.Sprintf("failed alike: %d builds, the first %s", len(kind.builds), termtext.Text(kind.text)),
			"  "+names(kind.builds))
	}
	return lines
}

// names lists builds. A sequence such as b-3, b-4, b-5 is written as "b-3 to b-5".
func names(builds []string) string {
	type numbered struct {
		prefix string
		n      int
		name   string
	}
	all := make([]numbered, len(builds))
	for i, build := range builds {
		prefix, n := build, -1 // -1: without a number
		if at := strings.LastIndexByte(build, '-') + 1; at > 0 {
			if number, err := strconv.Atoi(build[at:]); err == nil {
				prefix, n = build[:at], number
			}
		}
		all[i] = numbered{prefix, n, build}
	}
	slices.SortStableFunc(all, func(a, b numbered) int {
		if a.prefix != b.prefix {
			return strings.Compare(a.prefix, b.prefix)
		}
		return a.n - b.n
	})
	var b strings.Builder
	for i := 0; i < len(all); {
		end := i + 1
		for end < len(all) && all[end].prefix == all[i].prefix && all[i].n >= 0 && all[end].n == all[end-1].n+1 {
			end++
		}
		if i > 0 {
			b.WriteString(", ")
		}
		if b.Len() > mostNames {
			fmt.Fprintf(&b, "and %d more (--output json has each)", len(all)-i)
			break
		}
		b.WriteString(all[i].name)
		if end-i > 1 {
			b.WriteString(" to " + all[end-1].name)
		}
		i = end
	}
	return b.String()
}
