package replay

import (
	"strings"

	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// shownPath returns the path of a local step for people.
func shownPath(location string) string {
	if rel, inside := strings.CutPrefix(location, trace.WorkDir); inside {
		location = "." + rel
	}
	return graphic(location)
}

// graphic returns a text of a trace for people: cut to a length, and without characters that a terminal could
// interpret.
func graphic(text string) string { return termtext.Escape(termtext.Cut(text, 400)) }
