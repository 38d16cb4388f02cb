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

var update = flag.Bool("update", false, "write the lists of packages that the VM's end links anew")

// Each build pays for the start and the memory of stepmux-vm, and each VM for the way of both programs over the wire.
// So a package comes into them on purpose, by an entry in the list, and never the manager's, a container's or a
// cluster's. What needs the network comes into stepmux-fetch alone.
func TestTheVMsEndLinksOnlyTheListedPackages(t *testing.T) {
	manager := []string{
		"prometheus", "spf13/cobra", "/instance", "/connector", "/mux", "/pool", "/manager",
		"x/crypto/ssh", "moby", "k8s.io", "nats-io",
	}
	for program, never := range map[string][]string{
		"stepmux-vm": {
			"go-containerregistry", "docker", "klauspost/compress", "step/fetch", "remote/transfer", "remote/clone",
			"commands/network",
		},
		// It is in stepmux-vm, and starts for each build.
		"stepmux-init":  {"grpc", "protobuf", "yaml", "x/net", "internal/wire", "remote/api/stepmuxv1"},
		"stepmux-fetch": {"remote/proc", "remote/relay", "remote/job/", "step/engine", "commands/doors"},
	} {
		t.Run(program, func(t *testing.T) { requireLinks(t, program, append(never, manager...)) })
	}
}

func requireLinks(t *testing.T, program string, never []string) {
	t.Helper()
	list := "testdata/" + program + ".txt"
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "grpcnotrace,nethttpomithttp2,joined",
		"-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", module+"/cmd/"+program)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := cmd.Output()
	require.NoError(t, err)
	links := strings.Fields(string(out))
	slices.Sort(links)
	if *update {
		require.NoError(t, os.WriteFile(list, []byte(strings.Join(links, "\n")+"\n"), 0o600))
	}
	data, err := os.ReadFile(list)
	require.NoError(t, err)
	listed := strings.Fields(string(data))
	for _, p := range links {
		if !slices.Contains(listed, p) {
			t.Errorf("%s links %s, which is not in %s", program, p, list)
		}
		for _, n := range never {
			if strings.Contains(p, n) {
				t.Errorf("%s links %s: it needs no %s", program, p, n)
			}
		}
	}
	for _, p := range listed {
		if !slices.Contains(links, p) {
			t.Errorf("%s lists %s, which %s links no longer: go test ./internal/layers -update", list, p, program)
		}
	}
}
