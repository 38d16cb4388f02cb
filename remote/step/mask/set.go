package mask

import (
	"cmp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/remote/step/mask/tokens"
)

// Replacement is written in place of a secret.
const Replacement = tokens.Replacement

// maxNodes bounds the memory of a Set's automaton: 18 bytes a node.
const maxNodes = 8 << 20

// Set holds secrets. The zero value is empty and ready to use. It is safe for concurrent use, and may grow while
// streams run: a new secret is masked in all data that is written after Add has returned.
type Set struct {
	// Prefixes are beginnings of tokens: in streams, the rest of each word that begins so is replaced. They are set
	// before NewWriter is called.
	Prefixes []string

	built atomic.Pointer[automaton] // of all patterns; nil if it must be built

	mu       sync.Mutex // guards the following
	secrets  map[string]bool
	patterns []string
	nodes    int
	limit    int // of nodes; 0 means maxNodes; tests set less
}

// Add adds a secret, in all its forms. The error ErrShort or ErrFull says that the secret is not masked.
func (s *Set) Add(secret string) error {
	if len(secret) < minLen {
		return ErrShort
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets[secret] {
		return nil
	}
	limit := cmp.Or(s.limit, maxNodes) - s.nodes
	if len(secret) > limit/4 { // its base64 forms alone need more nodes
		return ErrFull
	}
	all := forms(secret)
	nodes := countNodes(all)
	if nodes > limit {
		return ErrFull
	}
	if s.secrets == nil {
		s.secrets = map[string]bool{}
	}
	s.secrets[secret] = true
	s.patterns = append(s.patterns, all...)
	s.nodes += nodes
	s.built.Store(nil)
	return nil
}

// countNodes returns the number of nodes below the root of the automaton of patterns, which are sorted.
func countNodes(patterns []string) int {
	n, last := 0, ""
	for _, p := range patterns {
		common := 0
		for common < min(len(p), len(last)) && p[common] == last[common] {
			common++
		}
		n += len(p) - common
		last = p
	}
	return n
}

// automaton returns the automaton of the present secrets.
func (s *Set) automaton() *automaton {
	if a := s.built.Load(); a != nil {
		return a
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.built.Load()
	if a == nil {
		a = build(s.patterns)
		s.built.Store(a)
	}
	return a
}

// Holds reports whether text contains a secret.
func (s *Set) Holds(text string) bool { return len(s.find(text)) > 0 }

// find returns the places of the secrets in text.
func (s *Set) find(text string) (found spans) {
	if a := s.automaton(); !a.empty() {
		a.scan(0, []byte(text), found.add)
	}
	return found
}

// Mask returns text with all secrets replaced.
func (s *Set) Mask(text string) string {
	found := s.find(text)
	if len(found) == 0 {
		return text
	}
	out := make([]byte, 0, len(text))
	at := 0
	for _, f := range found {
		out = append(out, text[at:f.from]...)
		out = append(out, Replacement...)
		at = f.to
	}
	return string(append(out, text[at:]...))
}

// exitStatus matches the end of a message about a process.
var exitStatus = lazyregexp.New(`exit status \d{1,3}$`)

// Message masks a text for people, and replaces bytes that are not UTF-8. It keeps an exit status at the end even if
// that looks like a secret, because callers read it.
func (s *Set) Message(text string) string {
	status := exitStatus().FindString(text)
	return strings.ToValidUTF8(s.Mask(strings.TrimSuffix(text, status)), "\uFFFD") + status
}
