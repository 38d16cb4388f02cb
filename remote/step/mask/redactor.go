package mask

import (
	"strings"

	"github.com/stepmux/stepmux/internal/lazyregexp"

	"github.com/stepmux/stepmux/remote/step/expr"
)

// Redactor replaces secrets by their HMACs in the texts and values that a trace keeps. A text is secret if it contains
// a secret of the Set or a password in a URL, or if Hide was called with it. It is not safe for concurrent use.
type Redactor struct {
	set    *Set
	salt   *Salt
	hidden map[string]bool
	used   bool
}

// NewRedactor returns a Redactor for the secrets of set. If salt is nil, it makes a new one.
func NewRedactor(set *Set, salt *Salt) *Redactor {
	if salt == nil {
		salt = NewSalt()
	}
	return &Redactor{set: set, salt: salt, hidden: map[string]bool{}}
}

// Salt returns the salt if it was used, and nil otherwise.
func (r *Redactor) Salt() *Salt {
	if !r.used {
		return nil
	}
	return r.salt
}

// credentials matches the beginning of a reference with credentials.
var credentials = lazyregexp.New(`^([a-z+]+://)?[^/@\s]+@[^/@\s]+/`)

// password matches a URL with a password, anywhere in a text. With http the user name alone can be a token.
var password = lazyregexp.New(`(?i)https?://[^/@\s]+@|[a-z]://[^/@\s]*:[^/@\s]+@`)

// HideReference masks the reference of a step from now on if it contains credentials.
func (r *Redactor) HideReference(text string) {
	if credentials().MatchString(text) {
		r.hidden[text] = true
	}
}

// Secret reports whether text is, or contains, a secret.
func (r *Redactor) Secret(text string) bool {
	return r.hidden[text] || strings.Contains(text, "://") && password().MatchString(text) || r.set.Holds(text)
}

// Text returns text for a trace: its HMAC if it is secret, otherwise marked, the same text with markers for its paths.
func (r *Redactor) Text(text, marked string, sensitive bool) Text {
	if text != "" && (sensitive || r.Secret(text)) {
		r.used = true
		return r.salt.Text(marked)
	}
	return Text{Value: strings.ToValidUTF8(marked, "\uFFFD")}
}

// Value returns a value for a trace, as Text does for a text.
func (r *Redactor) Value(v, marked expr.Value) Value {
	if v.Sensitive() || Any(v, r.Secret) {
		r.used = true
		return r.salt.Value(marked)
	}
	return Value{Value: marked}
}

// Any reports whether secret is true for a text in v, or for v as JSON.
func Any(v expr.Value, secret func(text string) bool) bool {
	if secret(v.Text()) {
		return true
	}
	keys := v.Keys()
	for i := range v.Len() {
		if keys != nil && secret(keys[i]) || Any(v.Index(i), secret) {
			return true
		}
	}
	return false
}
