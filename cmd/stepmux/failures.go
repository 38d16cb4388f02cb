package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/internal/likeness"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// mostFailures bounds the kinds in a summary, mostNames the length of a list of builds there.
	mostFailures, mostNames = 10, 400
)

// kinds groups texts about builds of a run: texts about the same cause are one kind.
type kinds struct {
	list []*kind // in the order of their first builds
	of   map[string]*kind
}

// kind is one kind of text.
type kind struct {
	text   string // of its first build
	builds []string
}

// add adds a text about a build, and reports whether it is the first of its kind. Only texts with the same key are
// alike. where names the build.
func (k *kinds) add(r batch.Report, where, text, key string) (first bool) {
	like := key + "\x00" + likeness.Of(text, r.Build, r.Instance)
	of := k.of[like]
	if of == nil {
		of = &kind{text: fmt.Sprintf("%s: %s", where, text)}
		if k.of == nil {
			k.of = map[string]*kind{}
		}
		k.of[like] = of
		k.list = append(k.list, of)
	}
	of.builds = append(of.builds, r.Build)
	return len(of.builds) == 1
}

// addFailure adds a failed build, which runs a file.
func (k *kinds) addFailure(r batch.Report, file string) (first bool) {
	return k.add(r, placed(r, file), r.Err.Error(), fmt.Sprint(file, "\x00", r.Err.ExitCode))
}

// placed names a build, its file and its VM.
func placed(r batch.Report, file string) string {
	if r.Instance == "" {
		return fmt.Sprintf("%s (%s)", r.Build, file)
	}
	return fmt.Sprintf("%s (%s on %s)", r.Build, file, r.Instance)
}

// several returns the kinds that more than one build has.
func (k *kinds) several() *kinds {
	return &kinds{list: slices.DeleteFunc(slices.Clone(k.list), func(of *kind) bool { return len(of.builds) < 2 })}
}

// summary returns the lines about the kinds: for each an example and its builds. event is "failed", or another.
func (k *kinds) summary(event string) []string {
	var lines []string
	for i, of := range k.list {
		if i == mostFailures {
			rest := 0
			for _, other := range k.list[i:] {
				rest += len(other.builds)
			}
			return append(lines, fmt.Sprintf("%s in %s: %s (--output json has each)", event,
				plural.Count(len(k.list)-i, "other way"), plural.Count(rest, "build")))
		}
		if len(of.builds) == 1 {
			lines = append(lines, event+": "+termtext.Text(of.text))
			continue
		}
		lines = append(lines,
			fmt.Sprintf("%s alike: %d builds, the first %s", event, len(of.builds), termtext.Text(of.text)),
			"  "+names(of.builds))
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
