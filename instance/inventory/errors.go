package inventory

import (
	"fmt"

	"go.yaml.in/yaml/v4"
)

// Error says what is wrong with an inventory, where, and where possible what to write instead.
type Error struct {
	// File is what the text was called. Line and Column count from 1; both are 0 if it is the text as a
	// whole.
	File         string
	Line, Column int
	// Message says what is wrong.
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
