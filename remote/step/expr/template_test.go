package expr

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextAroundExpressionsIsUnchanged(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"$ $$ $X ${X} {{ }} $[[ inputs.x ]]": "$ $$ $X ${X} {{ }} $[[ inputs.x ]]",
		`back\slash \n \" \$ \{`:             `back\slash \n \" \$ \{`,
		`{"a":{"b":1}} ${{ i }}}}`:           `{"a":{"b":1}} 1}}`,
		`\${{ i }} and ${{ i }}`:             `${{ i }} and 1`,
		`\\${{ i }}`:                         `\${{ i }}`,
		`${{ i }}\${{${{ i }}`:               `1${{1`,
		"ä${{ 'ö' }}ü":                       "äöü",
		"${{ env.TRICK }}!":                  "${{ env.HOME }}!", // values are not read again
		"\xff${{ i }}":                       "\xff1",
	} {
		require.Equal(t, want, eval(t, scope(t), text).Text(), "%q", text)
	}
}

func TestValuesAreRenderedInTexts(t *testing.T) {
	for expression, want := range map[string]string{
		"null":                               "<null>",
		"true":                               "true",
		"1e21":                               "1000000000000000000000",
		"9007199254740992":                   "9007199254740992",
		"-0":                                 "0",
		"0.1":                                "0.1",
		"1e-7":                               "0.0000001",
		"56.990":                             "56.99",
		"10 / 3":                             "3.3333333333333335",
		`"a\tb"`:                             "a\tb",
		"[]":                                 "[]",
		"{}":                                 "{}",
		`{b: [1, null, -0], a: "<&>\u2028"}`: "{\"a\":\"<&>\u2028\",\"b\":[1,null,0]}",
		`["\"\\\n\u0001\u007f"]`:             "[\"\\\"\\\\\\n\\u0001\x7f\"]",
		"[1e21, 1e-7]":                       "[1e+21,1e-7]",
	} {
		require.Equal(t, "<"+want+">", eval(t, nil, "<${{ "+expression+" }}>").Text(), "%s", expression)
		require.Equal(t, want, eval(t, nil, "${{ str("+expression+") }}").Text(), "%s", expression)
		require.Equal(t, want, eval(t, nil, `${{ "${{ `+expression+` }}" }}`).Text(), "%s", expression)
	}
}

func TestOnlyALoneExpressionKeepsItsType(t *testing.T) {
	for text, want := range map[string]struct {
		lone  bool
		value any
	}{
		"${{ 42 }}":         {true, 42},
		"${{42}}\n":         {true, 42}, // the end of a YAML block
		"${{ 'x' }}\n":      {true, "x\n"},
		"${{ [1] }}\n":      {true, []any{1}},
		"${{ 42 }} ":        {false, "42 "},
		" ${{ 42 }}":        {false, " 42"},
		"${{ 42 }}\n\n":     {false, "42\n\n"},
		"\n${{ 42 }}":       {false, "\n42"},
		"${{ 4 }}${{ 2 }}":  {false, "42"},
		`4${{ "\n" }}`:      {false, "4\n"},
		`${{ 4 }}${{"\n"}}`: {false, "4\n"},
		`\${{ 42 }}`:        {false, "${{ 42 }}"},
		"":                  {false, ""},
	} {
		tmpl, err := ParseTemplate(text)
		require.NoError(t, err)
		require.Equal(t, want.lone, tmpl.lone != nil, "%q", text)
		require.Equal(t, value(t, want.value), eval(t, nil, text), "%q", text)
	}
}

func TestReferencesHaveTheNamesAndTheirPlaces(t *testing.T) {
	for text, want := range map[string][]string{
		"plain ${{ 1 + str(2) }}":                   nil,
		"${{ env }}":                                {"4 env"},
		"a ${{ env.A }} ${{ b.c['d'] }}":            {"6 env A", "19 b c d"},
		"${{ steps.a.outputs.list[0].x }}":          {"4 steps a outputs list"},
		"${{ a[b.c].d }}":                           {"4 a", "6 b c"},
		`${{ a["x${{ b }}"] }}`:                     {"4 a", "12 b"},
		"${{ (a.b).c + (d).e }}":                    {"5 a b", "15 d e"},
		"${{ true || x.y }}":                        {"12 x y"},
		"${{ {a: b, (c): 'd', \"e${{ f }}\": 1} }}": {"8 b", "12 c", "27 f"},
		`${{ 'a ${{ b }}' + "\${{ c }}" }}`:         nil,
		"\\${{ a }}":                                nil,
		"${{ f.for.null }}":                         {"4 f for null"},
	} {
		tmpl, err := ParseTemplate(text)
		require.NoError(t, err, "%q", text)
		require.Equal(t, want, paths(tmpl.References()), "%q", text)
	}
	e, err := Parse(" a.b")
	require.NoError(t, err)
	require.Equal(t, []string{"1 a b"}, paths(e.References()))
}

func paths(refs []Reference) []string {
	var all []string
	for _, r := range refs {
		all = append(all, strings.Join(append([]string{strconv.Itoa(r.Offset)}, r.Path...), " "))
	}
	return all
}

func TestParseReadsTheInsideOfTheBrackets(t *testing.T) {
	e, err := Parse(" inputs.count\n+ 1 ")
	require.NoError(t, err)
	v, err := e.Eval(scope(t))
	require.NoError(t, err)
	require.Equal(t, value(t, 4), v)

	for text, want := range map[string]string{
		"":           "1:1: expected a value, found the end of the expression",
		" ":          "1:2: expected a value, found the end of the expression",
		"1 }}":       `1:3: expected the end, found "}}"`,
		"${{ 1 }}":   `1:1: expected a value, found "${{"`,
		"a.b\n  c.d": `2:3: expected the end, found "c"`,
	} {
		_, err := Parse(text)
		require.EqualError(t, err, want)
	}
	e, err = Parse("1\n + ä")
	require.EqualError(t, err, `2:4: expected a value, found "ä"`)
	require.Nil(t, e)
	e, err = Parse("'ä' + 1")
	require.NoError(t, err)
	_, err = e.Eval(nil)
	require.EqualError(t, err,
		"1:5: + takes two numbers or two strings, not a string and a number; convert with num() or str()")
}
