package replay

import (
	"errors"
	"fmt"
	"strings"
)

// ErrTrace says that a trace can never be repeated: it is incomplete, or no job makes such a trace.
var ErrTrace = errors.New("the trace cannot be repeated")

// RefusedError says that a part of the job is not available in its recorded state. No step has run, unless Late is set.
type RefusedError struct {
	// Reasons name each difference, Hints the remedies.
	Reasons, Hints []string
	// Late says that this was noticed while the job ran: the job needed a component that is not in the trace.
	Late bool
}

func (e *RefusedError) Error() string {
	text := "the replay is refused: " + some(e.Reasons, "; ")
	for _, hint := range e.Hints {
		text += "; " + hint
	}
	return text
}

// some joins the beginning of list, and says how many more there are.
func some(list []string, with string) string {
	const most = 20
	if len(list) <= most {
		return strings.Join(list, with)
	}
	return fmt.Sprintf("%s%sand %d more", strings.Join(list[:most], with), with, len(list)-most)
}

// MissingError names the values that are masked in the trace and were not given.
type MissingError struct {
	// Names are the names of variables and inputs. For other values they are JSON pointers into the trace's identity.
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
