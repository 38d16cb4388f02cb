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

func (r *reader) errorf(n *yaml.Node, format string, args ...any) error {
	e := &Error{File: r.name, Message: fmt.Sprintf(format, args...)}
	if n != nil {
		e.Line, e.Column = n.Line, n.Column
	}
	return e
}
