package expression

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/racefree"
)

// scope has a context and a function.
var scope = Scope{
	Values: map[string]Value{"env": Texts(map[string]string{"A": "x", "B": "y"})},
	Functions: map[string]Function{
		"always": {Call: func([]Value) (Value, error) { return Boolean(true), nil }},
		"fails":  {Min: 1, Max: 1, Call: func([]Value) (Value, error) { return Value{}, errors.New("its own error") }},
	},
}

func TestTemplateKeepsTheTypeOfAnExpressionThatStandsAlone(t *testing.T) {
	for text, want := range map[string]any{
		"":                            "",
		"plain }} text":               "plain }} text",
		"${{ 1 == 1 }}":               true,
		"${{ 0.5 }}":                  0.5,
		"a ${{ 1 == 1 }} b ${{ 2 }}":  "a true b 2",
		"${{ env.a }}${{ ENV.B }}":    "xy",
		"${{ 'a }} b' }}":             "a }} b",
		"${{ '}}''${{' }}!":           "}}'${{!",
		"${{ Always() && env.none }}": nil,
		"${{ }}":                      nil,
		"${{ env }}":                  map[string]any{"A": "x", "B": "y"},
	} {
		v, err := Template(text, scope)
		require.NoError(t, err, text)
		require.Equal(t, want, decoded(t, v), text)
	}
}

// decoded returns a value as encoding/json decodes it.
func decoded(t *testing.T, v Value) (x any) {
	text, err := Evaluate("toJSON(v)", Scope{Values: map[string]Value{"v": v}})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(text.Text()), &x))
	return x
}

func TestErrorsTellWhereInTheExpressionTheyAre(t *testing.T) {
	for text, want := range map[string]string{
		"echo ${{ nope.x }}":      "Located at position 1 within expression: nope.x",
		"${{ 1 }} ${{ 1 +2 }}":    "Located at position 3 within expression: 1 +2",
		"${{ always(1) }}":        "Located at position 1 within expression: always(1)",
		"x ${{ env.A":             "The expression is not closed.",
		"${{ join() }}":           "Located at position 1 within expression: join()",
		"${{ case(true, 1) }}":    "Located at position 1 within expression: case(true, 1)",
		"${{ (1 }}":               "Located at position 2 within expression: (1",
		"${{ format('a', ) }}":    "Located at position 13 within expression: format('a', )",
		"${{ env.A == 'a' && }}z": "Located at position 14 within expression: env.A == 'a' &&",
	} {
		_, err := Template(text, scope)
		require.ErrorContains(t, err, want, text)
	}
	_, err := Template("${{ fails(1) }}", scope)
	require.EqualError(t, err, "its own error")
}

// The whole token is named, at its place, as GitHub's own parser does. Of an expression that ends too early that is the
// last token: the error named its last letter, at the place of that.
//
//stepmux:faults users | A parse error names a part of a token, or its place in bytes
//stepmux:with remote/step/expr.TestErrorsTellPlaceCauseAndRemedy
//stepmux:with internal/standalone/gitlabci.TestConditionsAreThoseOfGitLab
func TestMistakesNameTheWholeToken(t *testing.T) {
	for text, want := range map[string]string{
		"true ||( false && false": "Unexpected end of expression: 'false' 19",
		"(":                       "Unexpected end of expression: '(' 1",
		"true ||":                 "Unexpected end of expression: '||' 6",
		"'a' >= ":                 "Unexpected end of expression: '>=' 5",
		"! ":                      "Unexpected end of expression: '!' 1",
		"env.":                    "Unexpected end of expression: '.' 4",
		"env[":                    "Unexpected end of expression: '[' 4",
		"env['a b'":               "Unexpected end of expression: ''a b'' 5",
		"env[*":                   "Unexpected end of expression: '*' 5",
		"format(":                 "Unexpected end of expression: '(' 7",
		"format('it''s'":          "Unexpected end of expression: ''it''s'' 8",
		"format('a', ":            "Unexpected end of expression: ',' 11",
		"'a' 'b c'":               "Unexpected symbol: ''b c'' 5",
		"12 3.4":                  "Unexpected symbol: '3.4' 4",
		"env always":              "Unexpected symbol: 'always' 5",
		"env.A == 'long text":     "Unexpected symbol: ''long text' 10",
		"0x 1":                    "Unexpected symbol: '0x' 1",
		"1.2.3":                   "Unexpected symbol: '1.2.3' 1",
		"env.A =~ 'x'":            "Unexpected symbol: '=~' 7",
		"env.A & 1":               "Unexpected symbol: '&' 7",
		"1 === 2":                 "Unexpected symbol: '=' 5",
		"1 <> 2":                  "Unexpected symbol: '>' 4",
		"env..A":                  "Unexpected symbol: '.A' 5",
		"'a'.b":                   "Unexpected symbol: '.b' 4",
		"null.x":                  "Unexpected symbol: '.x' 5",
		"env.1":                   "Unexpected symbol: '1' 5",
		"env.-a":                  "Unexpected symbol: '-a' 5",
		"(1))":                    "Unexpected symbol: ')' 4",
		"true && && false":        "Unexpected symbol: '&&' 9",
		"!= 2":                    "Unexpected symbol: '!=' 1",
		"true ? 1 : 2":            "Unexpected symbol: '?' 6",
		"\"a b\"":                 "Unexpected symbol: '\"a' 1",
		"$x":                      "Unexpected symbol: '$x' 1",
		"'é' nöt":                 "Unexpected symbol: 'nöt' 5",
		"'\U0001f600' x":          "Unexpected symbol: 'x' 6",
		"env.A ||\n  foo":         "Unrecognized named-value: 'foo' 12",
		"'é' == foo(1)":           "Unrecognized function: 'foo' 8",
		"1 == contains('a')":      "Too few parameters supplied: 'contains' 6",
		"contains('a', 'b', 1)":   "Too many parameters supplied: 'contains' 1",
	} {
		_, err := Evaluate(text, scope)
		i := strings.LastIndex(want, " ")
		require.EqualError(t, err, fmt.Sprintf("%s. Located at position %s within expression: %s", want[:i], want[i+1:],
			strings.TrimSpace(text)))
	}
}

func TestLimitsHold(t *testing.T) {
	for what, text := range map[string]string{
		"Exceeded max expression length 21000":            strings.Repeat("1", maxLength+1),
		"Exceeded max expression depth 50":                strings.Repeat("(", 20_000),
		"Error parsing fromJson: it is nested deeper":     "fromJSON('" + strings.Repeat("[", 10_000) + "')",
		"Error parsing fromJson: the text is empty or en": "fromJSON('')",
		"Error parsing fromJson: something follows":       "fromJSON('1 2')",
	} {
		_, err := Evaluate(text, scope)
		require.ErrorContains(t, err, what)
	}
	_, err := Evaluate(strings.Repeat("!", 20_000)+"1", scope)
	require.ErrorContains(t, err, "depth")
	_, err = Evaluate("env"+strings.Repeat(".a", 60), scope)
	require.ErrorContains(t, err, "depth")

	// Each level has the text of the one below it ten times.
	text := "'0123456789'"
	for range 8 {
		text = "format('{0}{0}{0}{0}{0}{0}{0}{0}{0}{0}', " + text + ")"
	}
	_, err = Evaluate(text, scope)
	require.ErrorContains(t, err, "maximum allowed memory")
}

func TestCaseComputesOnlyItsChoice(t *testing.T) {
	v, err := Evaluate("case(false, fails(1), true, 'yes', fails(2))", scope)
	require.NoError(t, err)
	require.Equal(t, "yes", v.Text())
	_, err = Evaluate("false || fails(1)", scope)
	require.EqualError(t, err, "its own error")
	v, err = Evaluate("false && fails(1)", scope)
	require.NoError(t, err)
	require.Equal(t, Boolean(false), v)
}

func TestCallsFindsFunctionsAnywhere(t *testing.T) {
	require.False(t, Calls("${{ env.A == 'x' && (format('{0}', [1]) || !always()) }}", scope, "always"), "a mistake")
	for _, text := range []string{
		"${{ env.A == 'always()' && env[format('{0}', !always())] }}", "a ${{ env.A }} b ${{ always() }} c",
	} {
		require.True(t, Calls(text, scope, "success", "always"))
		require.False(t, Calls(text, scope, "success", "failure"))
	}
}

func TestPathsNameThePropertiesOfAContext(t *testing.T) {
	s := Scope{Values: map[string]Value{"needs": {}, "github": {}}}
	for text, want := range map[string][][]string{
		"x ${{ needs.a.outputs.b == github.ref && needs['A-1'].result }}": {{"a", "outputs", "b"}, {"A-1", "result"}},
		"${{ contains(needs.*.result, 'failure') || !needs.b.result }}":   {{}, {"b", "result"}},
		"${{ needs[needs.a.result].outputs.x }}":                          {{}, {"a", "result"}},
		"${{ toJSON(needs) }} ${{ github.needs.a }}":                      {{}},
		"${{ needs. }}": nil,
	} {
		var got [][]string
		for _, path := range Paths(text, s, "needs") {
			got = append(got, append([]string{}, path...))
		}
		require.Equal(t, want, got, text)
	}
}

func TestAnyIsTheReverseOfNew(t *testing.T) {
	x := map[string]any{"a": []any{1.0, "b", nil, true}, "c": map[string]any{"d": []any{}}}
	require.Equal(t, x, New(x).Any())
	v := Ordered([]string{"b", "a"}, map[string]Value{"a": Number(1), "b": String("x")})
	text, err := Evaluate("toJSON(v)", Scope{Values: map[string]Value{"v": v}})
	require.NoError(t, err)
	require.JSONEq(t, `{"b":"x","a":1}`, text.Text())
	require.Less(t, strings.Index(text.Text(), "b"), strings.Index(text.Text(), "a"))
}

func TestNumbersArePrintedAsDotNETPrintsThem(t *testing.T) {
	for text, want := range map[string]string{
		"0.1": "0.1", "1e14": "100000000000000", "123456789012345678": "1.23456789012346E+17", "1e15": "1E+15",
		"0.0001": "0.0001", "0.00001": "1E-05", "-1.5e-7": "-1.5E-07", "1e300": "1E+300", "-0": "0", "1e999": "Infinity",
		"0xFFFFFFFF": "-1", "3.": "3",
	} {
		v, err := Evaluate(text, scope)
		require.NoError(t, err, text)
		require.Equal(t, want, v.Text(), text)
	}
}

// Symptom: the comparison of a list of 300,000 texts with a text of 8 MiB took the step runner more than an hour, in
// which the job could not be stopped.
func TestTimeForComparisonsIsBounded(t *testing.T) {
	racefree.Only(t)
	s := Scope{Values: map[string]Value{
		"long":    String(strings.Repeat("x", 8<<20)),
		"list":    Array(make([]Value, 1000)...),
		"objects": {&array{filtered: true, items: make([]Value, 1000)}},
	}}
	for _, text := range []string{
		"contains(list, long)", "objects[long]",
		"false" + strings.Repeat(" || 1 > long", 20), "false" + strings.Repeat(" || startsWith(long, 'y')", 20),
		"false" + strings.Repeat(" || contains(long, 'y')", 20), "null" + strings.Repeat(" || list[long]", 20),
	} {
		_, err := Evaluate(text, s)
		require.ErrorContains(t, err, "The expressions compare texts of more than 134217728 bytes in all", text)
	}
	_, err := Template(strings.Repeat("${{ contains(long, 'y') }}", 15), s)
	require.NoError(t, err)
	_, err = Template(strings.Repeat("${{ contains(long, 'y') }}", 17), s)
	require.ErrorContains(t, err, "The expressions compare texts")
}

func TestMemoryOfAllExpressionsInATextIsBounded(t *testing.T) {
	racefree.Only(t)
	s := Scope{Values: map[string]Value{"v": String(strings.Repeat("x", 1<<20))}}
	one := "${{ contains(toJSON(v), 'y') }}"
	_, err := Template(strings.Repeat(one, 90), s)
	require.NoError(t, err)
	_, err = Template(strings.Repeat(one, 110), s)
	require.ErrorContains(t, err, "maximum allowed memory size")
}

// FuzzEvaluate finds panics, and values that toJSON and fromJSON do not carry.
func FuzzEvaluate(f *testing.F) {
	for _, seed := range []string{
		"env.A == 'x'", "format('{0}{{', 1)", "fromJSON('[1,{\"a\":null}]').*.a", "!(.5 < 0x1F) || case(true,1,2)",
		"join(env.*, '''')", "contains(env, 'x') && always()", "-Infinity != NaN", "env[*]['a'][0]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := Evaluate(text, scope)
		if err != nil {
			return
		}
		if strings.Contains(v.Text(), "Infinity") || v.Kind() == "Number" && v.Text() == "NaN" {
			return // JSON has no such numbers
		}
		s := Scope{Values: map[string]Value{"v": v}}
		again, err := Evaluate("toJSON(fromJSON(toJSON(v)))", s)
		if err != nil {
			return // too large, or an array with NaN
		}
		once, err := Evaluate("toJSON(v)", s)
		require.NoError(t, err)
		require.Equal(t, once.Text(), again.Text())
	})
}
