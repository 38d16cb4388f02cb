package layers

import (
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the list of packages that stepmux-vm links anew")

const vmsEndList = "testdata/stepmux-vm.txt"

// Each build pays for the start and the memory of stepmux-vm, and each VM for its way over the wire. So a package comes
// into it on purpose, by an entry in the list, and never the manager's, a container's or a cluster's.
func TestTheVMsEndLinksOnlyTheListedPackages(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-tags", "grpcnotrace,nethttpomithttp2",
		"-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", module+"/cmd/stepmux-vm")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := cmd.Output()
	require.NoError(t, err)
	links := strings.Fields(string(out))
	slices.Sort(links)
	if *update {
		require.NoError(t, os.WriteFile(vmsEndList, []byte(strings.Join(links, "\n")+"\n"), 0o600))
	}
	data, err := os.ReadFile(vmsEndList)
	require.NoError(t, err)
	listed := strings.Fields(string(data))
	for _, p := range links {
		if !slices.Contains(listed, p) {
			t.Errorf("stepmux-vm links %s, which is not in %s", p, vmsEndList)
		}
		for _, never := range []string{
			"prometheus", "spf13/cobra", "/instance", "/connector", "/mux", "/pool", "/manager",
			"x/crypto/ssh", "moby", "k8s.io", "nats-io",
		} {
			if strings.Contains(p, never) {
				t.Errorf("stepmux-vm links %s: the VM's end needs no %s", p, never)
			}
		}
	}
	for _, p := range listed {
		if !slices.Contains(links, p) {
			t.Errorf("%s lists %s, which stepmux-vm links no longer: go test ./internal/layers -update", vmsEndList, p)
		}
	}
}
