package mask

import (
	"cmp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stepmux/stepmux/internal/lazyregexp"
)

// Replacement stands where a secret was.
const Replacement = "[MASKED]"

// maxNodes bounds the memory for the automaton of a Set: 18 bytes a node.
const maxNodes = 8 << 20

// Set holds secrets. The zero value is empty and ready to use. It is safe for concurrent use, and may grow while
// streams run: a new secret is masked in all data written after Add has returned.
type Set struct {
	built atomic.Pointer[automaton] // of all patterns; nil if that has to be built

	mu       sync.Mutex // guards the following
	secrets  map[string]bool
	patterns []string
	nodes    int
	limit    int // of nodes; maxNodes if 0, less in tests
}

// Add adds a secret, in all its forms. The error, ErrShort or ErrFull, says that it is not masked.
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
	if len(secret) > limit/4 { // in base64 alone it has more nodes than that
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

// countNodes returns how many nodes an automaton of patterns, which are sorted, has below its root.
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

// automaton returns the automaton of all secrets there are.
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

// Holds reports whether text holds a secret.
func (s *Set) Holds(text string) bool { return len(s.find(text)) > 0 }

// find returns where the secrets in text are.
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

// exitStatus is how a message about a process ends.
var exitStatus = lazyregexp.New(`exit status \d{1,3}$`)

// Message masks a text for people, and replaces bytes that are not UTF-8. An exit status at its end stays whatever the
// secrets are, because callers read it.
func (s *Set) Message(text string) string {
	status := exitStatus().FindString(text)
	return strings.ToValidUTF8(s.Mask(strings.TrimSuffix(text, status)), "\uFFFD") + status
}
