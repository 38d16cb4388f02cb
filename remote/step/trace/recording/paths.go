package recording

import (
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/step/trace"
)

var markers = []string{trace.WorkDir, trace.CacheDir, trace.TempDir, trace.StepDir}

// Paths replaces paths by markers, and markers by paths. The zero value is empty. It is not safe for concurrent use.
type Paths struct {
	known []known // the longest path first
}

type known struct {
	path, marker string
	other        bool // an earlier path has the marker too
}

// Add makes marker replace path. marker is one of the four or begins with @cache/. Add ignores the root directory and
// relative paths. If several paths have one marker, Expand returns the first.
func (p *Paths) Add(path, marker string) {
	if len(path) < 2 || path[0] != '/' || strings.HasSuffix(path, "/") {
		return
	}
	other := slices.ContainsFunc(p.known, func(k known) bool { return k.marker == marker })
	p.known = append(p.known, known{path, marker, other})
	for i := len(p.known) - 1; i > 0 && len(p.known[i-1].path) < len(path); i-- {
		p.known[i-1], p.known[i] = p.known[i], p.known[i-1]
	}
}

// Mark returns text with markers in place of the known paths. Text that looks like a marker gets a colon after its @,
// as in @:work.
func (p *Paths) Mark(text string) string {
	return replace(text, func(rest string) (string, int) {
		if rest[0] == '@' {
			if like(rest) > 0 {
				return "@:", 1
			}
			return "", 0
		}
		for _, k := range p.known {
			if begins(rest, k.path) {
				return k.marker, len(k.path)
			}
		}
		return "", 0
	})
}

// Expand reverses Mark. Unknown markers stay.
func (p *Paths) Expand(text string) string {
	return replace(text, func(rest string) (string, int) {
		if rest[0] != '@' {
			return "", 0
		}
		if colons := like(rest); colons > 1 {
			return "@", 2
		}
		best := known{}
		for _, k := range p.known {
			if !k.other && begins(rest, k.marker) && len(k.marker) > len(best.marker) {
				best = k
			}
		}
		return best.path, len(best.marker)
	})
}

// replace calls by for the rest of text at each / and @. If by returns n > 0, its text replaces n bytes there.
func replace(text string, by func(rest string) (string, int)) string {
	var b strings.Builder
	for {
		at := strings.IndexAny(text, "/@")
		if at < 0 {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:at])
		text = text[at:]
		with, n := by(text)
		if n == 0 {
			with, n = text[:1], 1
		}
		b.WriteString(with)
		text = text[n:]
	}
}

// like returns 0 unless text begins with a marker, with or without colons after its @. Otherwise it returns the number
// of the colons and 1.
func like(text string) int {
	rest := strings.TrimLeft(text[1:], ":")
	colons := len(text) - 1 - len(rest)
	for _, m := range markers {
		if begins(rest, m[1:]) {
			return colons + 1
		}
	}
	return 0
}

// begins reports whether text begins with the path prefix, and the last name in prefix ends there.
func begins(text, prefix string) bool {
	rest, found := strings.CutPrefix(text, prefix)
	return found && (rest == "" || !inName(rest[0]))
}

// inName reports whether c is a part of a name.
func inName(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' || c == '_' || c == '-' ||
		c >= 0x80
}
