package expr

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExpressionsHaveTheirValue(t *testing.T) {
	for expression, want := range map[string]any{
		// Literals.
		"007":                            7,
		"1E+2":                           100,
		`"\a\b\f\v\/\u00e4"`:             "\a\b\f\v/ä",
		`"\ud83d\uDE00"`:                 "😀",
		`"$ $x {{ }} \${{ i }} ä"`:       "$ $x {{ }} ${{ i }} ä",
		`"\\${{ i }}"`:                   `\1`,
		`"a${{ "b${{ 'c' + "d" }}" }}e"`: "abcde",
		`"${{ i }}"`:                     "1",
		"\"two\nlines\"":                 "two\nlines",
		`'a\b\\c\'d"\n'`:                 `a\b\c'd"\n`,
		`'}}'`:                           "}}",

		// Names, keys and indexes.
		"inputs . name":                         "x",
		`env["HOME"]`:                           "/home/ci",
		`inputs[key]`:                           "x",
		`env["build-id"]`:                       "b1",
		"inputs.list[1][0]":                     1,
		"inputs.list[i][i]":                     2,
		"inputs.default":                        "d", // reserved words are keys like others
		"steps.build.outputs['two words']":      2,
		"{a: {b: [5]}}.a.b[0]":                  5,
		"([1, 2])[1]":                           2,
		"{for: 1, 'b c': 2, \"d${{i}}\": 3}.d1": 3,
		"[[], {}, [[1,],],]":                    []any{[]any{}, map[string]any{}, []any{[]any{1}}},
		"{a: 1,}":                               map[string]any{"a": 1},

		// Operators.
		"1--1":                           2,
		"- -1":                           1,
		"!!'x'":                          true,
		"!1 == false":                    true,
		"-2 * -3":                        6,
		"2 - 3 - 4":                      -5,
		"12 / 3 / 2":                     2,
		"-7.5 % 2":                       -1.5,
		"7 % -2":                         1,
		"'a' + 'b' + 'c'":                "abc",
		"1 < 2 == true":                  true,
		"0.1 + 0.2":                      0.30000000000000004,
		"-0 == 0":                        true,
		"0 && missing":                   0,
		"'a' || missing":                 "a",
		"0 || '' || [] || {} || null":    nil,
		"1 && [0] && 'last'":             "last",
		"false && true || 'or'":          "or",
		"inputs.none || 'default'":       "default",
		"inputs.on && \"-v\" || \"\"":    "-v",
		"[1, 'a'] != [1, 'b']":           true,
		"[1] == [1, 2]":                  false,
		"null == false":                  false,
		"{a: 1} == {b: 1}":               false,
		"{a: [1]} == {a: [1]}":           true,
		"[] == {}":                       false,
		"'B' < 'a'":                      true,
		"'ä' > 'z'":                      true,
		"[1, 2] < [1, 3]":                true,
		"[1] < [1, 0]":                   true,
		"[1, 0] <= [1]":                  false,
		"['a', 1] > ['a']":               true,
		"{b: 1} < {a: 1, b: 1}":          true,
		"{a: 2} < {b: 1}":                true,
		"{a: 2} >= {a: 1}":               true,
		"null <= null && !(null < null)": true,
		"true > false":                   true,

		// Functions.
		"str('a')":            "a",
		"str([1, 'a'])":       `[1,"a"]`,
		"num(5)":              5,
		"num('-1.5e-3')":      -0.0015,
		"num('+08')":          8,
		"num(vars.PORT)+1":    81,
		"bool(null)":          false,
		"bool([0])":           true,
		"bool('false')":       true,
		"str ( 1 )":           "1",
		"bool(str(num('0')))": true,
	} {
		require.Equal(t, value(t, want), eval(t, scope(t), "${{"+expression+"}}"), "%s", expression)
	}
}

func TestErrorsTellPlaceCauseAndRemedy(t *testing.T) {
	for text, want := range map[string]string{
		// Missing names.
		"${{ env.HOEM }}":               "1:8: env.HOEM was not found; did you mean HOME?",
		"${{ env.home }}":               "1:8: env.home was not found; did you mean HOME?",
		"ä\nö ${{ env.UNDEFINED_KEY }}": "2:10: env.UNDEFINED_KEY was not found",
		"${{ env.build-id }}":           `1:8: env.build was not found; write a key with a hyphen as ["build-id"]`,
		"${{ inptus.name }}":            "1:5: inptus was not found; did you mean inputs?",
		"${{ other }}": "1:5: other was not found; there are env, i, inputs, key, steps, vars; write " +
			"a text in quotes",
		"${{ steps.build.outputs['two'] }}": "1:24: steps.build.outputs.two was not found",
		`${{ env["b c"] }}`:                 `1:8: env["b c"] was not found`,
		"${{ inputs.list[i].x }}": "1:19: inputs.list[...] is an array, which has no keys; read an item by " +
			"its number: [0]",
		"${{ env['A' + 'B'] }}": "1:8: the key of env was not found",
		"${{ inputs.list[2] }}": "1:16: the item of inputs.list was not found; the index is outside of the " +
			"array; the first item is [0]",
		"${{ inputs.list[-1] }}": "1:16: the item of inputs.list was not found; the index is outside of the " +
			"array; the first item is [0]",
		"${{ inputs.list[0.5] }}":  "1:16: the index is not an integer",
		"${{ inputs.list[true] }}": "1:16: the index is a boolean, and must be a number or a string",
		"${{ inputs.name.x }}":     "1:16: inputs.name is a string, which has no keys",
		"${{ inputs.name[0] }}":    "1:16: inputs.name is a string, which has no items",
		"${{ inputs.none.x }}":     "1:16: inputs.none is null, which has no keys",
		"${{ inputs[0] }}": "1:11: inputs is an object, and the index a number; convert the index with " +
			"str()",
		"${{ [1][7] }}": "1:8: the item of the value was not found; the index is outside of the " +
			"array; the first item is [0]",

		// Operands that do not fit.
		`${{ "hello" + 42 }}`: "1:13: + takes two numbers or two strings, not a string and a number; convert " +
			"with num() or str()",
		"${{ null + 1 }}":                "1:10: + takes two numbers or two strings, not null and a number",
		"${{ [] * {} }}":                 "1:8: * takes two numbers, not an array and an object",
		"${{ -'5' }}":                    "1:5: - takes a number, not a string",
		"${{ vars.PORT < 5 }}":           "1:15: <: a string and a number have no order; convert with num() or str()",
		"${{ [1] < [true] }}":            "1:9: <: a number and a boolean have no order",
		"${{ 1 / 0 }}":                   "1:7: /: division by zero",
		"${{ 1 % -0 }}":                  "1:7: %: division by zero",
		"${{ 1e308 * 10 }}":              "1:11: *: the result is too large for a number",
		"${{ {(1): 2} }}":                "1:6: the key is a number, and must be a string",
		"${{ {('a' + 'b'): 1, ab: 2} }}": "1:5: a key is given twice",
		"${{ num('x') }}":                "1:5: num: the text is not a number such as 42, -3.14 or 1.5e3",
		"${{ num('') }}":                 "1:5: num: the text is not a number such as 42, -3.14 or 1.5e3",
		"${{ num(' 1') }}":               "1:5: num: the text is not a number such as 42, -3.14 or 1.5e3",
		"${{ num('0x1') }}":              "1:5: num: the text is not a number such as 42, -3.14 or 1.5e3",
		"${{ num('NaN') }}":              "1:5: num: the text is not a number such as 42, -3.14 or 1.5e3",
		"${{ num('1e999') }}":            "1:5: num: the number is too large",
		"${{ num(true) }}":               "1:5: num takes a string, not a boolean",

		// Syntax.
		"a ${{ job.X":   `1:3: the expression ${{ is not closed; write }} at its end, or \${{ for the text itself`,
		`"${{ job.X"`:   `1:2: the expression ${{ is not closed; write }} at its end, or \${{ for the text itself`,
		"${{ 1 + ":      `1:1: the expression ${{ is not closed; write }} at its end, or \${{ for the text itself`,
		"${{ }}":        `1:5: expected a value, found "}}"`,
		"${{ 1 + }}":    `1:9: expected a value, found "}}"`,
		`${{ "open }}`:  `1:5: the string is not closed; write " at its end`,
		`${{ 'open }}`:  "1:5: the string is not closed; write ' at its end",
		`${{ "a\qb" }}`: `1:7: there is no such escape; for a backslash write \\, or use single quotes`,
		`${{ "\u12" }}`: `1:6: there is no such escape; for a backslash write \\, or use single quotes`,
		`${{ "\ud83d" }}`: `1:6: this is half a character; a character beyond \uFFFF is a pair of escapes, such as ` +
			`\uD83D\uDE00`,
		`${{ "a${{ 1 + }}" }}`:  `1:15: expected a value, found "}}"`,
		`${{ "a${{ 1" }}`:       `1:12: expected }}, found "\""`,
		"${{ a = b }}":          `1:7: expected }}, found "="; equality is ==`,
		"${{ a and b }}":        `1:7: expected }}, found "and"; and is &&`,
		"${{ a | b }}":          `1:7: expected }}, found "|"; or is ||, and there are no filters`,
		"${{ a ? b : c }}":      `1:7: expected }}, found "?"; for cond ? a : b write cond && a || b`,
		"${{ not a }}":          `1:9: expected }}, found "a"`,
		"${{ (1 }}":             `1:8: expected ), found "}}"`,
		"${{ [1 2] }}":          `1:8: expected ], found "2"`,
		"${{ [,] }}":            `1:6: expected a value, found ","`,
		"${{ a[1 }}":            `1:9: expected ], found "}}"`,
		"${{ {a 1} }}":          `1:8: expected :, found "1"`,
		"${{ {1: 2} }}":         `1:6: expected a key, found "1"; a key is a name, a string, or an expression in parentheses`,
		"${{ {null: 2} }}":      `1:6: null is not a string, and a key must be one; write "null"`,
		"${{ {a: 1, 'a': 2} }}": `1:12: the key "a" is given twice`,
		"${{ a.0 }}": `1:7: expected a name after the dot, found "0"; any other key is written ["key"], an ` +
			`index [0]`,
		"${{ true ||( false && false }}": `1:29: expected ), found "}}"`,
		"${{ a || || b }}":               `1:10: expected a value, found "||"`,
		"${{ a == == b }}":               `1:10: expected a value, found "=="`,
		"${{ a 12.5 }}":                  `1:7: expected }}, found "12.5"`,
		"${{ a 'b \\' c' }}":             `1:7: expected }}, found "'b \\' c'"`,
		`${{ a "b c" }}`:                 `1:7: expected }}, found "\"b c\""`,
		"${{ a <= >= b }}":               `1:10: expected a value, found ">="`,
		"${{ [1 && ] }}":                 `1:11: expected a value, found "]"`,
		"${{ a é }}":                     `1:7: expected }}, found "é"`,
		"${{ a ${{ b }}":                 `1:7: expected }}, found "${{"`,

		"${{ .a }}":        `1:5: expected a value, found "."`,
		"${{ 12abc }}":     "1:5: 12abc is not a number; numbers are written 42, 3.14 or 1.5e3",
		"${{ 1e }}":        "1:5: 1e is not a number; numbers are written 42, 3.14 or 1.5e3",
		"${{ 1e999 }}":     "1:5: the number is too large",
		"${{ \xff }}":      "1:5: expected a value, found the byte 0xFF",
		"${{ for }}":       `1:5: for is a reserved word, not a name; for the text itself write "for"`,
		"${{ str }}":       "1:5: str is a function; call it: str(value)",
		"${{ str() }}":     "1:5: str takes one value, not none",
		"${{ str(1, 2) }}": "1:5: str takes one value, not several",
		"${{ Str(1) }}":    "1:5: there is no function Str; did you mean str?",
		"${{ format(1) }}": "1:5: there is no function format; the functions are bool, num, str",
		"${{ string(1) }}": "1:5: there is no function string; the functions are bool, num, str",
		"${{ env.f(1) }}":  "1:10: this cannot be called; the functions are bool, num, str",
	} {
		require.EqualError(t, evalError(t, scope(t), text), want, "%q", text)
	}
}

func TestAnErrorHasItsPlaceInBytesAndInCharacters(t *testing.T) {
	err := evalError(t, scope(t), "ä\nöö ${{ env.X }}")
	require.Equal(t, &Error{Offset: 15, Line: 2, Column: 11, Message: "env.X was not found"}, err)
}

func TestUnreachedOperandsAreNotEvaluated(t *testing.T) {
	require.Equal(t, "a", eval(t, nil, "${{ 'a' || 1 / 0 }}").Text())
	require.Equal(t, "false", eval(t, nil, "${{ false && none.x && none }}").Text())
}

func TestAnErrorInAPartIsTheErrorOfTheExpression(t *testing.T) {
	for _, text := range []string{
		"${{ none }}", "a ${{ none }}", `${{ "a${{ none }}" }}`, "${{ [1, none] }}", "${{ {a: none} }}", "${{ {(none): 1} }}",
		"${{ str(none) }}", "${{ none.a }}", "${{ env[none] }}", "${{ -none }}", "${{ !none }}", "${{ none + 1 }}",
		"${{ 1 + none }}", "${{ none && 1 }}", "${{ 1 && none }}", "${{ 0 || none }}", "${{ 1 < none }}",
		"${{ 'a' }}${{ none }}",
	} {
		err := evalError(t, Scope{"env": value(t, map[string]any{})}, text)
		require.Equal(t, "none was not found", err.Message, "%s", text)
		require.Equal(t, strings.Index(text, "none"), err.Offset, "%s", text)
	}
}

func TestErrorsStayShort(t *testing.T) {
	long := strings.Repeat("n", 10000)
	s := Scope{"o": value(t, map[string]any{"a" + long: 1}), long + "m": value(t, 1)}
	for _, text := range []string{
		"${{ " + long + " }}", "${{ " + long + "(1) }}", "${{ o." + long + " }}", "${{ o['" + long + "'] }}", "${{ 1 " +
			long + " }}",
		"${{ o" + strings.Repeat(".a", 10000) + " }}", "${{ {o: " + strings.Repeat("{a: ", 90) + "1" +
			strings.Repeat("}", 90) + "}" + strings.Repeat(".b", 10000) + " }}",
	} {
		require.Less(t, len(evalError(t, s, text).Error()), 300, "%.20s", text)
	}
	chain := value(t, 1)
	for range maxDepth - 1 {
		chain = value(t, map[string]Value{"aaaa": chain})
	}
	err := evalError(t, Scope{"o": chain}, "${{ o"+strings.Repeat(".aaaa", maxDepth)+" }}")
	require.Equal(t, "the value is a number, which has no keys", err.Message)
}
