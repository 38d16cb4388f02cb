// Faults breaks things while real builds run; see package faults. bench/prove and `make faults-report` run it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/bench/faults"
)

const usage = `usage: faults run    [-seed N] [-n FAULTS] [-round N] [-kinds K,...] [-routes R,...]
                     [-time D] [-jobs N] [-program FILE] [-vms-end FILE] [-dir DIR] [-shared]
       faults soak   [-seed N] [-warm-up D] [-duration D] [-program FILE] [-vms-end FILE] [-dir DIR] [-storms N]
       faults report [-dir DIR] [-page FILE]
`

func main() {
	faults.Main() // this program is also the processes of a round
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	switch os.Args[1] {
	case "run":
		err = run(ctx, os.Args[2:])
	case "soak":
		err = soak(ctx, os.Args[2:])
	case "report":
		err = report(os.Args[2:])
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	fl := flag.NewFlagSet("run", flag.ExitOnError)
	seed := fl.Uint64("seed", 1, "seed of everything random")
	n := fl.Int("n", 200, "how many faults")
	round := fl.Int("round", -1, "run only this round, and show its log")
	kinds := fl.String("kinds", "",
		"kinds of faults, separated by commas (default all but clock, which is the whole machine's)")
	routes := fl.String("routes", "", "routes, separated by commas (default all)")
	limit := fl.Duration("time", time.Hour, "time limit; the next run goes on where this one stops")
	jobs := fl.Int("jobs", 2, "rounds at once")
	program := fl.String("program", "bin/stepmux", "the stepmux program, which is the manager")
	end := fl.String("vms-end", "bin/stepmux-vm", "the stepmux-vm program, which is on the VMs")
	dir := fl.String("dir", "bin/faults", "where results are kept")
	shared := fl.Bool("shared", false, "run without namespaces")
	_ = fl.Parse(args) // it exits
	opts, filter, err := options(ctx, *program, *end, *shared)
	if err != nil {
		return err
	}
	filter.Routes = words(*routes)
	for _, k := range words(*kinds) {
		filter.Kinds = append(filter.Kinds, faults.Kind(k))
	}
	if err := filter.Check(); err != nil {
		return err
	}
	if *round >= 0 {
		r, err := faults.RunOne(ctx, filter.Draw(*seed, *round), opts, os.Stdout)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "%+v\n", r)
		return verdict([]faults.Result{r})
	}
	journal, err := faults.OpenJournal[faults.Result](filepath.Join(*dir, filter.Journal(*seed)))
	if err != nil {
		return err
	}
	defer journal.Close()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	c := faults.Campaign{
		Seed: *seed, Filter: filter, Faults: *n, Jobs: *jobs, Options: opts, Journal: journal,
		Out: os.Stdout,
	}
	results, err := c.Run(ctx)
	fmt.Fprint(os.Stdout, faults.Table(results))
	if err != nil {
		return err
	}
	return verdict(results)
}

// soak runs a soak and keeps its result.
func soak(ctx context.Context, args []string) error {
	fl := flag.NewFlagSet("soak", flag.ExitOnError)
	seed := fl.Uint64("seed", 1, "seed of everything random")
	warmUp := fl.Duration("warm-up", 30*time.Minute, "time before that, for caches to fill")
	duration := fl.Duration("duration", time.Hour, "time in which the sampled figures must not grow")
	storms := fl.Int("storms", 0, "instead: so many storms, each of 40 builds that linger and 10 cuts (takes root)")
	program := fl.String("program", "bin/stepmux", "the stepmux program, which is the manager")
	end := fl.String("vms-end", "bin/stepmux-vm", "the stepmux-vm program, which is on the VMs")
	dir := fl.String("dir", "bin/faults", "where results are kept")
	_ = fl.Parse(args) // it exits
	opts, _, err := options(ctx, *program, *end, false)
	if err != nil {
		return err
	}
	file := "soak.json"
	if *storms > 0 {
		file = "storms.json"
		if !opts.Private {
			return errors.New("storms need namespaces of their own")
		}
	}
	plan := faults.Soak{Seed: *seed, WarmUp: *warmUp, Duration: *duration, Storms: *storms}
	r, err := faults.StartSoak(ctx, plan, opts, os.Stdout)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(*dir, file), append(text, '\n'), 0o644); err != nil {
		return err
	}
	fmt.Fprint(os.Stdout, faults.SoakTable(r))
	switch {
	case len(r.Findings) > 0:
		return fmt.Errorf("%d things are wrong", len(r.Findings))
	case *storms == 0 && !r.Flat():
		return errors.New("something grows")
	}
	return nil
}

// report writes tables of the kept results into a page.
func report(args []string) error {
	fl := flag.NewFlagSet("report", flag.ExitOnError)
	dir := fl.String("dir", "bin/faults", "where results are kept")
	page := fl.String("page", "docs/reliability.md", "the page to write the tables into")
	_ = fl.Parse(args) // it exits
	r, err := readReport(*dir)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(*page)
	if err != nil {
		return err
	}
	written, err := r.Write(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", *page, err)
	}
	return os.WriteFile(*page, []byte(written), 0o644)
}

// readReport reads the kept results of a directory.
func readReport(dir string) (r faults.Report, err error) {
	journals, err := filepath.Glob(filepath.Join(dir, "seed-*.jsonl"))
	if err != nil {
		return r, err
	}
	for _, path := range journals {
		results, err := faults.ReadJournal[faults.Result](path)
		if err != nil {
			return r, err
		}
		r.Rounds = append(r.Rounds, results...)
	}
	if r.Soak, err = readSoak(filepath.Join(dir, "soak.json")); err != nil {
		return r, err
	}
	if len(r.Rounds) == 0 && r.Soak == nil {
		return r, fmt.Errorf("there are no results in %s: run make prove WHAT=faults or make prove WHAT=soak first", dir)
	}
	return r, nil
}

// readSoak returns the result of the last soak, or nil if no soak has run.
func readSoak(path string) (*faults.SoakResult, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r faults.SoakResult
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return &r, nil
}

// options returns how rounds run here, and a filter that leaves out the rounds this machine cannot run. It prints them.
func options(ctx context.Context, program, end string, shared bool) (faults.Options, faults.Filter, error) {
	var opts faults.Options
	var err error
	if opts.Program, err = filepath.Abs(program); err != nil {
		return opts, faults.Filter{}, err
	}
	if opts.VMsEnd, err = filepath.Abs(end); err != nil {
		return opts, faults.Filter{}, err
	}
	err = errors.New("asked for")
	if !shared {
		err = faults.CanBePrivate(ctx)
	}
	if err != nil {
		fmt.Fprintf(os.Stdout, "left out, as rounds have no namespaces (%v): %v\n", err, faults.NeedPrivate())
		return opts, faults.Filter{Shared: true}, nil
	}
	opts.Private = true
	return opts, faults.Filter{}, nil
}

// verdict returns an error if anything was found.
func verdict(results []faults.Result) error {
	found := 0
	for _, r := range results {
		found += len(r.Findings)
	}
	if found > 0 {
		return fmt.Errorf("%d things are wrong", found)
	}
	return nil
}

func words(s string) []string {
	return strings.FieldsFunc(s, func(c rune) bool { return c == ',' || c == ' ' })
}
