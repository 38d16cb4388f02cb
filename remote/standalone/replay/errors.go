package replay

import (
	"errors"
	"fmt"
	"strings"
)

// ErrTrace says that a trace can never be repeated: no job leaves such a trace, or it lacks something.
var ErrTrace = errors.New("the trace cannot be repeated")

// RefusedError says that something a job is made of is not to be had as it was. Nothing was run, unless Late is set.
type RefusedError struct {
	// Reasons name each difference, Hints the remedies.
	Reasons, Hints []string
	// Late tells that it came out while the job ran: it is of a component that the trace does not tell of.
	Late bool
}

func (e *RefusedError) Error() string {
	text := "the replay is refused: " + some(e.Reasons, "; ")
	for _, hint := range e.Hints {
		text += "; " + hint
	}
	return text
}

// some joins the first of list, and says how many more there are.
func some(list []string, with string) string {
	const most = 20
	if len(list) <= most {
		return strings.Join(list, with)
	}
	return fmt.Sprintf("%s%sand %d more", strings.Join(list[:most], with), with, len(list)-most)
}

// MissingError names the values that are masked in the trace and were not given.
type MissingError struct {
	// Names are the names of variables and inputs; for other values, JSON pointers into the trace's identity.
	Names []string
}

func (e *MissingError) Error() string {
	hints := make([]string, len(e.Names))
	for i, name := range e.Names {
		name = graphic(name)
		hints[i] = fmt.Sprintf("--secret %s=env:NAME", name)
		if strings.HasPrefix(name, "/") {
			hints[i] = fmt.Sprintf("--secret '%s=env:NAME'", name)
		}
	}
	return "the trace has no secrets, and the job needs some; give each with env:NAME or file:PATH: " + some(hints, " ")
}
