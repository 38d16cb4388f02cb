package gitlabci

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The expected results are those of GitLab's own tests and documents, also where they surprise.
func TestConditionsAreThoseOfGitLab(t *testing.T) {
	vars := map[string]string{
		"A": "a", "EMPTY": "", "BLANK": " ", "BRANCH": "feature/x-1", "RE": "/^feat/", "REI": "/^FEAT/i", "NO_RE": "xax",
		"V": "v1.2", "TEXT": "one\ntwo", "SLASH": "a/b",
	}
	value := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	for text, want := range map[string]bool{
		"$A": true, "$EMPTY": false, "$BLANK": false, "$GONE": false, `"text"`: true, `""`: false, "null": false,
		`$A == "a"`: true, `$A == 'a'`: true, `"a" == $A`: true, `$A == "b"`: false, `$A != "b"`: true, `$A=="a"`: true,
		"$GONE == null": true, "$EMPTY == null": false, `$EMPTY == ""`: true, `$GONE == ""`: false, "$A != null": true,
		"$A == $A": true, "$A == $BRANCH": false,
		"$BRANCH =~ /^feature/": true, "$BRANCH =~ /^main$/": false, "$BRANCH !~ /^main$/": true, "$GONE =~ /x/": false,
		"$BRANCH =~ /FEATURE/i": true, "$BRANCH =~ /FEATURE/": false, `$SLASH =~ /^a\/b$/`: true, "$GONE !~ /x/": true,
		"$TEXT =~ /^two/": false, "$TEXT =~ /^two/m": true, "$TEXT =~ /one.two/": false, "$TEXT =~ /one.two/s": true,
		"$BRANCH =~ $RE": true, "$BRANCH =~ $REI": true, "$A =~ $RE": false, "$A =~ $NO_RE": true, "$A =~ $GONE": false,
		"$A !~ $GONE": true, "$A =~ null": false,
		`$A && $BRANCH`: true, "$A && $GONE": false, "$GONE || $A": true, "$GONE || $EMPTY": false, "$EMPTY && $A": true,

		// To GitLab, an empty text is a result.
		"$EMPTY || $A": false,

		// && comes before ||.
		`$GONE && $GONE || $A`: true, `$A || $GONE && $GONE`: true, `($A || $GONE) && $GONE`: false,
		`(($A == "a") && ($V =~ /^v\d/))`: true, `$A == "b" || $V =~ /^v1\.[0-9]+$/ && $BRANCH != "main"`: true,

		"$A\n && $BRANCH": true, `"a b" == "a b"`: true, `"$A" == $A`: false, `"/x/" =~ "/x/"`: true,
	} {
		c, err := parseCondition(text)
		require.NoError(t, err, text)
		require.Equal(t, want, c.eval(value).holds(), text)
	}
	for text, want := range map[string]string{
		"":                          "at character 1: a variable, a text, a regex or null is missing at the end",
		"$A ==":                     "at character 6: a variable, a text, a regex or null is missing at the end",
		"$A == || $B":               "at character 7: a variable, a text, a regex or null is missing before \"||\"",
		"($A 'b c'":                 "at character 5: a closing parenthesis is missing before \"'b c'\"",
		"$A $BC":                    "at character 4: an operator (&&, ||, ==, !=, =~, !~) is missing before \"$BC\"",
		"$A é":                      "at character 4: 'é' is not part of a condition",
		`$A == "é" $B`:              "at character 11: an operator",
		`$A == "b`:                  "at character 7: the text is not closed; end it with \"",
		"($A":                       "at character 4: a closing parenthesis is missing at the end",
		"$A)":                       "at character 3: an operator (&&, ||, ==, !=, =~, !~) is missing before \")\"",
		"${A}":                      "at character 1: the name of a variable is missing after $; write $NAME, without braces",
		"$A == main":                "at character 7: \"main\" is neither a text in quotes nor the name of a variable",
		"$A =~ /(/":                 "at character 7: the regex is not valid: error parsing regexp: missing closing ): `(`",
		"$A =~ /x":                  "at character 7: a regex stands between two slashes, as in /^v[0-9]/",
		"$A = 1":                    "at character 4: '=' is not part of a condition",
		"!$A":                       "at character 1: '!' is not part of a condition",
		"$A &&& $B":                 "at character 6: '&' is not part of a condition",
		"nullable":                  "at character 1: \"nullable\" is neither a text in quotes",
		"$A =~ /(a{1000}){1000}/":   "at character 7: the regex is not valid: error parsing regexp: invalid repeat count",
		strings.Repeat("(", 2000):   "at character 1001: the condition has more than 1000 words and operators",
		strings.Repeat(" ", 40_000): "the condition has more than 32768 bytes",
	} {
		_, err := parseCondition(text)
		require.ErrorContains(t, err, strings.Replace(want, ": ", " of the condition: ", 1))
	}
}

// Elsewhere such a regex takes years.
func TestARegexCannotTakeLong(t *testing.T) {
	c, err := parseCondition("$A =~ /^(a+)+$/ || $A =~ /(.*)*(.*)*(.*)*b$/")
	require.NoError(t, err)
	start := time.Now()
	require.False(t, c.eval(func(string) (string, bool) { return strings.Repeat("a", 50_000) + "!", true }).holds())
	require.Less(t, time.Since(start), time.Minute)
	pattern, err := globPattern(strings.Repeat("{a,aa}", 4) + strings.Repeat("*a", 150) + "b")
	require.NoError(t, err)
	require.False(t, pattern.MatchString(strings.Repeat("a", 500)))
}

func FuzzCondition(f *testing.F) {
	f.Add(`($A =~ /x\/y/i || $B != null) && "a" == 'b'`)
	f.Add(`$A !~ $B`)
	f.Fuzz(func(_ *testing.T, text string) {
		if c, err := parseCondition(text); err == nil {
			c.eval(func(name string) (string, bool) { return text, len(name) > 1 })
		}
		_, _ = globPattern(text)
	})
}

func TestPatternsOfPaths(t *testing.T) {
	for glob, want := range map[string]string{ // the paths that match
		"go.mod": "go.mod", "*.go": "a.go", "**/*.go": "a.go src/b.go src/x/.c.go", "src/*": "src/b.go src/y.md",
		"src/**/*": "src/b.go src/y.md src/x/.c.go", "**/*": "all", "*": "a.go go.mod", "src/?.{go,md}": "src/b.go src/y.md",
		"src/[a-c].go": "src/b.go", "src/[!a-c].*": "src/y.md", "s*/x/**": "src/x/.c.go", `go\.mod`: "go.mod", "src": "",
		"**.go": "a.go", "[": "",
	} {
		pattern, err := globPattern(glob)
		require.NoError(t, err, glob)
		all := []string{"a.go", "go.mod", "src/b.go", "src/y.md", "src/x/.c.go"}
		var got []string
		for _, path := range all {
			if pattern.MatchString(path) {
				got = append(got, path)
			}
		}
		if want == "all" {
			want = strings.Join(all, " ")
		}
		require.Equal(t, want, strings.Join(got, " "), glob)
	}
}

// told returns the notices of the job j and its variables.
func told(t *testing.T, text string, cfg Config) (string, map[string]string) {
	t.Helper()
	file, err := Read("ci.yml", []byte(text), cfg)
	require.NoError(t, err, text)
	j, err := file.Job("j")
	require.NoError(t, err, text)
	return strings.Join(j.Notices, "\n"), values(j)
}

func TestTheFirstRuleThatMatchesCounts(t *testing.T) {
	const text = `
variables: {GLOBAL: g, V: global}
.main: {rules: [{if: '$BRANCH == "main"', variables: {V: main, W: "$V-$GLOBAL"}}]}
j:
  variables: {V: job}
  rules:
    - {if: $GLOBAL != "g", when: never}
    - !reference [.main, rules]
    - {if: "$BRANCH =~ /^hot/", when: manual, allow_failure: true, variables: {V: hot}}
    - {if: $BRANCH == "off", when: never}
    - if: $V == "job" && $BRANCH
      exists: [Dockerfile, "sub/**/*.tf"]
      variables: {V: image}
    - {changes: {paths: ["docs/**/*"], compare_to: "$BASE"}, variables: {V: docs}}
  script: [a]
`
	out := "a pipeline with these variables would not have this job, by its rules; it runs because you named it"
	project := project{"sub/x/y.tf": ""}
	for branch, want := range map[string][2]string{
		"main": {"", "main"},
		"hot-1": {"the rules of this job have when: manual; it runs because you named it\na pipeline would go on after a " +
			"failure of this job (allow_failure), but its failure is told here", "hot"},
		"off":   {out, "job"},
		"other": {"", "image"},
	} {
		cfg := project.config()
		cfg.Predefined = []Variable{{"BRANCH", branch}}
		notices, v := told(t, text, cfg)
		require.Equal(t, want, [2]string{notices, v["V"]}, branch)
	}
	_, v := told(t, text, Config{Given: []Variable{{"BRANCH", "main"}, {"V", "given"}}})
	require.Equal(t, []string{"given", "given-g"}, []string{v["V"], v["W"]}, "given variables come first")

	var compared string
	cfg := Config{Given: []Variable{{"BASE", "main"}}, Changed: func(to string) ([]string, error) {
		compared = to
		return []string{"docs/a.md"}, nil
	}}
	_, v = told(t, text, cfg)
	require.Equal(t, []string{"docs", "main"}, []string{v["V"], compared})
	cfg.Changed = func(string) ([]string, error) { return []string{"src/a.go"}, nil }
	notices, _ := told(t, text, cfg)
	require.Equal(t, out, notices)
	cfg.Changed = func(string) ([]string, error) { return nil, errors.New("no such branch") }
	notices, v = told(t, text, cfg)
	require.Equal(t, "docs", v["V"])
	require.Contains(t, notices, "changes of rules (treated as changed: no such branch)")
	cfg.Changed = nil
	_, v = told(t, text, cfg)
	require.Equal(t, "docs", v["V"], "nothing is known")
}

func TestRulesOfTheWorkflowAddVariables(t *testing.T) {
	const text = `
workflow:
  name: x
  rules:
    - {if: $TAG, variables: {KIND: release}}
    - {if: $BRANCH, variables: {KIND: branch, OWN: workflow}}
variables: {KIND: none}
j: {variables: {OWN: job}, script: [a]}
`
	_, v := told(t, text, Config{Given: []Variable{{"TAG", "v1"}, {"BRANCH", "b"}}})
	require.Equal(t, "release", v["KIND"])
	_, v = told(t, text, Config{Predefined: []Variable{{"BRANCH", "b"}}})
	require.Equal(t, []string{"branch", "job"}, []string{v["KIND"], v["OWN"]})
	notices, v := told(t, text, Config{})
	require.Equal(t, "none", v["KIND"])
	require.Contains(t, notices, "workflow (its rules would start no pipeline with these variables)")
}

func TestMistakesInRulesHaveAPlace(t *testing.T) {
	for _, c := range [][2]string{
		{
			"j: {script: [a], rules: a}",
			"1:25: rules must be a list, not a text",
		},
		{
			"j: {script: [a], rules: [a]}",
			"1:26: a rule must be a mapping with if, changes, exists or when, not a text",
		},
		{
			"j: {script: [a], rules: [{exist: $A}]}",
			`1:27: unknown key "exist", did you mean "exists"?`,
		},
		{
			"j: {script: [a], rules: [{if: [a]}]}",
			`1:31: if must be a text, such as $CI_COMMIT_BRANCH == "main", not a list`,
		},
		{
			"j: {script: [a], rules: [{when: always}, {if: $A ==}]}",
			"1:47: if: at character 6 of the condition: a variable",
		},
		{
			"j: {script: [a], rules: [{exists: {path: a}}]}",
			`1:36: unknown key "path", did you mean "paths"?`,
		},
		{
			"j: {script: [a], rules: [{changes: {compare_to: a}}]}",
			"1:36: changes needs paths, a list of files",
		},
		{
			"j: {script: [a], rules: [{when: nevr}]}",
			"1:33: when is one of on_success, on_failure, always, manual, delayed, never",
		},
		{
			"j: {script: [a], rules: [{changes: [[a]]}]}",
			"1:37: changes takes the paths of files, or patterns",
		},
		{
			"j: {script: [a], rules: [{exists: ['" + strings.Repeat("{a,b}", 13) + "']}]}",
			"1:36: exists: the pattern is not valid: its { } make patterns of more than 64 KiB",
		},
		{
			"workflow: {rules: [{exist: a}]}\nj: {script: [a]}",
			`1:21: unknown key "exist", did you mean "exists"?`,
		},
		{
			"default: {scripts: [a]}\nj: {script: [a]}",
			`1:11: unknown key "scripts"; write it into the jobs`,
		},
		{
			"default: [a]\nj: {script: [a]}",
			"1:10: default must be a mapping, not a list",
		},
		{
			"j: {script: [a], variables: {A: \"a\\0b\"}}",
			`1:33: the value of "A" has a NUL byte`,
		},
	} {
		require.Contains(t, wrong(c[0], nil), "ci.yml:"+c[1])
	}
	_, err := Read("ci.yml", []byte("include: {local: 'a*', rules: []}\nj: {script: [a]}"), Config{
		Open: project{}.open, List: func() ([]string, error) { return nil, errors.New("too many files") },
	})
	require.NoError(t, err, "rules without a match leave it out")
	_, err = Read("ci.yml", []byte("include: 'a*'\nj: {script: [a]}"), Config{
		Open: project{}.open, List: func() ([]string, error) { return nil, errors.New("too many files") },
	})
	require.EqualError(t, err, "ci.yml:1:10: include: too many files")
}

func TestIncludeWithWildcardsVariablesAndRules(t *testing.T) {
	files := project{
		"ci.yml": "", "ci/a.yml": ".a: {script: [a]}", "ci/sub/b.yml": ".b: {script: [b]}", "ci/sub/no.txt": "[",
		"more/prod.yml": ".prod: {script: [prod]}", "more/gone.yml": "[",
		"own.yml": "include: '*.yml'\n.own: {script: [own]}",
	}
	cfg := files.config()
	cfg.Given = []Variable{{"ENV", "prod"}}
	for include, want := range map[string]string{
		"'ci/*.yml'": ".a", "'ci/**.yml'": ".a .b", "'ci/**/*.yml'": ".b", "/ci/**.yml": ".a .b", "more/$ENV.yml": ".prod",
		"'*.yml'": ".own", "'none/*.yml'": "",
		"[{local: more/gone.yml, rules: [{if: $GONE}]}, {local: more/$ENV.yml, rules: [{exists: [own.yml]}]}]": ".prod",

		"{local: more/gone.yml, rules: [{if: $ENV, when: never}]}": "",
	} {
		file, err := Read("ci.yml", []byte("include: "+include+"\nj: {script: [a]}"), cfg)
		require.NoError(t, err, include)
		var hidden []string
		for _, name := range file.names {
			if name != "j" {
				hidden = append(hidden, name)
			}
		}
		require.Equal(t, want, strings.Join(hidden, " "), include)
	}
}
