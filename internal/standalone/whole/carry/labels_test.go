package carry

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLabelsOfAJobAreThoseThatTheFleetHas(t *testing.T) {
	fleet := []map[string]string{{"gpu": "true", "zone": "a"}, {"arm64": "true", "big": "no"}, nil}
	labels := []string{"self-hosted", "Linux", "ubuntu-24.04", "gpu", "arm64", "big", "macos-latest", "zone=a", "disk=b"}
	wanted, notes := RunsOn{Key: "runs-on", Labels: labels, Pairs: true}.Choose(fleet)
	require.Equal(t, map[string]string{"gpu": "true", "arm64": "true", "zone": "a", "disk": "b"}, wanted)
	require.Equal(t, []string{
		`runs-on: no VM of the fleet has the label "big": any VM runs such jobs`,
		`runs-on: no VM of the fleet has the label "macos-latest": any VM runs such jobs`,
	}, notes)
	wanted, notes = RunsOn{Key: "tags", Labels: labels}.Choose(fleet)
	require.Equal(t, map[string]string{"gpu": "true", "arm64": "true", "zone": "a"}, wanted)
	require.Len(t, notes, 3)
	require.Equal(t, `tags: no VM of the fleet has the label "disk=b": any VM runs such jobs`, notes[2])
	wanted, notes = RunsOn{Labels: []string{"group=big", "group=small"}, Pairs: true, Soft: "group"}.Choose(
		[]map[string]string{{"group": "big"}})
	require.Equal(t, map[string]string{"group": "big"}, wanted)
	require.Len(t, notes, 1)
	wanted, notes = RunsOn{Labels: []string{"ubuntu-latest"}}.Choose([]map[string]string{{"ubuntu-latest": "true"}})
	require.Equal(t, map[string]string{"ubuntu-latest": "true"}, wanted)
	require.Empty(t, notes)
}
