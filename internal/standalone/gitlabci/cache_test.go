package gitlabci

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCachesOfAJob(t *testing.T) {
	usual := func(c Cache) Cache {
		if c.When == "" {
			c.When = "on_success"
		}
		c.Pull, c.Push = true, true
		return c
	}
	for text, want := range map[string][]Cache{
		"{paths: [a, $CI_PROJECT_DIR/b]}": {usual(Cache{Key: "default", Paths: []string{"a", "b"}})},
		"{key: $A-x, untracked: true, unprotect: true, when: always}": {
			usual(Cache{Key: "1-x", Untracked: true, When: "always"}),
		},
		"{key: {files: [x, y], prefix: $A}, paths: [a]}": {
			usual(Cache{Key: "1", Files: []string{"x", "y"}, Paths: []string{"a"}}),
		},
		"{key: {files_commits: x}, paths: [a]}": {usual(Cache{Files: []string{"x"}, Paths: []string{"a"}})},
		"{paths: [a], fallback_keys: [$A, b, '']}": {
			usual(Cache{Key: "default", Paths: []string{"a"}, Fallback: []string{"1", "b"}}),
		},
		"{key: '', paths: [a], policy: $POLICY}": {
			{Key: "default", Paths: []string{"a"}, When: "on_success", Pull: true},
		},
		"{paths: [a], policy: push}": {{Key: "default", Paths: []string{"a"}, When: "on_success", Push: true}},
		"[{key: a, paths: [a]}, {key: none}, {key: b, paths: [b]}]": {
			usual(Cache{Key: "a", Paths: []string{"a"}}), usual(Cache{Key: "b", Paths: []string{"b"}}),
		},
		"{}": nil, "[]": nil, "null": nil,
	} {
		p := planOf(t, "j: {script: [x], variables: {A: 1, POLICY: pull}, cache: "+text+"}\n", Config{})
		j, err := p.Job(0, nil)
		require.NoError(t, err, text)
		require.Equal(t, want, j.Caches, text)
		require.Empty(t, p.Jobs[0].Notices)
	}
	p := planOf(t, "default: {cache: {paths: [a]}}\nj: {script: [x]}\nk: {script: [x], cache: {paths: [b]}}\n"+
		"l: {script: [x], inherit: {default: false}}\n", Config{})
	for i, want := range [][]string{{"a"}, {"b"}, nil} {
		j, err := p.Job(i, nil)
		require.NoError(t, err)
		var got []string
		for _, c := range j.Caches {
			got = append(got, c.Paths...)
		}
		require.Equal(t, want, got)
	}
	for text, want := range map[string]string{
		"x":                                   "ci.yml:1:25: cache must be a mapping with key and paths",
		"{path: [a]}":                         `ci.yml:1:26: unknown key "path", did you mean "paths"?`,
		"[{}, {}, {}, {}, {}]":                "ci.yml:1:42: a job has at most 4 caches",
		"{paths: [a], key: {prefix: x}}":      "ci.yml:1:43: cache: key needs files",
		"{paths: [a], key: {files: [a,b,c]}}": "ci.yml:1:51: cache: key: files is a list of 1 or 2 files",
		"{paths: [a], key: [a]}":              "ci.yml:1:43: cache: key must be a text",
		"{paths: [a], policy: both}":          "ci.yml:1:46: cache: policy is pull, push or pull-push",
		"{paths: [a], when: never}":           "ci.yml:1:44: cache: when is on_success, on_failure or always",
		"{untracked: x}":                      "ci.yml:1:37: cache: untracked is true or false",
		"{paths: [a], fallback_keys: [a, b, c, d, e, f]}": "ci.yml:1:53: cache has at most 5 fallback_keys",
	} {
		file, err := Read("ci.yml", []byte("j: {script: [x], cache: "+text+"}\n"), Config{})
		require.NoError(t, err)
		_, err = file.Pipeline()
		require.ErrorContains(t, err, want)
	}
}

// As with GitLab, a job without rules is for branches and tags, unless the workflow has rules.
func TestAJobWithoutRulesIsNotForAMergeRequest(t *testing.T) {
	const jobs = "plain: {script: [x]}\nruled: {script: [x], rules: [{when: on_success}]}\n" +
		"mr: {script: [x], only: [merge_requests]}\n"
	cfg := Config{Predefined: []Variable{{"CI_PIPELINE_SOURCE", "merge_request_event"}, {"CI_COMMIT_REF_NAME", "b"}}}
	names := func(p *Pipeline) (list []string) {
		for _, j := range p.Jobs {
			list = append(list, j.Name)
		}
		return list
	}
	require.Equal(t, []string{"ruled", "mr"}, names(planOf(t, jobs, cfg)))
	require.Equal(t, []string{"plain", "ruled", "mr"},
		names(planOf(t, "workflow: {rules: [{when: always}]}\n"+jobs, cfg)))
	cfg.Predefined[0].Value = "push"
	require.Equal(t, []string{"plain", "ruled"}, names(planOf(t, jobs, cfg)))
}
