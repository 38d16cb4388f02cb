// Package plural writes numbers of things for people ([Count]).
package plural

import (
	"fmt"
	"strings"
)

// Count returns the number n and the noun for n things; thing is the singular: "1 build", "2 builds".
func Count[N int | int64 | uint32 | uint64](n N, thing string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(thing, "s"):
		thing += "es"
	case strings.HasSuffix(thing, "y") && !strings.HasSuffix(thing, "ey"):
		thing = strings.TrimSuffix(thing, "y") + "ies"
	default:
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
