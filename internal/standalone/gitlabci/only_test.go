package gitlabci

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The expected results are those of GitLab's Build::Policy.
func TestOnlyAndExceptAreThoseOfGitLab(t *testing.T) {
	main := []Variable{{"CI_COMMIT_BRANCH", "main"}, {"CI_COMMIT_REF_NAME", "main"}}
	tag := []Variable{{"CI_COMMIT_TAG", "v1.2"}, {"CI_COMMIT_REF_NAME", "v1.2"}}
	nightly := append([]Variable{{"CI_PIPELINE_SOURCE", "schedule"}, {"CI_PROJECT_PATH", "a/b"}}, main...)
	request := []Variable{{"CI_PIPELINE_SOURCE", "merge_request_event"}, {"CI_COMMIT_REF_NAME", "main"}}
	pipelines := map[string][]Variable{"main": main, "tag": tag, "nightly": nightly, "request": request, "none": nil}
	for keys, want := range map[string]string{ // the pipelines that have the job
		"only: [main]": "main nightly", "only: tags": "tag", "only: [branches]": "main nightly",
		"only: ['/^v/']": "tag", "only: ['/^MA/i', tags]": "main tag nightly", "only: [schedules]": "nightly",
		"only: [merge_requests]": "request", "only: [merge_requests, main]": "main nightly request",
		"only: [main@a/b]": "main nightly", "only: ['/main/@c/d']": "main", "only: [api, web]": "",
		"except: [main]": "tag", "except: [tags, schedules]": "main",
		"except: {variables: ['$CI_COMMIT_TAG']}":                          "main nightly",
		"only: {refs: [main, tags], variables: ['$CI_COMMIT_TAG', '$NO']}": "tag",
		"only: {variables: ['$CI_COMMIT_REF_NAME']}":                       "main tag nightly", // refs has a default
		"only: {refs: [merge_requests], changes: [docs/*]}":                "request",
		"only: {changes: [src/*]}":                                         "",
		"only: [main, tags], except: {changes: [docs/*]}":                  "",
		"only: [main], except: [schedules]":                                "main",
		"only: {kubernetes: active}":                                       "",
		"":                                                                 "main tag nightly none", // only has a default
	} {
		got := ""
		for _, name := range []string{"main", "tag", "nightly", "request", "none"} {
			notices, _ := told(t, "j: {script: [a], "+keys+"}", Config{
				Predefined: pipelines[name], Changed: func(string) ([]string, error) { return []string{"docs/a"}, nil },
			})
			if notices == "" {
				got += " " + name
				continue
			}
			require.Contains(t, notices, "would not have this job, by its only")
		}
		if want != "" {
			want = " " + want
		}
		require.Equal(t, want, got, keys)
	}
	for text, want := range map[string]string{
		"j: {script: [a], only: [[a]]}":            "ci.yml:1:25: only takes names such as main, tags or merge_requests",
		"j: {script: [a], only: {ref: [a]}}":       `ci.yml:1:25: unknown key "ref", did you mean "refs"?`,
		"j: {script: [a], except: ['/(/']}":        "ci.yml:1:27: except: the regex is not valid",
		"j: {script: [a], only: ['/x']}":           "ci.yml:1:25: only: a regex stands between two slashes",
		"j: {script: [a], only: a, rules: []}":     `ci.yml:1:34: the job "j" has both rules and only or except`,
		"j: {script: [a], only: {variables: [a]}}": "ci.yml:1:37: if: at character 1",
	} {
		require.Contains(t, wrong(text, nil), want, text)
	}
}
