// Command report reads the output of the benchmarks. It checks the figures against the project's goals, writes them as
// a page with tables and pictures, and as lines for benchstat. It compares figures that do not depend on the machine
// with those of an earlier run.
//
//	bin/report check FILE
//	bin/report compare --base FILE FILE
//	bin/report lines --samples FILE FILE
//	bin/report write --samples FILE --page docs/benchmarks.md --readme README.md FILE
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("use check, compare, lines or write")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	base := flags.String("base", "", "file with the results to compare with")
	samples := flags.String("samples", "", "file with the samples of the run, for distributions and lines")
	page := flags.String("page", "docs/benchmarks.md", "page to write; pictures go beside it")
	readme := flags.String("readme", "", "file whose part between the benchmark markers is replaced")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("name one file of results")
	}
	results, err := readResults(flags.Arg(0))
	if err != nil {
		return err
	}
	taken, err := readSamples(*samples)
	if err != nil {
		return err
	}
	switch args[0] {
	case "check":
		return check(os.Stdout, results)
	case "compare":
		before, err := readResults(*base)
		if err != nil {
			return err
		}
		return compare(os.Stdout, before, results)
	case "lines":
		return lines(os.Stdout, results, taken)
	case "write":
		return write(results, taken, *page, *readme)
	default:
		return fmt.Errorf("unknown command %q: use check, compare, lines or write", args[0])
	}
}
