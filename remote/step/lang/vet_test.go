package lang

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Symptom: a script that was called by its long name went on after a line that failed, without a warning.
func TestEachWayToWriteAScriptIsVetted(t *testing.T) {
	for text, where := range map[string]string{
		"- script: |\n    a\n    b":                                        "f:1:11",
		"- run:\n    - script: |\n        a\n        b":                    "f:2:15",
		"- step: builtin://script\n  inputs: {script: \"a\\nb\"}":          "f:2:20",
		"- step: builtin://script\n  inputs: {shell: sh, script: [a, b]}":  "f:2:31",
		"- step: builtin://script\n  inputs: {script: \"set -e\\na\\nb\"}": "",
		"- step: builtin://script\n  inputs: {script: [set -e, a, b]}":     "",
		"- step: ./other\n  inputs: {script: \"a\\nb\"}":                   "",
	} {
		_, warnings, err := Vet("f", []byte(text), false)
		require.NoError(t, err, text)
		if where == "" {
			require.Empty(t, warnings, text)
			continue
		}
		require.Len(t, warnings, 1, text)
		require.Equal(t, where+": "+goesOnWarning, warnings[0].Error(), text)
	}
}

func TestTheWarningsAboutOneTextAreBounded(t *testing.T) {
	text := strings.Repeat("- script: \"a\\nb\"\n", 50)
	_, warnings, err := Vet("f", []byte(text), false)
	require.NoError(t, err)
	require.Len(t, warnings, maxWarnings+1)
	require.Equal(t, goesOnWarning, warnings[maxWarnings-1].Message)
	require.Equal(t, fmt.Sprintf("f:%d:11: from here on there are more such warnings: %d", maxWarnings+1, 50-maxWarnings),
		warnings[maxWarnings].Error())
}

// Symptom: --strict-scripts passed scripts that ended "0 failed" although a line had failed, and warned about others.
// The shell is the judge: the script goes on if bash reaches the line after one that fails.
//
//stepmux:faults users | A line with `set -e` that the shell never runs hides that a script goes on; a script for
//stepmux:more another shell runs in bash without a word
//stepmux:with remote/step/lang.TestAScriptForAnotherProgramIsTold, remote/step/lang.TestAByteOrderMarkIsNoPartOfAScript
func TestAScriptIsVettedAsTheShellRunsIt(t *testing.T) {
	bash, err := exec.LookPath("bash")
	require.NoError(t, err)
	for _, begin := range []string{
		"set -e", "set -euo pipefail", "set -o errexit", "set -u -e", "set -o pipefail -e", "set -eo pipefail", "set -ex; :",
		"set -e # with a remark", "  set -e && :", "set -uo errexit", "#!/bin/sh -e\nset -e",
		"set +o errexit", "set -- -e", "set - -e", "set x -e", "set -u -- -e", "set -o pipefail", "set -u", "echo set -e",
		"set -f # -e",
		"cat <<E\nset -e\nE", "cat <<-'E F'\nset -e\n\tE F", "cat <<\\E >/dev/null; :\nset -e\nE",
		"X=1 cat <<A <<B\nset -e\nA\nset -e\nB", "echo '\nset -e\n'", "echo \"\nset -e\n\"",
		"x='\nset -e\n'", "x=$(\nset -e\n)",
		"f() {\nset -e\n}", "function f {\nset -e\n}", "f() (\nset -e\n)", "f()\n{ set -e; }", "(\nset -e\n)",
		"g() { case $1 in\n-e) set -e;; esac\n{ :; }; }",
		"exec 2>&1; set -e", "exec 2>&1\nset -e", "exec > >(cat) 2>&1; set -e", "exec &>/dev/null\nset -e",
		"A=1 B=\"a;b\"\nset -e", "export A='x # y' B=$A\nset -e", "a=(1 2)\nset -e", "trap 'rm -f x; y' EXIT\nset -e",
		"f() { false; }\nset -e", "function f {\n:\n}\nset -e", "if [ -z \"$D\" ]; then set -x; fi\nset -e",
		"[ -z \"$D\" ] && set -u\nset -e", "{ set -e; }",
		"x=\"${D:-a;b}\"; set -e", ": <<<E\nset -e", ": <<E\n'\nE\nset -e",
		"# it's\nset -e", "\n\nset \\\n-e", "umask 022; shopt -s nullglob; set -e",
		"set -e\nset +e", "set -e\nset +o errexit",
		"set -e; set +e; set -e", "set -e\nset +e\n:\nset -e", "set -e\n(set +e; false)",
		"set -e\nf() { set +e; }", "set -e\n: <<E\nset +e\nE", "set -e\ncase a in a) :;; esac\nset +e\nset -e",
	} {
		script := begin + "\nfalse\necho went on\n"
		out, _ := exec.Command(bash, "-c", script).Output() // it fails if the script ends early
		require.Equal(t, strings.Contains(string(out), "went on"), goesOn(script), "%s", script)
	}
	for script, warns := range map[string]bool{
		"make\nset -e\nmake": true, "x=$(make)\nset -e\nmake": true, "cd x\nset -e": true, "echo a\nset -e": true,
		"set -e\nset +e\nmake\ncode=$?\necho $code": false, "set -e\na\nset +e\nb": false,
	} {
		require.Equal(t, warns, goesOn(script), "%s", script)
	}
}

// Symptom: scripts of zsh and ksh ran in bash without a word, and a program in a directory named sh counted as a shell.
func TestAScriptForAnotherProgramIsTold(t *testing.T) {
	for line, program := range map[string]string{
		"#!/bin/sh": "sh", "#! /usr/local/bin/bash -eu": "bash", "#!/usr/bin/env bash": "bash",
		"#!/bin/bash.real":          "bash.real",
		"#!/usr/bin/env -S bash -e": "bash", "#!/usr/bin/env -S -i A=1 dash": "dash", "\ufeff#!/bin/ash": "ash", "echo": "",
		"#!": "", " #!/bin/zsh": "", "#!/bin/static-sh": "static-sh",
	} {
		require.Equal(t, program, Interpreter(line+"\n"), line)
		require.Empty(t, scriptWarnings(line+"\n"), line)
	}
	for line, program := range map[string]string{
		"#!/bin/zsh": "zsh", "#!/usr/bin/env ksh": "ksh", "#!/opt/sh/python3": "python3", "#!/usr/bin/fish -e": "fish",
	} {
		warnings, err := VetScript("f", line+"\nset -e\n:\n")
		require.NoError(t, err)
		require.Len(t, warnings, 1, line)
		require.Contains(t, warnings[0].Error(), fmt.Sprintf("f:1:1: the first line names %q, but bash runs", program))
	}
}

// Symptom: the advice about a script with a byte order mark was to begin it with set -e, which it did.
func TestAByteOrderMarkIsNoPartOfAScript(t *testing.T) {
	const text = "\ufeffset -e\nfalse\n"
	warnings, err := VetScript("f", text)
	require.NoError(t, err)
	require.Empty(t, warnings)
	def, err := Script("f", text)
	require.NoError(t, err)
	require.Equal(t, text[3:], def.Steps[0].Inputs[inputScript].GetStringValue())
	_, err = ParseCalled("f", []byte("\ufeff#!/bin/sh\nmake\n"))
	require.ErrorContains(t, err, "the file is a script, not steps")
}

// It must end for every text, in a time that grows with the text.
func TestVettingEndsForEveryText(t *testing.T) {
	for _, part := range []string{
		"'", "\"", "`", "$(", "${", "(", "f() {", "<<E\n", "\\", "a\n", "set +e\n", "function ",
		"\"$(",
	} {
		goesOn(strings.Repeat(part, 1<<14))
		goesOn("a\nb" + part)
	}
}
