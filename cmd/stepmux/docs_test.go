package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// times matches durations, which differ between two runs.
var times = regexp.MustCompile(` +[0-9.]+(m[0-9.]+s|ms|s|µs)\b`)

// timeless replaces all times in text by the time of the examples.
func timeless(text string) string {
	return times.ReplaceAllStringFunc(text, func(found string) string {
		if strings.HasPrefix(found, "  ") { // in a column
			return strings.Repeat(" ", max(len([]rune(found))-len("0ms"), 1)) + "0ms"
		}
		return " 0ms"
	})
}

// The examples of docs/commands.md.
func TestExamplesOfTheCommandsPageDoWhatItSays(t *testing.T) {
	dir := t.TempDir()
	require.Greater(t, runExamples(t, dir, "../../docs/commands.md", timeless), 10)
	require.FileExists(t, filepath.Join(dir, "trace.json"))
}

// The examples of docs/docker.md.
func TestExamplesOfTheDockerPageDoWhatItSays(t *testing.T) {
	d := dockertest.Start(t)
	plain := func(text string) string {
		text = regexp.MustCompile(`used: [0-9.]+ s (.*) [0-9]+ MiB`).ReplaceAllString(text, "used: 0.1 s $1 8 MiB")
		text = regexp.MustCompile(`\b[0-9a-f]{6}-1\b`).ReplaceAllString(timeless(text), "b1a2c3-1")
		return regexp.MustCompile(`sha256:[0-9a-f]{64}`).ReplaceAllString(text, "sha256:"+strings.Repeat("0", 64))
	}
	require.Equal(t, 3, runExamples(t, t.TempDir(), "../../docs/docker.md", plain, "DOCKER_HOST=unix://"+d.Socket))
	require.Empty(t, d.Containers(t))
}

// command matches the start of a command of an example. A script shows its own commands in the same way.
var command = regexp.MustCompile(`(?m)^\$ (?:STEPS=|stepmux |ls |echo \$\?)`)

// runExamples runs the examples of a page in dir and returns how many they are. A block whose first line is "# name" is
// a file; a block of the language console is the output of a shell, which plain makes the same for all runs.
func runExamples(t *testing.T, dir, page string, plain func(string) string, env ...string) (commands int) {
	t.Helper()
	program := runnertest.Manager(t)
	data, err := os.ReadFile(page)
	require.NoError(t, err)
	status := "0"
	for i, block := range strings.Split(string(data), "\n```") {
		if i%2 == 0 {
			continue
		}
		language, text, _ := strings.Cut(block, "\n")
		first, _, _ := strings.Cut(text, "\n")
		switch name, isFile := strings.CutPrefix(first, "# "); {
		case language == "console":
			at := command.FindAllStringIndex(text, -1)
			for i, from := range at {
				end := len(text)
				if i+1 < len(at) {
					end = at[i+1][0]
				}
				line, want, _ := strings.Cut(text[from[0]+len("$ "):end]+"\n", "\n")
				commands++
				got := ""
				got, status = shell(t, dir, program, status, line, env...)
				require.Equal(t, strings.TrimSpace(want), strings.TrimSpace(plain(got)), line)
			}
		case isFile:
			path := filepath.Join(dir, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
		}
	}
	return commands
}

// shell runs a line after a command that ended with status, and returns the output and the status of the line.
func shell(t *testing.T, dir, program, status, line string, env ...string) (shown, ended string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "stepmux() { "+program+` "$@"; }; (exit `+status+"); "+line+"\necho \"$?\" >&3")
	cmd.Dir = dir
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	cmd.ExtraFiles = []*os.File{w}
	cmd.Env = append(env, "PATH="+os.Getenv("PATH"), "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	w.Close()
	require.NoError(t, err, "%s", out)
	code := make([]byte, 8)
	n, err := r.Read(code)
	require.NoError(t, err)
	return string(out), strings.TrimSpace(string(code[:n]))
}

// Users copy our examples, and a script goes on after a line that fails unless it says set -e.
func TestScriptsOfOurExamplesEndWithALineThatFails(t *testing.T) {
	checked := 0
	for _, pattern := range []string{"README.md", "docs/*.md", "examples/*.yml", "examples/*/*.yml"} {
		files, err := filepath.Glob(filepath.Join("..", "..", pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, script := range regexp.MustCompile(`(?m)^ *(- )?script: \|.*\n.*`).FindAllString(string(text), -1) {
				require.Regexp(t, `\n +set -e`, script, file)
				checked++
			}
		}
	}
	require.Greater(t, checked, 3)
}
