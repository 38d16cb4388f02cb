package githubpipeline

import (
	"cmp"
	"slices"

	"github.com/stepmux/stepmux/internal/standalone"
)

// CacheScopes returns the references of git whose caches the jobs of a workflow find, as with GitHub: its own, the
// branch into which a pull request goes, and the default branch.
func CacheScopes(src standalone.Source) (scopes []string) {
	known := map[string]string{}
	set := func(name, value string) { known[name] = cmp.Or(known[name], value) }
	if vars, err := Variables(src); err == nil { // a workflow that cannot be read runs nothing
		for _, v := range vars {
			set(v.Key, v.Value)
		}
	}
	for _, v := range src.Predefined {
		set(v.Name, v.Value)
	}
	if known["GITHUB_REF"] != "" {
		known["CI_COMMIT_TAG"], known["CI_COMMIT_BRANCH"] = "", ""
	}
	for _, of := range []struct{ name, prefix string }{
		{"GITHUB_REF", ""},
		{"CI_COMMIT_TAG", "refs/tags/"},
		{"CI_COMMIT_BRANCH", "refs/heads/"},
		{"GITHUB_BASE_REF", "refs/heads/"},
		{"CI_DEFAULT_BRANCH", "refs/heads/"},
	} {
		if ref := of.prefix + known[of.name]; known[of.name] != "" && !slices.Contains(scopes, ref) {
			scopes = append(scopes, ref)
		}
	}
	return scopes
}
