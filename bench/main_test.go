package bench

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stepmux/stepmux/internal/runnertest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() != "" {
		describe()
	}
	code := runnertest.M{M: m}.Run()
	programs.remove()
	os.Exit(code)
}

// describe prints what the figures depend on, as lines of their own that benchstat understands.
func describe() {
	load, _ := os.ReadFile("/proc/loadavg") // what cannot be read is left out
	one, _, _ := strings.Cut(string(load), " ")
	fmt.Fprintf(os.Stdout, "load: %s at the start, on %d processors\n", one, runtime.NumCPU())
	versions := []string{runtime.Version()}
	if out, err := exec.Command("ssh", "-V").CombinedOutput(); err == nil {
		versions = append(versions, strings.TrimSpace(string(out)))
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "golang.org/x/crypto" || m.Path == "github.com/hashicorp/yamux" || m.Path == "google.golang.org/grpc" {
				versions = append(versions, m.Path+" "+m.Version)
			}
		}
	}
	fmt.Fprintf(os.Stdout, "versions: %s\n", strings.Join(versions, ", "))
	if out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		fmt.Fprintf(os.Stdout, "commit: %s\n", strings.TrimSpace(string(out)))
	}
}
