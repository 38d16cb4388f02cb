package githubpipeline

import (
	"slices"

	"github.com/stepmux/stepmux/internal/standalone"
)

// CacheScopes returns the references of git whose caches the jobs of a workflow find, as with GitHub: its own and the
// default branch.
func CacheScopes(src standalone.Source) (scopes []string) {
	for _, of := range []struct{ name, prefix string }{
		{"CI_COMMIT_TAG", "refs/tags/"}, {"CI_COMMIT_BRANCH", "refs/heads/"}, {"CI_DEFAULT_BRANCH", "refs/heads/"},
	} {
		for _, v := range src.Predefined {
			if ref := of.prefix + v.Value; v.Name == of.name && v.Value != "" && !slices.Contains(scopes, ref) {
				scopes = append(scopes, ref)
			}
		}
	}
	return scopes
}
