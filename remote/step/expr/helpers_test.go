package expr

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func value(t testing.TB, x any) Value {
	t.Helper()
	v, err := New(x)
	require.NoError(t, err)
	return v
}

func secret(t testing.TB, x any) Value {
	t.Helper()
	return value(t, x).MarkSensitive()
}

// scope has the names of the tests.
func scope(t testing.TB) Scope {
	t.Helper()
	return Scope{
		"env": value(t, map[string]any{"HOME": "/home/ci", "EMPTY": "", "TRICK": "${{ env.HOME }}", "build-id": "b1"}),
		"inputs": value(t,
			map[string]any{"name": "x", "count": 3, "on": true, "none": nil, "list": []any{"a", []any{1, 2}}, "default": "d"}),
		"steps": value(t, map[string]any{"build": map[string]any{"outputs": map[string]any{"two words": 2}}}),
		"vars": value(t, map[string]any{
			"TOKEN": secret(t, "s3cret"), "PORT": "80",
			"ALL": map[string]any{"K": secret(t, "s3cret"), "L": "l"},
		}),
		"i":   value(t, 1),
		"key": value(t, "name"),
	}
}

// eval evaluates a valid text.
func eval(t testing.TB, s Scope, text string) Value {
	t.Helper()
	tmpl, err := ParseTemplate(text)
	require.NoError(t, err, "%q", text)
	v, err := tmpl.Eval(s)
	require.NoError(t, err, "%q", text)
	return v
}

// evalError returns the error of the syntax or the evaluation of a text.
func evalError(t testing.TB, s Scope, text string) *Error {
	t.Helper()
	tmpl, err := ParseTemplate(text)
	if err == nil {
		var v Value
		v, err = tmpl.Eval(s)
		require.Error(t, err, "%q is %s", text, v.Text())
	}
	found, ok := errors.AsType[*Error](err)
	require.True(t, ok, "%q: %T", text, err)
	return found
}
