package expr

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// seeds are texts that use every part of the language.
var seeds = []string{
	"", "$", `\${{ a }} \\${{ 1 }}`, "a ${{ env.HOME }} b", "${{ 1 + 2 * -3 % 4 / 5 - 6 }}", "${{", "${{ }}", "}}",
	`${{ "a\n\u0041\ud83d\ude00${{ 'b' }}" }}`, `${{ 'a\'b' }}`, "${{ [1, {a: 2, 'b': 3, (key): 4,},][i].name }}",
	"${{ secret == 'a' && 'yes' || num('5') < 6 }}", "${{ str(secret) }}${{ !secret }}", "${{ {(secret): [secret]} }}",
	"${{ inputs.list[1] >= [1, 2] }}", "${{ inputs[secret] || {}[secret] }}", "${{ a and b = c ? d }}", "${{ 1e999 }}",
	"${{ (((1))) }}\n",
	"${{ secret + 'a' == 'aa' && [1][0] }}", "${{ [secret < 'b', 1][1] }}", "${{ bool(secret) && inputs || env }}",
}

func FuzzParseAndEval(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	base := scope(f)
	with := func(x any) Scope {
		s := Scope{"secret": secret(f, x)}
		for name, v := range base {
			s[name] = v
		}
		return s
	}
	a, b := with("a"), with("")
	f.Fuzz(func(t *testing.T, text string) {
		tmpl, err := ParseTemplate(text)
		if err != nil {
			requirePlace(t, text, err)
			return
		}
		for _, ref := range tmpl.References() {
			require.True(t, strings.HasPrefix(text[ref.Offset:], ref.Path[0]))
		}
		va, errA := tmpl.Eval(a)
		vb, errB := tmpl.Eval(b)
		for _, err := range []error{errA, errB} {
			if err != nil {
				requirePlace(t, text, err)
			}
		}
		if !strings.Contains(text, opening) {
			require.Equal(t, text, va.Text())
		}
		// Results that are not sensitive must not differ between two secrets.
		if errA == nil && errB == nil && !equal(va, vb) {
			require.True(t, va.Sensitive() && vb.Sensitive(), "%q: %s, %s", text, va.Text(), vb.Text())
		}
	})
}

func requirePlace(t *testing.T, text string, err error) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	require.True(t, ok, "%T", err)
	require.True(t, 0 <= e.Offset && e.Offset <= len(text), "%d", e.Offset)
	require.True(t, e.Line > 0 && e.Column > 0 && e.Message != "")
}

func FuzzParse(f *testing.F) {
	for _, seed := range seeds {
		f.Add(strings.TrimSuffix(strings.TrimPrefix(seed, opening), closing))
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Parse(text)
		if err != nil {
			requirePlace(t, text, err)
			return
		}
		// The same expression, in brackets, is a lone one with the same value.
		tmpl, err := ParseTemplate(opening + text + closing)
		if len(text)+len(closing) > maxExpr {
			return
		}
		require.NoError(t, err)
		require.NotNil(t, tmpl.lone)
		v, err := e.Eval(nil)
		w, errIn := tmpl.Eval(nil)
		require.Equal(t, err == nil, errIn == nil)
		require.True(t, equal(v, w))
	})
}

// The JSON form of a value is an expression with that value, after ${{ is escaped.
func FuzzRenderedValuesAreExpressions(f *testing.F) {
	for _, seed := range []string{
		`null`, `[1,-1e21,2e-7,true]`, `{"a b":"\"\\\n\u0000 ${{ x }} \\${{","":[{}]}`,
		`"\ud83d\ude00\u2028<&>"`, `-0`, `0.1`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v Value
		if json.Unmarshal(data, &v) != nil || v.depth() >= maxDepth-1 {
			return
		}
		rendered, err := v.MarshalJSON()
		require.NoError(t, err)
		require.True(t, utf8.Valid(rendered) && json.Valid(rendered))
		var back Value
		require.NoError(t, json.Unmarshal(rendered, &back))
		require.True(t, equal(v, back))

		source := strings.ReplaceAll(string(rendered), opening, escaped)
		if len(source) > maxExpr {
			return
		}
		e, err := Parse(source)
		require.NoError(t, err)
		got, err := e.Eval(nil)
		require.NoError(t, err)
		require.True(t, equal(v, got), "%s is %s", source, got.Text())
		require.True(t, equal(v, value(t, v.Proto())))
		if v.kind == Number {
			got, err := parseNumber(v.Text())
			require.NoError(t, err)
			require.True(t, equal(v, number(got)))
		}
	})
}
