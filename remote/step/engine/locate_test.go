package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// marked returns yaml without its mark, an @, and the place of the mark.
func marked(t testing.TB, yaml string) (text, place string) {
	t.Helper()
	before, after, found := strings.Cut(yaml, "@")
	require.True(t, found)
	lines := strings.Split(before, "\n")
	return before + after, fmt.Sprintf("%d:%d", len(lines), len(lines[len(lines)-1])+1)
}

//stepmux:faults input | An unknown variable in an expression is reported without a file and a line
//stepmux:with remote/step/engine.TestErrorOfAnExpressionNamesTheLineOfItsOwnStep
//stepmux:with remote/step/engine.TestErrorOfAnExpressionNamesTheFileOfACalledStep
//stepmux:with internal/standalone.TestErrorOfAnExpressionNamesTheFileAndTheLine
//stepmux:with remote/job/service.TestMessagesNameTheFileOfTheSteps
func TestErrorOfAnExpressionSaysWhereItStands(t *testing.T) {
	for name, c := range map[string]struct{ yaml, message string }{
		"environment of a step": {
			"- script: echo\n- name: b\n  env:\n    A: x\n    B: a ${{ vars@.NOPE }}\n  script: echo\n",
			`step "b": job.yml:%s: env B: vars.NOPE was not found`,
		},
		"environment of the job": {
			"env:\n  A: ${{ vars@.NOPE }}\nrun:\n- script: echo\n", `job.yml:%s: env A: vars.NOPE was not found`,
		},
		"key": {
			"- name: a\n  env:\n    '${{ vars@.NOPE }}': x\n  script: echo\n",
			`step "a": job.yml:%s: a key of env: vars.NOPE was not found`,
		},
		"input": {
			"- name: a\n  step: builtin://script\n  inputs:\n    script: x\n    shell: ${{ vars@.NOPE }}\n",
			`step "a": job.yml:%s: input "shell": vars.NOPE was not found`,
		},
		"script of several lines": {
			"- name: a\n  script: |\n    echo one\n    echo ${{ vars@.NOPE }}\n",
			`step "a": job.yml:%s: input "script": vars.NOPE was not found`,
		},
		"script as a list of lines": {
			"- name: a\n  step: builtin://script\n  inputs:\n    script:\n    - echo one\n    - echo ${{ vars@.NOPE }}\n",
			`step "a": job.yml:%s: input "script": vars.NOPE was not found`,
		},
		"condition": {
			"- name: a\n  if: vars@.NOPE == 1\n  script: echo\n", `step "a": job.yml:%s: if: vars.NOPE was not found`,
		},
		"condition in brackets": {
			"- name: a\n  if: ${{ vars@.NOPE == 1 }}\n  script: echo\n", `step "a": job.yml:%s: if: vars.NOPE was not found`,
		},
		"condition of another type": {
			"- name: a\n  if: @1 + 1\n  script: echo\n", `step "a": job.yml:%s: if: the expression gives a value of type ` +
				`number, and must give a boolean; compare it with something`,
		},
		"command": {
			"- name: a\n  exec:\n    command: [echo, '${{ vars@.NOPE }}']\n",
			`step "a": job.yml:%s: command, argument 1: vars.NOPE was not found`,
		},
		"command that is the job": {
			"spec: {}\n---\nexec:\n  command: [echo, '${{ vars@.NOPE }}']\n",
			`step "step_1": job.yml:%s: command, argument 1: vars.NOPE was not found`,
		},
		"directory": {
			"- name: a\n  exec: {work_dir: '${{ vars@.NOPE }}', command: [echo]}\n",
			`step "a": job.yml:%s: work_dir: vars.NOPE was not found`,
		},
		"reference": {
			"- name: a\n  step: ./${{ vars@.NOPE }}\n", `step "a": job.yml:%s: reference: vars.NOPE was not found`,
		},
		"long form of a reference": {
			"- name: a\n  step:\n    git: {url: example.com/a, rev: '${{ vars@.NOPE }}'}\n",
			`step "a": job.yml:%s: reference: vars.NOPE was not found`,
		},
		"evaluation": {
			"- name: a\n  env:\n    A: ${{ 1 @/ 0 }}\n  script: echo\n", `step "a": job.yml:%s: env A: /: division by zero`,
		},
		// The places of their bytes are not known.
		"folded text": {
			"- name: a\n  script: @>\n    echo\n    ${{ vars.NOPE }}\n",
			`step "a": job.yml:%s: input "script": vars.NOPE was not found`,
		},
		"alias": {
			"- name: a\n  if: 'false'\n  script: &s echo ${{ vars.NOPE }}\n- name: b\n  script: @*s\n",
			`step "b": job.yml:%s: input "script": vars.NOPE was not found`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			yaml, place := marked(t, c.yaml)
			newTrial(t, yaml).fail(fmt.Sprintf(c.message, place))
		})
	}
}

func TestErrorOfAnExpressionNamesTheLineOfItsOwnStep(t *testing.T) {
	for name, c := range map[string]struct{ yaml, message string }{
		"step before": {
			"- name: a\n  if: 'false'\n  script: echo ${{ vars.NOPE }}\n- name: b\n  script: echo ${{ vars@.NOPE }}\n",
			`step "b": job.yml:%s: input "script": vars.NOPE was not found`,
		},
		"step without a name": {
			"- if: 'false'\n  script: echo ${{ vars.NOPE }}\n- script: echo ${{ vars@.NOPE }}\n",
			`step "step_2": job.yml:%s: input "script": vars.NOPE was not found`,
		},
		"step of a list in a step": {
			"- name: a\n  if: 'false'\n  script: echo ${{ vars.NOPE }}\n- name: b\n  run:\n  - name: a\n" +
				"    script: echo ${{ vars@.NOPE }}\n",
			`step "b": step "a": job.yml:%s: input "script": vars.NOPE was not found`,
		},
		"other part of the step": { // its env does not know itself
			"- name: a\n  env:\n    N: '0'\n    M: ${{ 1 / num(env.N) }}\n  step: ./a.yml\n  inputs:\n" +
				"    m: ${{ 1 @/ num(env.N) }}\n",
			`step "a": job.yml:%s: input "m": /: division by zero`,
		},
		"first in the order of evaluation": {
			"- name: a\n  env:\n    B: ${{ vars.NOPE }}\n    A: ${{ vars@.NOPE }}\n  script: echo\n",
			`step "a": job.yml:%s: env A: vars.NOPE was not found`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			yaml, place := marked(t, c.yaml)
			newTrial(t, yaml, func(c *Config) { c.Env = map[string]string{"N": "1"} }).
				files(map[string]string{"a.yml": "spec: {inputs: {m: {type: number}}}\n---\nexec: {command: [echo]}\n"}).
				fail(fmt.Sprintf(c.message, place))
		})
	}
}

func TestErrorOfAnExpressionNamesTheFileOfACalledStep(t *testing.T) {
	for name, c := range map[string]struct{ file, message string }{
		"step": {
			"spec: {}\n---\nrun:\n- name: i\n  script: echo ${{ vars@.NOPE }}\n",
			`step "i": func.yml:%s: input "script"`,
		},
		"command": {
			"spec: {}\n---\nexec:\n  command:\n  - echo\n  - ${{ vars@.NOPE }}\n", `func.yml:%s: command, argument 1`,
		},
		"command of the blueprint": {
			"spec: {}\n---\ntype: exec\nexec:\n  command:\n  - ${{ vars@.NOPE }}\n", `func.yml:%s: command, argument 0`,
		},
		"environment": {
			"spec: {}\n---\nenv:\n  A: ${{ vars@.NOPE }}\nexec: {command: [echo]}\n", `func.yml:%s: env A`,
		},
		"outputs": {
			"spec: {outputs: {o: {type: string}}}\n---\nrun: [{name: i, script: echo}]\noutputs:\n  o: ${{ vars@.NOPE }}\n",
			`func.yml:%s: output "o"`,
		},
	} {
		file, place := marked(t, c.file)
		message := fmt.Sprintf(c.message, place) + ": vars.NOPE was not found"
		t.Run(name, func(t *testing.T) {
			const text = "- name: a\n  if: 'false'\n  script: echo ${{ vars.NOPE }}\n- {name: b, step: ./lib}\n"
			newTrial(t, text).files(map[string]string{"lib/func.yml": file}).
				fail(`step "b": ` + strings.Replace(message, "func.yml", "lib/func.yml", 1))
		})
		t.Run(name+" that is fetched", func(t *testing.T) {
			s, _ := serveSteps(t, map[string]map[string]string{"c/lib": {"steps/deep/func.yml": file}})
			newTrial(t, "- {name: b, step: '"+s.URL+"/c/lib/-/deep@v1'}\n", withStore(t)).
				fail(`step "b": ` + strings.Replace(message, "func.yml", s.URL+"/c/lib@v1 in steps/deep/func.yml", 1))
		})
	}
}

// A place costs another reading of the text, and a job can have very many errors.
func TestErrorsOfExpressionsHavePlacesUpToALimit(t *testing.T) {
	res := newTrial(t, strings.Repeat("- {when: always, script: 'echo ${{ vars.NOPE }}'}\n", maxLocated+2)).run()
	require.Len(t, res.Steps, maxLocated+2)
	for i, step := range res.Steps {
		require.Equal(t, i < maxLocated, strings.Contains(step.Message, "job.yml:"), step.Message)
	}
}
