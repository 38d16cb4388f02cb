package expr_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/expr"
)

func TestJSONDepthIsThatOfItsArraysAndObjects(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "1": 0, "[]": 1, `{"a":[{}]}`: 3, `[[],[[]]]`: 3, `"[[["`: 0, `["\"[["]`: 1, `["\\",[]]`: 2,
	} {
		require.Equal(t, want, expr.JSONDepth([]byte(text)), text)
	}
}
