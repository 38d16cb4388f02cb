package yamltree

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

// read reads a text as a list of mappings of texts, and returns the first mistake.
func read(text string, rules Rules) error {
	rules.MaxCost = 4096
	t, err := Load("t", []byte(text), 1<<20)
	if err != nil {
		return err
	}
	r := &Reader{Text: t, Rules: rules}
	for _, item := range r.List(t.Docs[0], "the list") {
		for _, e := range r.Known(r.Mapping(item, "an item"), "an item", []string{"a", "name", "<<", "~"}) {
			r.String(e.Value, e.Key)
		}
	}
	return r.Err
}

// Each language had a reader of its own, with other words for the same mistake and other bounds.
func TestEachMistakeHasItsTextAndPlace(t *testing.T) {
	for text, want := range map[string]string{
		"- {a: b}\n- {name: c}":          "",
		"- &x {a: b}\n- *x":              "",
		"- {a: !!str 1}":                 "",
		"a: b":                           "t:1:1: the list must be a list, not a mapping",
		"- a":                            "t:1:3: an item must be a mapping (key: value), not a text",
		"-":                              `t:1:2: an item must be a mapping (key: value), not nothing; for an empty`,
		"- {a: [b]}":                     "t:1:7: a must be a text, not a list",
		"- {a: 1}":                       "t:1:7: a must be a text, not a number; put it in quotes",
		"- {a: }":                        `t:1:7: a must be a text, not nothing; for an empty text write ""`,
		"- {[a]: b}":                     "t:1:4: a key must be a text, not a list",
		"- {a: b, a: c}":                 `t:1:10: the key "a" is given twice`,
		"- {nam: b}":                     `t:1:4: unknown key "nam", did you mean "name"?`,
		"- {xyz: b}":                     `t:1:4: unknown key "xyz"; an item has a, name, <<, ~`,
		"- {curl -u a:b: c}":             "t:1:4: unknown key; an item has a, name, <<, ~",
		"- {<<: b}":                      "t:1:4: merge keys (<<) are not supported; write the keys out",
		"- {a: !secret b}":               "t:1:7: the tag is not supported; remove the word that begins with !",
		"- {a: *x}":                      "t:1:7: not valid YAML: the alias has no anchor before it",
		"- [":                            "t:2:1: not valid YAML: did not find expected node content while",
		"- \xff":                         "t:1:3: the text is not valid UTF-8",
		"- a\x01":                        "t:1:4: the text holds the control character U+0001",
		strings.Repeat("[", MaxDepth+36): "not valid YAML",
		strings.Repeat("x", 1<<20+1):     "t: the text has more than 1 MiB",
		"- &x {a: " + strings.Repeat("b", 1000) + "}\n" + strings.Repeat("- *x\n", 4): "t:1:10: aliases and other " +
			"repeated parts make this text too large; write it shorter",
	} {
		requireMistake(t, read(text, Rules{}), want, text)
	}
}

func requireMistake(t *testing.T, err error, want, text string) {
	t.Helper()
	if want == "" {
		require.NoError(t, err, "%.80q", text)
		return
	}
	require.ErrorContains(t, err, want, "%.80q", text)
	require.IsType(t, &Error{}, err)
}

func TestRulesOfALanguageAllowMore(t *testing.T) {
	const aliases = "t:1:3: anchors and aliases are not supported here; write it out"
	for _, c := range []struct {
		text  string
		rules Rules
		want  string
	}{
		{"- {a: 1, name: true}", Rules{Unquoted: true}, ""},
		{"- {a: }", Rules{Unquoted: true}, "t:1:7: a must be a text, not nothing"},
		{"- {~: , a: b}\n- \n", Rules{Unquoted: true, Nulls: true}, ""},
		{"- {<<: b}", Rules{PlainMerge: true, Unquoted: true}, ""},
		{"- {a: !secret b}", Rules{Unquoted: true, Tag: func(*yaml.Node) bool { return true }}, ""},
		{"- &x {a: b}", Rules{NoAliases: "write it out"}, aliases},
		{"- &x {a: b}\n- *x", Rules{NoAliases: "write it out"}, aliases},
	} {
		requireMistake(t, read(c.text, c.rules), c.want, c.text)
	}
}

func TestAnAliasThatHoldsItselfEnds(t *testing.T) {
	text, err := Load("t", []byte("&x [*x]"), 100)
	require.NoError(t, err)
	r := &Reader{Text: text, Rules: Rules{MaxCost: 1 << 20}}
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		defer r.Leave()
		r.Enter(n)
		for _, item := range r.List(n, "x") {
			walk(item)
		}
	}
	walk(text.Docs[0])
	require.EqualError(t, r.Err, "t:1:5: the text is nested deeper than 64; does an alias hold itself?")
}

func TestALongListOfKeysIsNotPartOfAnError(t *testing.T) {
	long := strings.Split(strings.Repeat("key ", 21), " ")
	require.Equal(t, `unknown key "xyz"; a job has no such key`, Unknown("xyz", "a job", long, ""))
	require.Equal(t, `unknown key "xyz"; ask`, Unknown("xyz", "a job", long, "; ask"))
}

// Symptom: a .gitlab-ci.yml with variables: {V: -, W: a} was refused. The values are those of psych, GitLab's reader.
func TestADashBeforeACommaOrABracketIsAText(t *testing.T) {
	for text, want := range map[string]any{
		"{V: -, W: a}":              map[string]any{"V": "-", "W": "a"},
		"[-]":                       []any{"-"},
		"[-, a, --]":                []any{"-", "a", "--"},
		"{a: [b-, 'c-,', \"d-]\"]}": map[string]any{"a": []any{"b-", "c-,", "d-]"}},
		"a: {b: -}\nc: x-, y\nd: |\n  -, -}\n": map[string]any{
			"a": map[string]any{"b": "-"}, "c": "x-, y", "d": "-, -}\n",
		},
	} {
		read, err := Load("t", []byte(text), 1<<20)
		require.NoError(t, err, text)
		var got any
		require.NoError(t, read.Docs[0].Decode(&got))
		require.Equal(t, want, got, text)
	}
	for text, want := range map[string]string{
		"[-, a]\n--- {a: -}\n---\n- @": "t:4:3: not valid YAML: found character that cannot start any token",
		"[é, -, *x]":                   "t:1:8: not valid YAML: the alias has no anchor before it",
		"[- , a]":                      "t:1:2: not valid YAML",
		"[-, \ue000]":                  "t:1:2: not valid YAML",
	} {
		_, err := Load("t", []byte(text), 1<<20)
		requireMistake(t, err, want, text)
	}
}
