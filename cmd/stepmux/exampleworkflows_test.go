package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/npmtest"
)

// examples/workflows run on this machine and on a VM. Their actions are stand-ins over npm's clients; TestPublicActions
// runs them with the real ones.
func TestExamplesOfWorkflows(t *testing.T) {
	t.Parallel()
	packages, err := npmtest.Install(t.TempDir(), npmtest.Clients)
	if err != nil {
		t.Skip(err)
	}
	mirror := t.TempDir()
	require.NoError(t, npmtest.Mirror(mirror, packages))
	runScripts(t, "testdata/exampleworkflows", mirror)
}
