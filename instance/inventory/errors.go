package inventory

import (
	"fmt"

	"go.yaml.in/yaml/v4"
)

// Error is a mistake in an inventory, with its place and, where possible, the remedy.
type Error struct {
	// File is the name given to Parse. Line and Column count from 1; both are 0 for a mistake of the whole text.
	File         string
	Line, Column int
	// Message describes the mistake.
	Message string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// fail notes a mistake at n, or one of the whole text if n is nil, unless there was one before.
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
