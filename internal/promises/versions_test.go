package promises

import (
	"os/exec"
	"strconv"
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
		got := strings.TrimSpace(string(out))
		require.False(t, older(t, got, want), "%s is %s, the least is %s", module, got, want)
		require.True(t, older(t, "v0.0.9", got))
	}
}

// older reports whether release a is older than b.
func older(t *testing.T, a, b string) bool {
	t.Helper()
	x, y := numbers(t, a), numbers(t, b)
	for i := range x {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return false
}

func numbers(t *testing.T, version string) (n [3]int) {
	t.Helper()
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "-")
	parts := strings.Split(version, ".")
	require.Len(t, parts, 3, version)
	for i, part := range parts {
		var err error
		n[i], err = strconv.Atoi(part)
		require.NoError(t, err)
	}
	return n
}
