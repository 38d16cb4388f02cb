// Package lazyregexp compiles regular expressions at their first use. The VM's end starts for each build, and most
// builds use few of them.
package lazyregexp

import (
	"regexp"
	"sync"
)

// New returns a function that returns the expression of a pattern. It panics if the pattern is malformed. It is safe
// for concurrent use.
func New(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
