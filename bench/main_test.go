package bench

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/stepmux/stepmux/internal/gcpace"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(farVar); path != "" {
		if err := farMain(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	gcpace.Set() // as the programs that are managers have it; the peers in this process have it, too
	flag.Parse()
	measuring := flag.Lookup("test.bench").Value.String() != ""
	others := watchDisturbance()
	if measuring {
		describe(os.Stdout)
	}
	code := dockertest.M{M: runnertest.M{M: m}}.Run()
	if measuring {
		fmt.Fprintf(os.Stdout, "others: %.0f %% of the processors\n", 100*others.share())
	}
	programs.remove()
	os.Exit(code)
}
