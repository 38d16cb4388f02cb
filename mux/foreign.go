package mux

import "strings"

// maxForeign bounds the text of a peer in an error message.
const maxForeign = 1 << 10

// foreignError is an error with words of the peer in it, of which only so many are told as help to read it.
type foreignError struct {
	text string
	err  error
}

// shorten returns err, or one that says less if its text is long. errors.Is and As see no difference.
func shorten(err error) error {
	text := err.Error()
	if len(text) <= maxForeign {
		return err
	}
	return &foreignError{strings.ToValidUTF8(text[:maxForeign], "?") + "...", err}
}

func (e *foreignError) Error() string { return e.text }

// Unwrap returns the whole error.
func (e *foreignError) Unwrap() error { return e.err }
