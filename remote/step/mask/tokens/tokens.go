// Package tokens masks tokens by how they begin: a [Writer] replaces the rest of each word that begins with one of some
// prefixes, such as glpat-. It is a package of its own because step/mask is compiled for speed, and this is not to cost
// the VM's program more than its share.
package tokens

import (
	"bytes"
	"io"
	"strings"
)

// Replacement is written in place of a secret.
const Replacement = "[MASKED]"

// maxPrefix bounds the length of a prefix, in bytes. A longer one may be overlooked, and an empty one masks all.
const maxPrefix = 256

// ofTokens are the characters of tokens.
const ofTokens = "-.=_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// Writer passes a stream on to another one. It holds nothing back. One goroutine uses it.
type Writer struct {
	To       io.Writer
	Prefixes []string

	out    bytes.Buffer // the next bytes to pass on, after the last ones that were, at most maxPrefix
	inside bool         // a prefix is complete
	masked bool         // its rest has begun
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	before := w.out.Len()
	for _, c := range p {
		if w.inside && strings.IndexByte(ofTokens, c) >= 0 {
			if !w.masked {
				w.out.WriteString(Replacement)
			}
			w.masked = true
			continue
		}
		w.out.WriteByte(c)
		w.inside, w.masked = false, false
		for _, prefix := range w.Prefixes {
			if n := w.out.Len() - len(prefix); n >= 0 && string(w.out.Bytes()[n:]) == prefix {
				w.inside = true
			}
		}
	}
	_, err := w.To.Write(w.out.Bytes()[before:])
	w.out.Next(max(w.out.Len()-maxPrefix, 0))
	return len(p), err
}

// Mask masks a text.
func Mask(text string, prefixes []string) string {
	var out strings.Builder
	_, _ = (&Writer{To: &out, Prefixes: prefixes}).Write([]byte(text)) // a Builder takes all
	return out.String()
}
