package expr

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValueComputedFromASensitiveOneIsSensitive(t *testing.T) {
	for text, want := range map[string]bool{
		"${{ vars.TOKEN }}":                       true,
		"x ${{ vars.TOKEN }} y":                   true,
		"x ${{ vars.PORT }} y":                    false,
		`${{ "x${{ vars.TOKEN }}" }}`:             true,
		"${{ 'echo ' + vars.TOKEN }}":             true,
		"${{ vars.TOKEN + '' }}":                  true,
		"${{ vars.TOKEN == 'a' }}":                true,
		"${{ 'a' < vars.TOKEN }}":                 true,
		"${{ !vars.TOKEN }}":                      true,
		"${{ bool(vars.TOKEN) }}":                 true,
		"${{ str(vars.TOKEN) }}":                  true,
		"${{ num(secrets.pin) }}":                 true,
		"${{ -secrets.n }}":                       true,
		"${{ secrets.n * 0 }}":                    true,
		"${{ vars.TOKEN && 'a' }}":                true,
		"${{ vars.TOKEN || 'a' }}":                true,
		"${{ secrets.none || 'a' }}":              true,
		"${{ vars.TOKEN == 'a' && 'b' || 'c' }}":  true,
		"${{ vars.PORT && 'a' }}":                 false,
		"${{ 'a' || vars.TOKEN }}":                false, // the token was not read
		"${{ vars.PORT && vars.TOKEN }}":          true,
		"${{ [1, vars.TOKEN] }}":                  true,
		"${{ [1, vars.TOKEN][0] }}":               false,
		"${{ [1, vars.TOKEN][1] }}":               true,
		"${{ str([1, vars.TOKEN]) }}":             true,
		"${{ [1, 2][secrets.n] }}":                true,
		"${{ inputs[secrets.key] }}":              true,
		"${{ {a: vars.TOKEN}.a }}":                true,
		"${{ {a: vars.TOKEN, b: 1}.b }}":          false,
		"${{ {(vars.TOKEN): 1} }}":                true,
		"${{ {(vars.TOKEN): 1, b: 2}.b }}":        true,
		"${{ vars }}":                             true, // the whole object has the token
		"${{ vars.ALL }}":                         true,
		"${{ vars.ALL.L }}":                       false,
		"${{ vars.ALL.K }}":                       true,
		"${{ secrets }}":                          true,
		"${{ secrets.list[0].x }}":                true,
		"${{ vars.ALL == inputs }}":               true,
		"${{ [vars.TOKEN] == [1] || vars.PORT }}": true,
	} {
		s := scope(t)
		s["secrets"] = secret(t,
			map[string]any{"pin": "1234", "n": 1, "none": nil, "key": "name", "list": []any{map[string]any{"x": 1}}})
		require.Equal(t, want, eval(t, s, text).Sensitive(), "%s", text)
	}
}

func TestErrorsNeverQuoteValues(t *testing.T) {
	s := scope(t)
	s["o"] = secret(t, map[string]any{"s3cret": "s3cret"})
	for _, text := range []string{
		"${{ vars.TOKEN.x }}", "${{ inputs[vars.TOKEN] }}", "${{ num(vars.TOKEN) }}", "${{ vars.TOKEN + 1 }}",
		"${{ -vars.TOKEN }}", "${{ vars.TOKEN < 1 }}", "${{ {(vars.TOKEN): 1, (vars.TOKEN): 2} }}", "${{ o.s3cres }}",
		"${{ o.s3cre }}", "${{ o[0] }}", "${{ vars.TOKEN[1] }}", "${{ [][vars] }}",
	} {
		err := evalError(t, s, text)
		require.NotContains(t, err.Error(), "s3cret", "%s", text)
	}
}

func TestASensitiveValueIsNotPrinted(t *testing.T) {
	for _, v := range []Value{
		secret(t, "s3cret"), secret(t, []string{"s3cret"}),
		value(t, map[string]Value{"a": secret(t, "s3cret")}),
	} {
		require.Equal(t, "[MASKED] [MASKED] [MASKED]", fmt.Sprintf("%v %+v %s", v, v, v))
		require.Contains(t, v.Text(), "s3cret")
	}
	require.Equal(t, "open", fmt.Sprint(value(t, "open")))
}

func TestMarkSensitiveDoesNotChangeTheOriginal(t *testing.T) {
	v := value(t, []any{"a"})
	marked := v.MarkSensitive()
	require.True(t, marked.Sensitive())
	require.True(t, marked.Index(0).Sensitive())
	require.False(t, v.Sensitive())
	require.False(t, v.Index(0).Sensitive())
}

func TestAComputedValueIsDeclaredSensitiveIfOneOfItsSourcesIs(t *testing.T) {
	s := Scope{"masked": value(t, "m4sked").MarkMasked(), "declared": secret(t, "s3cret"), "open": value(t, "open")}
	for text, want := range map[string]bool{
		"${{ masked }}":                        false,
		"x ${{ masked }} ${{ open }}":          false,
		"x ${{ masked }} ${{ declared }}":      true,
		"${{ [masked, declared] }}":            true,
		"${{ [masked, declared][0] }}":         false,
		"${{ masked + declared }}":             true,
		"${{ declared == 'a' && masked }}":     true,
		"${{ masked == 'a' && open || open }}": false,
		"${{ str(masked) }}":                   false,
	} {
		v := eval(t, s, text)
		require.True(t, v.Sensitive(), "%s", text)
		require.Equal(t, want, v.Declared(), "%s", text)
	}
}
