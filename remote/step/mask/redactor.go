package mask

import (
	"strings"

	"github.com/stepmux/stepmux/internal/lazyregexp"

	"github.com/stepmux/stepmux/remote/step/expr"
)

// Redactor replaces secrets by their HMACs in the texts and values that a trace keeps. A text counts as secret if it
// holds a secret of the Set or a password in a URL, or if Hide was called with it. It is not safe for concurrent use.
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

// Salt returns the salt if anything was masked, else nil.
func (r *Redactor) Salt() *Salt {
	if !r.used {
		return nil
	}
	return r.salt
}

// credentials is how a reference with credentials begins.
var credentials = lazyregexp.New(`^([a-z+]+://)?[^/@\s]+@[^/@\s]+/`)

// password is a URL with a password, anywhere in a text. In http the user name alone can be a token.
var password = lazyregexp.New(`(?i)https?://[^/@\s]+@|[a-z]://[^/@\s]*:[^/@\s]+@`)

// HideReference masks the reference of a step from now on if it holds credentials.
func (r *Redactor) HideReference(text string) {
	if credentials().MatchString(text) {
		r.hidden[text] = true
	}
}

// Secret reports whether text is, or holds, a secret.
func (r *Redactor) Secret(text string) bool {
	return r.hidden[text] || strings.Contains(text, "://") && password().MatchString(text) || r.set.Holds(text)
}

// Text returns a text for a trace: marked, which is text with markers for its paths, or its HMAC if text is secret.
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

// Any reports whether secret is true of a text in v, or of v as JSON.
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
