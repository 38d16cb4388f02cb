package inventory

import (
	"fmt"

	"go.yaml.in/yaml/v4"
)

// Error is an error in an inventory, with its position and, if possible, the remedy.
type Error struct {
	// File is the name given to Parse. Line and Column count from 1; both are 0 if the error concerns the whole text.
	File         string
	Line, Column int
	// Message describes the error.
	Message string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// fail records an error at n, or of the whole text if n is nil. Only the first error is kept.
func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	if r.err != nil {
		return
	}
	e := &Error{File: r.name, Message: fmt.Sprintf(format, args...)}
	if n != nil {
		e.Line, e.Column = n.Line, n.Column
	}
	r.err = e
}
