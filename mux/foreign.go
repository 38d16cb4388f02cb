package mux

import "strings"

// maxForeign bounds, in bytes, an error message that quotes the peer.
const maxForeign = 1 << 10

// foreignError is an error that quotes the peer. Its message is cut to maxForeign.
type foreignError struct {
	text string
	err  error
}

// shorten returns err, or err with a shorter message if that is long. errors.Is and As treat both alike.
func shorten(err error) error {
	text := err.Error()
	if len(text) <= maxForeign {
		return err
	}
	return &foreignError{strings.ToValidUTF8(text[:maxForeign], "?") + "...", err}
}

// handshakeError is shorten without the words of the SSH library that say no more than the stage.
func handshakeError(err error) error {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "ssh: handshake failed: "), "ssh: ")
	return shorten(&foreignError{strings.TrimSuffix(text, ", no supported methods remain"), err})
}

func (e *foreignError) Error() string { return e.text }

// Unwrap returns the whole error.
func (e *foreignError) Unwrap() error { return e.err }
