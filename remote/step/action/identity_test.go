package action

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
)

func TestIdentityOfAWorkflow(t *testing.T) {
	vars := []engine.Variable{
		{Key: "GITHUB_REPOSITORY", Value: "o/r"}, {Key: "CI_COMMIT_SHA", Value: "c0"}, {Key: "CI_COMMIT_TAG", Value: "v1"},
	}
	for _, c := range []struct {
		file, repository, commit string
		vars                     []engine.Variable
		want                     map[string]any
	}{
		{"/tmp/p/.github/workflows/a/x.yml", "", "", vars, map[string]any{
			"workflow_repository": "o/r", "workflow_file_path": ".github/workflows/a/x.yml", "workflow_sha": "c0",
			"workflow_ref": "o/r/.github/workflows/a/x.yml@refs/tags/v1",
		}},
		{"ci.yml", "", "", vars[:1], map[string]any{
			"workflow_repository": "o/r", "workflow_file_path": ".github/workflows/ci.yml", "workflow_sha": "",
			"workflow_ref": "",
		}},
		{"a/b/.github/workflows/x.yml@main", "a/b@main", "c1", vars, map[string]any{
			"workflow_repository": "a/b", "workflow_file_path": ".github/workflows/x.yml", "workflow_sha": "c1",
			"workflow_ref": "a/b/.github/workflows/x.yml@main",
		}},
	} {
		require.Equal(t, c.want, Identity(c.file, c.repository, c.commit, c.vars), c.file)
	}
}
