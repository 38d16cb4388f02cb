package githubpipeline_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/githubpipeline"
)

func TestLabelsOfAJobAreThoseThatTheFleetHas(t *testing.T) {
	fleet := []map[string]string{{"gpu": "true", "zone": "a"}, {"arm64": "true", "big": "no"}, nil}
	wanted, unknown := githubpipeline.Labels(
		[]string{"self-hosted", "Linux", "ubuntu-24.04", "gpu", "arm64", "big", "macos-latest", "zone=b"}, fleet)
	require.Equal(t, map[string]string{"gpu": "true", "arm64": "true", "zone": "b"}, wanted)
	require.Equal(t, []string{"big", "macos-latest"}, unknown)
	wanted, unknown = githubpipeline.Labels([]string{"ubuntu-latest"}, []map[string]string{{"ubuntu-latest": "true"}})
	require.Equal(t, map[string]string{"ubuntu-latest": "true"}, wanted)
	require.Empty(t, unknown)
	wanted, unknown = githubpipeline.Labels([]string{"group=big", "group=small"}, []map[string]string{{"group": "big"}})
	require.Equal(t, map[string]string{"group": "big"}, wanted)
	require.Equal(t, []string{"group=small"}, unknown)
}
