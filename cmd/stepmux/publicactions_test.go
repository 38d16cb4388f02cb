//go:build publicactions

package main

import (
	"os"
	"testing"
)

// TestPublicActions runs actions that many workflows use. STEPMUX_ACTIONS_MIRROR is a directory with their
// repositories, as stepmux actions vendor makes it: the script names them.
func TestPublicActions(t *testing.T) {
	mirror := os.Getenv("STEPMUX_ACTIONS_MIRROR")
	if mirror == "" {
		t.Fatal("part missing: STEPMUX_ACTIONS_MIRROR, a directory with repositories of public actions")
	}
	runScripts(t, "testdata/publicactions", mirror)
	runScripts(t, "testdata/exampleworkflows", mirror)
}
