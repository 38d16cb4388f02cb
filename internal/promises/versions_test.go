package promises

import (
	"go/version"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// least holds the lowest versions of libraries without known vulnerabilities that affect us.
var least = map[string]string{
	// CVE-2023-48795 (v0.17), CVE-2024-45337 (v0.31), CVE-2025-22869 (v0.35), CVE-2025-47913 (v0.43),
	// CVE-2025-47914 and CVE-2025-58181 (v0.45); refused channels that were kept, and unsolicited replies that stopped
	// the connection (v0.55).
	"golang.org/x/crypto": "v0.55.0",
	// CVE-2023-44487 (v0.17), CVE-2023-45288 (v0.23).
	"golang.org/x/net": "v0.23.0",
	// CVE-2023-44487 (v1.58.3).
	"google.golang.org/grpc": "v1.58.3",
	// CVE-2024-24786 (v1.33.0).
	"google.golang.org/protobuf": "v1.33.0",
}

func TestLibrariesAreOfVersionsWithoutKnownVulnerabilities(t *testing.T) {
	for module, want := range least {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", module).Output()
		require.NoError(t, err, module)
		got := asGo(strings.TrimSpace(string(out)))
		require.True(t, version.IsValid(got), got)
		require.GreaterOrEqual(t, version.Compare(got, asGo(want)), 0, "%s is %s, the least is %s", module, got, want)
	}
}

// asGo returns a module's version as one of Go, which package version compares.
func asGo(module string) string { return "go" + strings.TrimPrefix(module, "v") }
