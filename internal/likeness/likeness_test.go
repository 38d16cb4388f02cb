package likeness

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextsThatDifferByIdentifiersAreAlike(t *testing.T) {
	for name, texts := range map[string][2]string{
		"build": {"show /tmp/x/b-1: no such file", "show /tmp/x/b-2: no such file"},
		"VM":    {"dial vm-1: refused", "dial vm-2: refused"},
		"names of builds, one shorter": {
			"forward /tmp/a1/b-1/step-runner.sock: no", "forward /tmp/a1/97ed36-2/step-runner.sock: no",
		},
		"identifiers":         {"show 12-34-5/x: no", "show 1-2/x: no"},
		"identifier or build": {"show b-1_77.2/x: no", "show b-2/x: no"},
		"path":                {"make /tmp/stepmux-123/a1b2/b-1: full", "make /tmp/stepmux-9/c3d4/b-2: full"},
		"temporary":           {"open /tmp/tmp.k3Jx8QpZ: full", "open /tmp/tmp.aBcDeFgH: full"},
		"random":              {"open /tmp/runner.k3Jx8QpZ/s: full", "open /tmp/runner.x4Yz0AbC/s: full"},
		"file":                {"read /proc/self/fd/7: EIO", "read /proc/self/fd/12: EIO"},
		"process":             {`process 7 ("sh") is left`, `process 31337 ("sh") is left`},
		"port":                {"dial 10.0.0.1:22: refused", "dial 10.0.0.2:40022: refused"},
		"time":                {"not ready after 1.5s", "not ready after 2m"},
		"digest":              {"pull img@sha256:aa0b: gone", "pull img@sha256:cc1d: gone"},
		"identifier":          {"job 6ba7b810-9dad-11d1-80b4-00c04fd430c8: x", "job 7ba7b810-9dad-11d1-80b4-00c04fd430c9: x"},
		"address":             {"fault at 0xdead10", "fault at 0xbeef22"},
	} {
		require.Equal(t, Of(texts[0], "b-1", "vm-1"), Of(texts[1], "b-2", "vm-2"), name)
	}
	for name, texts := range map[string][2]string{
		"exit status": {"serve: exit status 1", "serve: exit status 2"},
		"answer":      {"the server answered HTTP 404", "the server answered HTTP 503"},
		"cause":       {"open /tmp/a: no space left", "open /tmp/a: permission denied"},
		"step":        {`step "build1": no shell`, `step "build2": no shell`},
		"sentences":   {"serve 1. It ended 2", "serve 1 It ended 2"},
		"program":     {"docker is missing", "git is missing"},
	} {
		require.NotEqual(t, Of(texts[0], "b-1", "vm-1"), Of(texts[1], "b-2", "vm-2"), name)
	}
	require.Equal(t, "no names", Of("no names", "", ""))
}
