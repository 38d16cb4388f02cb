package githubpipeline_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/githubpipeline"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// Symptom: a run for a pull request, or for a tag that a variable named, wrote the caches of the branch.
func TestCachesAreThoseOfTheReferenceOfTheRun(t *testing.T) {
	src := standalone.Source{
		Name: "w.yml", Format: standalone.GitHub, WorkDir: t.TempDir(),
		Text: []byte("on: [push, pull_request]\njobs: {a: {steps: [{run: x}]}}\n"),
		Predefined: []gitlabci.Variable{
			{Name: "CI_COMMIT_SHA", Value: "0123"},
			{Name: "CI_COMMIT_BRANCH", Value: "topic"},
			{Name: "CI_DEFAULT_BRANCH", Value: "main"},
		},
	}
	require.Equal(t, []string{"refs/heads/topic", "refs/heads/main"}, githubpipeline.CacheScopes(src))
	pull := src
	pull.Event = "pull_request"
	require.Equal(t, []string{"refs/pull/1/merge", "refs/heads/main"}, githubpipeline.CacheScopes(pull))
	tag := src
	tag.Vars = []engine.Variable{{Key: "GITHUB_REF", Value: "refs/tags/v1"}}
	require.Equal(t, []string{"refs/tags/v1", "refs/heads/main"}, githubpipeline.CacheScopes(tag))
	other := standalone.Source{Name: "job.yml", Predefined: src.Predefined}
	require.Equal(t, []string{"refs/heads/topic", "refs/heads/main"}, githubpipeline.CacheScopes(other))
}
