package expr

import (
	"cmp"
	"fmt"
	"strings"
)

// equal reports whether a and b are equal. Values of different kinds never are.
func equal(a, b Value) bool {
	if a.kind != b.kind || a.num != b.num || a.str != b.str {
		return false
	}
	if a.list == b.list {
		return true
	}
	if len(a.list.items) != len(b.list.items) {
		return false
	}
	for i := range a.list.items {
		if a.list.keys != nil && a.list.keys[i] != b.list.keys[i] || !equal(a.list.items[i], b.list.items[i]) {
			return false
		}
	}
	return true
}

// order returns -1, 0 or +1 if a comes before, with or after b. The first items that differ order arrays. Objects are
// ordered by their length, then their keys, then their values. Values of different kinds are an error.
func order(a, b Value) (int, error) {
	if a.kind != b.kind {
		return 0, fmt.Errorf("%s and %s have no order", a.kind.phrase(), b.kind.phrase())
	}
	switch a.kind {
	case Boolean, Number:
		return cmp.Compare(a.num, b.num), nil
	case String:
		return strings.Compare(a.str, b.str), nil
	case Array:
		return orderItems(a.list.items, b.list.items)
	case Object:
		return orderObjects(a.list, b.list)
	default:
		return 0, nil
	}
}

func orderItems(a, b []Value) (int, error) {
	for i := range min(len(a), len(b)) {
		if c, err := order(a[i], b[i]); c != 0 || err != nil {
			return c, err
		}
	}
	return cmp.Compare(len(a), len(b)), nil
}

func orderObjects(a, b *list) (int, error) {
	if c := cmp.Compare(len(a.keys), len(b.keys)); c != 0 {
		return c, nil
	}
	for i := range a.keys {
		if c := strings.Compare(a.keys[i], b.keys[i]); c != 0 {
			return c, nil
		}
	}
	return orderItems(a.items, b.items)
}
