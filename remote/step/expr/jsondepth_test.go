package expr_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/expr"
)

func TestJSONShapeIsThatOfItsArraysAndObjects(t *testing.T) {
	for text, want := range map[string][2]int{
		"1": {0, 1}, "[]": {1, 2}, `{"a":[{}]}`: {3, 4}, `[[],[[]]]`: {3, 6}, `"[[[,"`: {0, 1}, `["\"[[,"]`: {1, 2},
		`["\\",[]]`: {2, 4}, `{"a":1,"b":[2,3]}`: {2, 5},
	} {
		depth, values := expr.JSONShape([]byte(text))
		require.Equal(t, want, [2]int{depth, values}, text)
	}
}
