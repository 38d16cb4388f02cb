package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Fuzzing runs the fuzz targets of the packages in a folder, several at once. `go test -fuzz` does the same with one
// target of one package, and goes on where it was stopped.
type Fuzzing struct {
	Dir     string         // the module's
	Keep    string         // where test programs are built
	Targets *regexp.Regexp // those whose name matches
	// Each is how long, in time of the clock, a target is to be fuzzed, or, as "500x", how many inputs it gets.
	Each    string
	Jobs    int              // targets at once, one worker each
	Journal *Journal[Fuzzed] // may be nil; else a target gets what it lacks of Each, a time
	Out     io.Writer
}

// Fuzzed is how the fuzzing of one target went.
type Fuzzed struct {
	Target  string  `json:"target"` // folder of the package, and name
	Commit  string  `json:"commit"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu_seconds"`
	Inputs  int     `json:"inputs"`
	Corpus  int     `json:"corpus"` // inputs that reach code which no other reaches
	// Failures is 0 or 1, or more in a sum. Failure is the fuzzer's message.
	Failures int    `json:"failures"`
	Failure  string `json:"failure,omitempty"`
}

// sumFuzzed adds up the runs of each target, in the order of their names.
func sumFuzzed(runs []Fuzzed) []Fuzzed {
	sums := map[string]Fuzzed{}
	for _, r := range runs {
		s := sums[r.Target]
		r.Seconds, r.CPU, r.Inputs, r.Failures = r.Seconds+s.Seconds, r.CPU+s.CPU, r.Inputs+s.Inputs, r.Failures+s.Failures
		r.Corpus = max(r.Corpus, s.Corpus)
		sums[r.Target] = r
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b Fuzzed) int { return strings.Compare(a.Target, b.Target) })
}

// target is a fuzz target.
type target struct {
	folder  string // in the module
	name    string
	program string // the test program
	corpus  string // where the go command keeps inputs too
}

func (t target) String() string { return t.folder + "." + t.name }

// Run fuzzes all targets and returns the results of this run. The error names the targets that failed, or the reason
// why nothing could be fuzzed. The end of ctx is not an error.
func (f *Fuzzing) Run(ctx context.Context) ([]Fuzzed, error) {
	limit, err := time.ParseDuration(f.Each)
	if inputs, byNumber := strings.CutSuffix(f.Each, "x"); byNumber {
		_, err = strconv.ParseUint(inputs, 10, 32)
	}
	if err != nil {
		return nil, fmt.Errorf("how long to fuzz: %q is neither a time, as 30m, nor a number of inputs, as 500x", f.Each)
	}
	targets, err := f.build(ctx, limit == 0)
	if err != nil {
		return nil, err
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("no fuzz target's name matches %q", f.Targets)
	}
	commit := f.commit(ctx)
	var (
		jobs    sync.WaitGroup
		mu      sync.Mutex // guards the following
		results []Fuzzed
		failed  []error
	)
	queue := make(chan target)
	for range max(f.Jobs, 1) {
		jobs.Go(func() {
			for t := range queue {
				r, err := f.one(ctx, t, limit)
				r.Commit = commit
				mu.Lock()
				failed = append(failed, err, f.keep(t, r))
				results = append(results, r)
				mu.Unlock()
			}
		})
	}
	for _, t := range targets {
		select {
		case queue <- t:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(queue)
	jobs.Wait()
	return results, errors.Join(failed...)
}

// keep tells how the fuzzing of a target went. Its error says that it failed, or that the journal did.
func (f *Fuzzing) keep(t target, r Fuzzed) (err error) {
	if r.Seconds == 0 {
		return nil // it did not run
	}
	fmt.Fprintf(f.Out, "== %v: %d inputs in %.0f s, %d of them kept\n%s", t, r.Inputs, r.Seconds, r.Corpus, r.Failure)
	if f.Journal != nil {
		err = f.Journal.Add(r)
	}
	if r.Failures > 0 {
		err = errors.Join(err, fmt.Errorf("%v failed", t))
	}
	return err
}

// fuzzFunc is how a test file declares a target.
var fuzzFunc = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\) \{$`)

// build finds the targets and builds the test programs they are in. In a short run, only this module is
// instrumented for coverage: the libraries are compiled as for the programs, so they come from the build cache.
func (f *Fuzzing) build(ctx context.Context, short bool) ([]target, error) {
	list, err := f.goOutput(ctx, "list", "-f", `{{.ImportPath}} {{.Dir}}`, "./...")
	if err != nil {
		return nil, err
	}
	cache, err := f.goOutput(ctx, "env", "GOCACHE")
	if err != nil {
		return nil, err
	}
	var all []target
	seen, batches := map[string]int{}, map[string][]string{} // a batch has packages with different last names
	for line := range strings.Lines(list) {
		pkg, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		names, err := f.declared(dir)
		if err != nil {
			return nil, err
		}
		if len(names) == 0 {
			continue
		}
		folder, err := filepath.Rel(f.Dir, dir)
		if err != nil {
			return nil, err
		}
		program := filepath.Base(folder) + ".test"
		into := filepath.Join(f.Keep, strconv.Itoa(seen[program]))
		seen[program]++
		batches[into] = append(batches[into], pkg)
		for _, name := range names {
			corpus := filepath.Join(strings.TrimSpace(cache), "fuzz", pkg)
			all = append(all, target{folder, name, filepath.Join(into, program), corpus})
		}
	}
	for into, packages := range batches {
		if err := f.compile(ctx, into, packages, short); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// compile builds the test programs of packages into a folder.
func (f *Fuzzing) compile(ctx context.Context, into string, packages []string, short bool) error {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	command := []string{"test", "-c", "-vet", "off", "-ldflags", "-w", "-o", into}
	if short { // the flags of the Makefile, and what -fuzz adds
		command = append(command, "-gcflags", "all=-dwarf=false", "-gcflags", "./...=-dwarf=false -d=libfuzzer")
		_, err := f.goOutput(ctx, append(command, packages...)...)
		return err
	}
	for _, p := range packages { // -fuzz takes one
		if _, err := f.goOutput(ctx, append(command, "-fuzz", "Fuzz", p)...); err != nil {
			return err
		}
	}
	return nil
}

// declared returns the wanted targets that the test files in a folder declare.
func (f *Fuzzing) declared(dir string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, m := range fuzzFunc.FindAllSubmatch(text, -1) {
			if name := string(m[1]); f.Targets.MatchString(name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// progress is a line of the fuzzer's.
var progress = regexp.MustCompile(`execs: (\d+) .*\(total: (\d+)\)`)

// one fuzzes a target. Its error says why nothing is known.
func (f *Fuzzing) one(ctx context.Context, t target, limit time.Duration) (Fuzzed, error) {
	each, r := f.Each, Fuzzed{Target: t.String()}
	minimize := "10s"
	if limit == 0 {
		minimize = "0" // the inputs of a short run are not kept
	}
	if ctx.Err() != nil {
		return r, nil //nolint:nilerr // an end like any
	}
	if f.Journal != nil && limit > 0 {
		if limit -= f.done(t); limit < time.Second {
			return r, nil
		}
		each = limit.String()
	}
	cmd := exec.CommandContext(ctx, t.program, "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzztime="+each,
		"-test.fuzzminimizetime="+minimize, "-test.parallel=1", "-test.fuzzcachedir="+t.corpus)
	cmd.Dir = filepath.Join(f.Dir, t.folder)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begin := time.Now()
	err := cmd.Run()
	r.Seconds = time.Since(begin).Seconds()
	if cmd.ProcessState == nil {
		return r, fmt.Errorf("%v: %w", t, err)
	}
	r.CPU = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	if all := progress.FindAllSubmatch(out.Bytes(), -1); len(all) > 0 {
		last := all[len(all)-1]
		r.Inputs, _ = strconv.Atoi(string(last[1]))
		r.Corpus, _ = strconv.Atoi(string(last[2]))
	}
	if err != nil && ctx.Err() == nil && !endOfTime(out.String()) {
		r.Failures, r.Failure = 1, tail(out.String())
	}
	return r, nil
}

// endOfTime reports whether a fuzzer that failed did so only because its time was over, which it takes for a failure
// now and then: no input is blamed.
func endOfTime(out string) bool {
	return strings.Contains(out, "context deadline exceeded") && !strings.Contains(out, "Failing input written")
}

// done returns how long the journal says a target was fuzzed.
func (f *Fuzzing) done(t target) time.Duration {
	var seconds float64
	for _, r := range f.Journal.All() {
		if r.Target == t.String() {
			seconds += r.Seconds
		}
	}
	return time.Duration(seconds * float64(time.Second))
}

// commit returns the commit of the fuzzed tree, or "" outside a repository.
func (f *Fuzzing) commit(ctx context.Context) string {
	cmd := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude", "*")
	cmd.Dir = f.Dir
	out, _ := cmd.Output()
	return strings.TrimSpace(string(out))
}

// goOutput runs the go command in the module.
func (f *Fuzzing) goOutput(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = f.Dir
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, tail(said.String()))
	}
	return string(out), nil
}
