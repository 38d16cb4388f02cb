package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/flagfile"
)

func TestAManagersConfigurationMayHaveAListForEachFlagThatMayRepeat(t *testing.T) {
	lists := filepath.Join(t.TempDir(), "manager.yml")
	require.NoError(t, os.WriteFile(lists, []byte("{host-key: [known-hosts, first-use], known-hosts: [a, b], "+
		"instance: ['ssh://a', 'ssh://b'], nats: ['nats://c', 'nats://d']}"), 0o600))
	for _, name := range []string{lists, "../../examples/manager.yml"} {
		require.NoError(t, flagfile.Apply(newManagerCommand().Flags(), name))
	}
}
