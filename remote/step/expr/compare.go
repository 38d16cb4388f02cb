package expr

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// equal reports whether a and b are equal. Values of different kinds never are.
func equal(a, b Value) bool {
	c, err := order(a, b)
	return c == 0 && err == nil
}

// order returns -1, 0 or +1 if a comes before, with or after b. Arrays are ordered by the first items that differ.
// Objects are ordered by their length, then their keys, then their values. Values of different kinds are an error.
func order(a, b Value) (int, error) {
	if a.kind != b.kind {
		return 0, fmt.Errorf("%s and %s have no order", a.kind.phrase(), b.kind.phrase())
	}
	if a.list == nil {
		return cmp.Or(cmp.Compare(a.num, b.num), strings.Compare(a.str, b.str)), nil
	}
	c := cmp.Or(cmp.Compare(len(a.list.keys), len(b.list.keys)), slices.Compare(a.list.keys, b.list.keys))
	for i := 0; c == 0 && i < min(a.Len(), b.Len()); i++ {
		var err error
		if c, err = order(a.list.items[i], b.list.items[i]); err != nil {
			return 0, err
		}
	}
	return cmp.Or(c, cmp.Compare(a.Len(), b.Len())), nil
}
