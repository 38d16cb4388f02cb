package gitlabci

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScriptsBecomeSteps(t *testing.T) {
	j := job(t, `
j:
  before_script: [one, [two, [three]]]
  script: "echo ${{ four }}"
  after_script:
    - five
`, "j")
	require.Equal(t, []string{"script on_success", "after_script always"}, names(j.Definition.GetSteps()))
	require.Equal(t, "one\ntwo\nthree\necho \\${{ four }}", script(j))
	require.Equal(t, "5m0s", j.Definition.GetSteps()[1].GetTimeout().AsDuration().String())
	require.Equal(t, []string{"after_script"}, j.MayFail)
	require.True(t, j.Script)
	require.Nil(t, j.Definition.GetSteps()[0].GetTimeout())
}

func TestTimesOfScriptsAreVariables(t *testing.T) {
	j := job(t, `
variables: {RUNNER_SCRIPT_TIMEOUT: 10m, RUNNER_AFTER_SCRIPT_TIMEOUT: 30s}
j: {script: [a], after_script: [b]}
`, "j")
	require.Equal(t, "10m0s", j.Definition.GetSteps()[0].GetTimeout().AsDuration().String())
	require.Equal(t, "30s", j.Definition.GetSteps()[1].GetTimeout().AsDuration().String())
}

func TestSetupRunAndTeardownAreOneList(t *testing.T) {
	const text = `
default:
  setup: [{name: clone, script: a}]
  teardown: [{name: upload, script: b}, {name: tell, script: c, when: on_failure}]
  before_script: [not for run]
run_job:
  run: [!reference [.steps, run], {script: d}]
script_job: {script: [e], setup: []}
.steps: {run: [{name: spliced, script: f}]}
`
	require.Equal(t,
		[]string{"clone on_success", "spliced on_success", "step_3 on_success", "upload always", "tell on_failure"},
		names(job(t, text, "run_job").Definition.GetSteps()))
	require.False(t, job(t, text, "run_job").Script)
	require.Equal(t, []string{"script on_success", "upload always", "tell on_failure"},
		names(job(t, text, "script_job").Definition.GetSteps()))
}

func TestStepsVariableIsRunWhereTheScriptOnlyCallsUs(t *testing.T) {
	for script, direct := range map[string]bool{
		"[/step-runner ci]":            true,
		"stepmux ci":                   true,
		"[echo first, step-runner ci]": false,
		"[step-runner ci --port 1]":    false,
		"[my-step-runner ci]":          false,
	} {
		j := job(t, "j:\n  variables: {STEPS: '- {name: inner, script: echo hi}'}\n  script: "+script+"\n", "j")
		require.Equal(t, !direct, j.Script, script)
		_, isVar := values(j)["STEPS"]
		require.Equal(t, !direct, isVar)
	}
	require.Equal(t, `STEPS:1:4: unknown key "scrpt", did you mean "script"?`,
		wrong("j:\n  variables: {STEPS: '- {scrpt: a}'}\n  script: step-runner ci\n", nil))
}

func TestExtendsMergesMappingsAndReplacesTheRest(t *testing.T) {
	const text = `
.a: {variables: {A: a, X: a}, script: [a], after_script: [a]}
.b: {extends: .a, variables: {B: b, X: b}, script: [b]}
.c: {variables: {C: c, X: c}}
j: {extends: [.b, .c], variables: {J: j}, after_script: null}
`
	j := job(t, text, "j")
	require.Equal(t, "b", script(j))
	require.Empty(t, j.MayFail)
	require.Equal(t, map[string]string{
		"A": "a", "B": "b", "C": "c", "J": "j", "X": "c", "CI_JOB_NAME": "j",
		"CI_JOB_STAGE": "test", "CI_PROJECT_DIR": "/project",
	}, values(j))
}

func TestReferencesLookIntoExtendedJobs(t *testing.T) {
	require.Equal(t, "first\none\ntwo", script(job(t, `
.a: {script: [one, two]}
.b: {extends: .a}
.c: {script: [!reference [.b, script]]}
j: {script: [first, !reference [.c, script]]}
`, "j")))
	require.Equal(t, "v", values(job(t, `
.vars: {variables: {V: v}}
j: {variables: !reference [.vars, variables], script: [a]}
`, "j"))["V"])
	require.Equal(t, "v", values(job(t, `
.vars: {variables: {V: v}}
j: {variables: {W: !reference [.vars, variables, V]}, script: [a]}
`, "j"))["W"])
}

func TestAnchorsAndMergeKeys(t *testing.T) {
	j := job(t, `
.lines: &lines [one, two]
.vars: &vars {A: a, B: a}
.more: &more {B: more, C: more}
j:
  variables:
    <<: [*vars, *more]
    A: own
  script: [*lines, three]
`, "j")
	require.Equal(t, "one\ntwo\nthree", script(j))
	v := values(j)
	require.Equal(t, []string{"own", "a", "more"}, []string{v["A"], v["B"], v["C"]})
}

// The first of several merge keys won, and a key before one; in GitLab the last in the text does.
func TestMergeKeysReplaceWhatIsBeforeThem(t *testing.T) {
	const text = `
.a: &a {A: a, B: a}
.b: &b {A: b, C: b}
two: {script: [x], variables: {<<: *a, <<: *b}}
after: {script: [x], variables: {A: own, C: own, <<: *a}}
before: {script: [x], variables: {<<: [*a, *b], C: own}}
`
	for name, want := range map[string][]string{
		"two": {"b", "a", "b"}, "after": {"a", "a", "own"}, "before": {"a", "a", "own"},
	} {
		v := values(job(t, text, name))
		require.Equal(t, want, []string{v["A"], v["B"], v["C"]}, name)
	}
}

func TestDefaultIsForJobsThatInheritIt(t *testing.T) {
	const text = `
default: {before_script: [b], after_script: [a]}
variables: {G: g, H: h}
all: {script: [s]}
none: {script: [s], inherit: {default: false, variables: false}}
some: {script: [s], inherit: {default: [before_script], variables: [H]}}
own: {before_script: [], script: [s]}
`
	require.Equal(t, "b\ns", script(job(t, text, "all")))
	require.NotEmpty(t, job(t, text, "all").MayFail)
	require.Equal(t, "s", script(job(t, text, "none")))
	require.Empty(t, job(t, text, "none").MayFail)
	require.NotContains(t, values(job(t, text, "none")), "G")
	require.Equal(t, "b\ns", script(job(t, text, "some")))
	require.Empty(t, job(t, text, "some").MayFail)
	require.Contains(t, values(job(t, text, "some")), "H")
	require.NotContains(t, values(job(t, text, "some")), "G")
	require.Equal(t, "s", script(job(t, text, "own")))
	require.Equal(t, "old\ns", script(job(t, "before_script: [old]\nj: {script: [s]}\n", "j")),
		"the way it was before there was default")
}

func TestVariablesAreExpanded(t *testing.T) {
	file, err := Read("ci.yml", []byte(`
variables: {NAME: world, GREETING: "hello $NAME", STAGE: "${CI_JOB_STAGE}", N: 3, FLAG: true, NOTHING: }
j:
  stage: build
  variables:
    NAME: "all of you"
    TWICE: "$GREETING, $GREETING"
    LITERAL: "$$NAME $UNKNOWN ${UNKNOWN} ${NAME $ $1"
    RAW: {value: "$NAME", expand: false, description: as it is}
    SELF: "$SELF:more"
    A: "$B"
    B: "$A"
    PROJECT: $CI_PROJECT_DIR
    GIVEN: own
  script: [a]
`), Config{ProjectDir: "/project", Predefined: []Variable{{"NAME", "below"}}, Given: []Variable{{"GIVEN", "$NAME"}}})
	require.NoError(t, err)
	j, err := file.Job("j")
	require.NoError(t, err)
	v := values(j)
	for name, want := range map[string]string{
		"GREETING": "hello all of you", "TWICE": "hello all of you, hello all of you", "STAGE": "build", "N": "3",
		"FLAG": "true", "NOTHING": "",
		"LITERAL": "$NAME $UNKNOWN ${UNKNOWN} ${NAME $ $1", "RAW": "$NAME", "SELF": "$SELF:more", "A": "$A",
		"PROJECT": "/project", "GIVEN": "$NAME",
	} {
		require.Equal(t, want, v[name], name)
	}
}

func TestIgnoredKeysAreNoticedOnce(t *testing.T) {
	j := job(t, `
image: alpine
default: {cache: {key: x}}
j: {script: ["echo $[[ inputs.a ]]"], artifacts: {paths: [a]}, stage: test, tags: [x], needs: []}
`, "j")
	require.Equal(t, []string{
		"not done here, but by a server or runner: artifacts, cache, image, needs " +
			"(image and services are with --in-image of local and run, and of submit for a whole pipeline)",
		"$[[ ]] stays as it is: it is about no input of its file",
	}, j.Notices)
	require.Equal(t, "echo $[[ inputs.a ]]", script(j))
	require.Empty(t, job(t, "j: {script: [a], stage: x}", "j").Notices)
}

func TestIncludedFilesLieBelowTheFile(t *testing.T) {
	files := project{
		"ci/base.yml": "include: [{local: /ci/vars.yml}]\n.base: {script: [base], variables: {B: base}}\nj: {variables: " +
			"{J: included}}\n",
		"ci/vars.yml": "variables: {V: vars, W: vars}\n",
	}
	j := job(t, "include: ci/base.yml\nvariables: {W: own}\nj: {extends: .base}\n", "j", files)
	require.Equal(t, "base", script(j))
	v := values(j)
	require.Equal(t, []string{"vars", "own", "included", "base"}, []string{v["V"], v["W"], v["J"], v["B"]})
}

func TestErrorsNameTheFileTheyAreIn(t *testing.T) {
	files := project{"a.yml": "\n.a: {run: [{name: x, scrpt: b}]}\n.b: &b {script: {}}\n.c: *b\n"}
	require.Equal(t, `a.yml:2:22: unknown key "scrpt", did you mean "script"?`,
		wrong("include: a.yml\nj: {extends: .a}\n", files))
	require.Equal(t, `a.yml:2:22: unknown key "scrpt", did you mean "script"?`,
		wrong("include: a.yml\nj: {run: [!reference [.a, run]]}\n", files))
	require.Equal(t, "a.yml:3:17: a line of script must be a text, not a mapping",
		wrong("include: a.yml\nj: {extends: .c}\n", files))
	require.Equal(t, "a.yml:2:1: not valid YAML: did not find expected ',' or ']' while parsing a flow sequence",
		wrong("include: a.yml\nj: {script: [a]}\n", project{"a.yml": "[a, b"}))
}

func TestNamesOfJobs(t *testing.T) {
	file, err := Read("ci.yml",
		[]byte("stages: [x]\n.hidden: {script: [a]}\nbuild app: {script: [a]}\ntest: {script: [a]}\n"), Config{})
	require.NoError(t, err)
	require.Equal(t, []string{"build app", "test"}, file.Jobs())
	for name, want := range map[string]string{
		"tset":     `ci.yml: there is no job "tset", did you mean "test"?`,
		"release":  `ci.yml: there is no job "release"; there is "build app", "test"`,
		"stages":   `ci.yml: there is no job "stages"; there is "build app", "test"`,
		".hidden":  `ci.yml:2:1: the job ".hidden" is hidden: its name begins with a dot, and other jobs extend it`,
		"a\nb\x1b": `ci.yml: there is no job "a\nb\x1b"; there is "build app", "test"`,
	} {
		_, err := file.Job(name)
		require.EqualError(t, err, want)
	}
}

// A project tests its own components by including them as of its commit: they are in its directory templates.
func TestComponentsOfTheProjectItselfAreItsFiles(t *testing.T) {
	own := project{
		"templates/lint.yml":          "spec: {inputs: {s: }}\n---\nlint: {stage: '$[[ inputs.s ]]', script: [echo lint]}\n",
		"templates/scan/template.yml": "scan: {script: [echo scan]}\n",
	}
	file, err := Read("ci.yml", []byte(`include:
- {component: $CI_SERVER_FQDN/$CI_PROJECT_PATH/lint@$CI_COMMIT_SHA, inputs: {s: build}}
- component: ${CI_SERVER_HOST}/${CI_PROJECT_PATH}/scan@$CI_COMMIT_REF_NAME
`), own.config())
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"lint", "scan"}, file.Jobs())
	_, err = Read("ci.yml", []byte("include: {component: $CI_SERVER_FQDN/$CI_PROJECT_PATH/gone@$CI_COMMIT_SHA}\n"),
		own.config())
	require.ErrorContains(t, err, `ci.yml:1:11: include: read "templates/gone/template.yml": `)
}

func TestIncludesFromElsewhereAreReadOrLeftOut(t *testing.T) {
	const text = `include:
- {project: group/tools, file: [/ci/go.yml, more.yml], ref: v1}
- remote: https://ci.example/x/lint.yml?raw=1
- {template: Go.gitlab-ci.yml}
- {component: gitlab.example/group/scan/scan@2.0}
- {component: $CI_SERVER_FQDN/group/scan/scan@2.0}
- local: /own.yml
alone: {script: [echo alone]}
job: {extends: [.go, .more, .lint, .template, .scan, .own]}
`
	elsewhere := project{
		"group/tools/ci/go.yml":                "include: /ci/base.yml\n.go: {extends: .base, before_script: [echo go]}",
		"group/tools/ci/base.yml":              ".base: {variables: {BASE: of-tools}}",
		"group/tools/more.yml":                 ".more: {variables: {MORE: x}}",
		"ci.example/x/lint.yml":                ".lint: {variables: {LINT: x}}",
		"templates/Go.gitlab-ci.yml":           ".template: {variables: {TEMPLATE: x}}",
		"gitlab.example/group/scan/scan.yml":   ".scan: {script: [echo scan]}",
		"gitlab.example/group/scan/unused.yml": "",
	}
	own := project{"own.yml": ".own: {variables: {OWN: x}}", "ci/base.yml": ".base: {variables: {BASE: own}}"}
	cfg := own.config()
	cfg.Other = elsewhere.open
	file, err := Read("ci.yml", []byte(text), cfg)
	require.NoError(t, err)
	j, err := file.Job("job")
	require.NoError(t, err)
	v := values(j)
	for _, name := range []string{"MORE", "LINT", "TEMPLATE", "OWN"} {
		require.Equal(t, "x", v[name], name)
	}
	require.Equal(t, "of-tools", v["BASE"], "local is of the project whose file includes it")
	require.Contains(t, script(j), "echo scan")
	require.Len(t, j.Notices, 1)
	require.Contains(t, j.Notices[0], `include: component "$CI_SERVER_FQDN/group/scan/scan@2.0"`)

	file, err = Read("ci.yml", []byte("include: {project: a/b, file: c.yml}\nj: {stage: test}\n"), own.config())
	require.NoError(t, err)
	_, err = file.Job("j")
	require.ErrorContains(t, err, `has nothing to run; give it a script or a run; it may be in a file that this one `+
		`includes from elsewhere (project "a/b" "c.yml")`, "the script may be there, too")

	_, err = Read("ci.yml", []byte("include: {project: group/tools, file: /gone.yml}\nj: {script: [x]}\n"), cfg)
	require.ErrorContains(t, err, `ci.yml:1:11: include: read "group/tools/gone.yml": `, "where to save it")

	file, err = Read("ci.yml", []byte(text), own.config())
	require.NoError(t, err)
	j, err = file.Job("alone")
	require.NoError(t, err, "it needs none of them")
	require.Contains(t, j.Notices[0], `include: project "group/tools" "/ci/go.yml more.yml", include: remote "https://`)
	require.Empty(t, file.Check(nil)[1:], "of the two jobs one needs them")
	_, err = file.Job("job")
	require.ErrorContains(t, err,
		`there is no job ".go"; it may be in a file that this one includes from elsewhere (project`)

	cfg.Other = project{}.open
	_, err = Read("ci.yml", []byte(text), cfg)
	require.ErrorContains(t, err, `ci.yml:2:4: include: read`)
	loop := project{"p/a.yml": "include: [b.yml]", "p/b.yml": "include: {project: p, file: a.yml}"}
	_, err = Read("ci.yml", []byte("include: {project: p, file: a.yml}\nj: {script: [a]}"), Config{Other: loop.open})
	require.ErrorContains(t, err, "includes itself")
}
