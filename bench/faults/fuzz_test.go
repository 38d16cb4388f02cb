package faults

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fuzzer is a stand-in for a test program, which takes minutes to build with the fuzzer's instruments: `make fuzz` in
// CI
// runs the real ones. It tells its arguments, then runs the rest of the script.
func fuzzer(t *testing.T, script string) target {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "pkg.test")
	text := "#!/bin/sh\nfor a; do echo \"$a\"; done >arguments\n" + script
	require.NoError(t, os.WriteFile(program, []byte(text), 0o755))
	return target{folder: ".", name: "FuzzIt", program: program, corpus: "/corpus"}
}

func fuzzing(t *testing.T, each string) *Fuzzing {
	t.Helper()
	return &Fuzzing{Dir: t.TempDir(), Each: each, Targets: regexp.MustCompile("."), Out: t.Output()}
}

func TestWhatAFuzzerDidIsRead(t *testing.T) {
	f := fuzzing(t, "500x")
	r, err := f.one(t.Context(), fuzzer(t, `
		echo 'fuzz: elapsed: 0s, gathering baseline coverage: 0/2 completed'
		echo 'fuzz: elapsed: 3s, execs: 3077 (1017/sec), new interesting: 15 (total: 17)'
		echo 'fuzz: elapsed: 6s, execs: 4077 (333/sec), new interesting: 16 (total: 18)'`), 0)
	require.NoError(t, err)
	require.Equal(t, []any{"..FuzzIt", 4077, 18, 0}, []any{r.Target, r.Inputs, r.Corpus, r.Failures})
	require.Positive(t, r.Seconds)
	text, err := os.ReadFile(filepath.Join(f.Dir, "arguments"))
	require.NoError(t, err)
	require.Equal(t, "-test.run=^$\n-test.fuzz=^FuzzIt$\n-test.fuzztime=500x\n-test.fuzzminimizetime=0\n"+
		"-test.parallel=1\n-test.fuzzcachedir=/corpus\n", string(text))
}

func TestAFuzzersFailureIsToldUnlessItIsTheEndOfItsTime(t *testing.T) {
	f := fuzzing(t, "1m")
	broken := fuzzer(t, "echo '    panic: index out of range'; echo '    Failing input written to testdata/x'; exit 1")
	r, err := f.one(t.Context(), broken, time.Minute)
	require.NoError(t, err)
	require.Equal(t, 1, r.Failures)
	require.Contains(t, r.Failure, "index out of range")

	r, err = f.one(t.Context(),
		fuzzer(t, "echo '--- FAIL: FuzzIt (60.1s)'; echo '    context deadline exceeded'; exit 1"), time.Minute)
	require.NoError(t, err)
	require.Zero(t, r.Failures)

	lost := target{folder: ".", name: "FuzzIt", program: filepath.Join(t.TempDir(), "none")}
	_, err = f.one(t.Context(), lost, time.Minute)
	require.ErrorContains(t, err, "FuzzIt: ")
}

func TestATargetGetsTheTimeItLacks(t *testing.T) {
	f := fuzzing(t, "30m")
	j, err := OpenJournal[Fuzzed](filepath.Join(t.TempDir(), "fuzz.jsonl"))
	require.NoError(t, err)
	defer j.Close()
	f.Journal = j
	require.NoError(t, j.Add(Fuzzed{Target: "..FuzzIt", Seconds: 1000}))
	require.NoError(t, j.Add(Fuzzed{Target: "..FuzzOther", Seconds: 9000}))
	_, err = f.one(t.Context(), fuzzer(t, ""), 30*time.Minute)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(f.Dir, "arguments"))
	require.NoError(t, err)
	require.Contains(t, string(text), "-test.fuzztime=13m20s\n")

	require.NoError(t, j.Add(Fuzzed{Target: "..FuzzIt", Seconds: 800}))
	r, err := f.one(t.Context(), fuzzer(t, "exit 1"), 30*time.Minute)
	require.NoError(t, err)
	require.Zero(t, r.Seconds, "it had all its time")
}

func TestAFuzzerThatIsStoppedEndsAndHasNotFailed(t *testing.T) {
	f := fuzzing(t, "30m")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	it := fuzzer(t, "trap 'exit 1' INT; echo 'fuzz: elapsed: 3s, execs: 7 (2/sec), new interesting: 0 (total: 2)'; "+
		"echo >up; while :; do sleep 0.01; done")
	var waiting sync.WaitGroup
	defer waiting.Wait()
	waiting.Go(func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(f.Dir, "up")); err == nil {
				cancel()
			}
		}
	})
	r, err := f.one(ctx, it, 30*time.Minute)
	require.NoError(t, err)
	require.Equal(t, []any{7, 0}, []any{r.Inputs, r.Failures})
}

func TestFuzzTargetsAreFoundByTheirDeclarations(t *testing.T) {
	f := &Fuzzing{Targets: regexp.MustCompile("^Fuzz(One|Two)$")}
	dir := t.TempDir()
	text := "package p\n\nfunc FuzzTwo(f *testing.F) {\n}\n\nfunc FuzzOne(f *testing.F) {\n}\n\n" +
		"func FuzzThree(f *testing.F) {\n}\n// func FuzzOne(f *testing.F) {\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a_test.go"), []byte(text), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.go"), []byte(text), 0o600))
	names, err := f.declared(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"FuzzOne", "FuzzTwo"}, names)
}

func TestHowLongToFuzzIsATimeOrANumber(t *testing.T) {
	for _, each := range []string{"", "30", "x", "-1x", "1e3x"} {
		_, err := fuzzing(t, each).Run(t.Context())
		require.ErrorContains(t, err, "neither a time", each)
	}
}
