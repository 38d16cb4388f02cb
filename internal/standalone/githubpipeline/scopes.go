package githubpipeline

import (
	"slices"

	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
)

// CacheScopes returns the references whose caches a job finds, as with GitHub: its own and the default branch.
func CacheScopes(vars []gitlabci.Variable) (scopes []string) {
	for _, of := range []struct{ name, prefix string }{
		{"CI_COMMIT_TAG", "refs/tags/"}, {"CI_COMMIT_BRANCH", "refs/heads/"}, {"CI_DEFAULT_BRANCH", "refs/heads/"},
	} {
		i := slices.IndexFunc(vars, func(v gitlabci.Variable) bool { return v.Name == of.name && v.Value != "" })
		if i < 0 {
			continue
		}
		if ref := of.prefix + vars[i].Value; !slices.Contains(scopes, ref) {
			scopes = append(scopes, ref)
		}
	}
	return scopes
}
