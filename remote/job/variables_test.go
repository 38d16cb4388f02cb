package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
)

func TestFileVariablesGoWithTheEndOfTheJob(t *testing.T) {
	s := newStore(t, Config{})
	spec := script(t, "1", `cat ../vars/BAR; stat -c ' %a' ../vars/BAR; env`)
	spec.Vars = []engine.Variable{
		{Key: "BAR", Value: "file content", File: true},
		{Key: "FOO", Value: "of no environment"},
	}
	stat, _ := run(t, s, spec)
	require.Equal(t, Succeeded, stat.State, stat.Message)
	out := read(t, follow(t, s, "1"), Stdout, 0)
	require.True(t, strings.HasPrefix(out, "file content 600\n"), out)
	require.NotContains(t, out, "of no environment")
	require.NotContains(t, out, "BAR=")
	require.Equal(t, []string{"jobs", "kept", "kept/work"}, left(t, s))
}

// In other step runners the file of a variable lay beside the job's log, so a variable with the log's name replaced the
// log.
func TestFileVariableWithTheNameOfALogHarmsNoLog(t *testing.T) {
	s := newStore(t, Config{})
	spec := script(t, "1", "cat ../vars/stdout ../vars/stderr ../vars/merged ../vars/script; echo err >&2")
	spec.Merged = true
	for _, key := range []string{"stdout", "stderr", "merged", "script", "work", "vars"} {
		spec.Vars = append(spec.Vars, engine.Variable{Key: key, Value: "of " + key + "\n", File: true})
	}
	stat, _ := run(t, s, spec)
	require.Equal(t, Succeeded, stat.State, stat.Message)
	f := follow(t, s, "1")
	require.Equal(t, "of stdout\nof stderr\nof merged\nof script\n", read(t, f, Stdout, 0))
	require.Equal(t, "err\n", read(t, f, Stderr, 0))
	require.True(t, strings.HasPrefix(read(t, f, Merged, 0), "Running step "))
}

// A job is kept for half an hour, but its secrets are not.
func TestEndedJobGivesUpItsVariablesAndSecrets(t *testing.T) {
	s := newStore(t, Config{Grace: patience})
	spec := script(t, "1", "echo $0 the-secret")
	spec.Vars = []engine.Variable{{Key: "TOKEN", Value: "the-secret", Masked: true}}
	run(t, s, spec)
	f := follow(t, s, "1")
	require.Contains(t, read(t, f, Stdout, 0), "[MASKED]")
	require.Nil(t, f.job.runner.Load())
	require.Nil(t, f.job.output)
	s.Stop("1") // has nothing left to stop
	require.NoError(t, s.Shutdown(t.Context(), 0))
}

func TestVariablesThatCannotBeWrittenFailTheJob(t *testing.T) {
	s := newStore(t, Config{Dir: smallDisk(t)})
	spec := script(t, "1", "echo not run")
	spec.Vars = []engine.Variable{{Key: "BIG", Value: strings.Repeat("x", 1<<20), File: true}}
	stat, _ := run(t, s, spec)
	require.Equal(t, Failed, stat.State)
	require.Contains(t, stat.Message, "write variable BIG")
	require.Contains(t, stat.Message, "no space left on device")
	require.Empty(t, read(t, follow(t, s, "1"), Stdout, 0))
}

func TestMaskedVariablesAreInNoLogAndNoMessage(t *testing.T) {
	s := newStore(t, Config{})
	spec := yaml(t, "1", `
- name: a
  script: |
    echo the password is pass; cat file
    printf glpat-abc; printf def123456
    printf 'status 7 half-of-' ; printf secret >&2
- name: b
  exec: {command: [./glpat-abcdef123456]}
`)
	spec.WorkDir, spec.Merged = t.TempDir(), true
	require.NoError(t, os.WriteFile(filepath.Join(spec.WorkDir, "file"), []byte("first line!\nsecond line!\n"), 0o600))
	spec.Vars = []engine.Variable{
		{Key: "TOKEN", Value: "glpat-abcdef123456", Masked: true},
		{Key: "LINES", Value: "first line!\nsecond line!", Masked: true, File: true},
		{Key: "SHORT", Value: "pw", Masked: true},
		{Key: "HALVES", Value: "half-of-secret", Masked: true},
		{Key: "CODE", Value: "status 7", Masked: true},
		{Key: "EXIT", Value: "exit status 127", Masked: true},
		{Key: "EMPTY", Masked: true},
		{Key: "PLAIN", Value: "the password"},
	}
	stat, result := run(t, s, spec)
	require.Equal(t, Failed, stat.State)
	require.Equal(t, 127, stat.ExitCode)
	require.Contains(t, stat.Message, "[MASKED]")
	require.True(t, strings.HasSuffix(stat.Message, ": exit status 127"), stat.Message)
	require.Equal(t, stat.Message, result.Message)
	require.Equal(t, stat.Message, result.Steps[1].Message)
	f := follow(t, s, "1")
	last, err := f.Event(t.Context(), 3)
	require.NoError(t, err)
	require.Equal(t, stat.Message, last.Message)
	require.NotContains(t, stat.Message, "glpat")

	require.Equal(t, "the password is pass\n[MASKED]\n[MASKED][MASKED] half-of-", read(t, f, Stdout, 0))
	require.Equal(t, "secret", read(t, f, Stderr, 0))
	merged := read(t, f, Merged, 0)
	require.True(t, strings.HasPrefix(merged, "Running step \"a\"\nVariable SHORT is not masked: "), merged)
	require.Equal(t, 1, strings.Count(merged, "SHORT"))
	require.NotContains(t, merged, "EMPTY")
	require.Contains(t, merged, "\nRunning step \"b\"\n")
}

func TestMoreSecretsThanCanBeMaskedFailTheJob(t *testing.T) {
	s := newStore(t, Config{})
	spec := script(t, "1", "echo not run")
	spec.Vars = []engine.Variable{{Key: "BIG", Value: strings.Repeat("geheim", 1<<20), Masked: true}}
	stat, _ := run(t, s, spec)
	require.Equal(t, Failed, stat.State)
	require.Contains(t, stat.Message, "mask variable BIG: ")
	require.NotContains(t, stat.Message, "geheim")
	require.Empty(t, read(t, follow(t, s, "1"), Stdout, 0))
}
