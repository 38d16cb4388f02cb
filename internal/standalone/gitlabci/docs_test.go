package gitlabci

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// samples are files with one keyword each; the others are keys of the job j with the value x.
var samples = map[string]string{
	"default": "default: {tags: [x]}\n", "include": "include: a.yml\n", "spec": "spec: {inputs: {a: {default: b}}}\n---\n",
	"stages": "stages: [test]\n", "workflow": "workflow: {rules: [{when: always}]}\n", "variables": "variables: {A: b}\n",
	"include:local": "include: {local: a.yml}\n", "include:project": "include: {project: a/b, file: c}\n",
	"include:remote": "include: {remote: 'https://x.test/a'}\n", "include:template": "include: {template: A}\n",
	"include:component": "include: {component: x.test/a@1}\n", "include:artifact": "include: {artifact: a, job: b}\n",
	"include:rules":  "include: {local: a.yml, rules: [{when: always}]}\n",
	"include:inputs": "include: {local: b.yml, inputs: {a: b}}\n",
	"include:file":   "include: {local: a.yml, file: a}\n", "include:ref": "include: {local: a.yml, ref: a}\n",
	"include:job": "include: {local: a.yml, job: a}\n", "include:integrity": "include: {local: a.yml, integrity: a}\n",
	"include:cache": "include: {local: a.yml, cache: 1h}\n",
	"script":        "", "before_script": "before_script: [x]\n", "after_script": "after_script: [x]\n",
	"setup": "default: {setup: [{script: x}]}\n", "run": "k: {run: [{script: x}]}\n",
	"teardown": "default: {teardown: [{script: x}]}\n",
	"extends":  ".k: {script: [x]}\nk: {extends: .k}\n", "inherit": "k: {script: [x], inherit: {default: false}}\n",
	"parallel": "k: {script: [x], parallel: 2}\n", "rules": "k: {script: [x], rules: [{if: $CI}]}\n",
	"trigger":  "k: {trigger: x}\n",
	"rules:if": "", "rules:changes": "", "rules:exists": "", "rules:when": "", "rules:allow_failure": "",
	"rules:variables": "",
	"rules:start_in":  "", "rules:needs": "", "rules:interruptible": "", "rules:auto_cancel": "",
}

// docs/job-as-steps.md says of each keyword whether it works, is noted, or is refused.
func TestTheTableOfKeywordsIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../../docs/job-as-steps.md")
	require.NoError(t, err)
	_, part, _ := strings.Cut(string(page), "## Keywords of a .gitlab-ci.yml")
	part, _, _ = strings.Cut(part, "\n## ")
	listed := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\| (\\w+) \\|").FindAllStringSubmatch(part, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			require.NotContains(t, listed, name[1])
			listed[name[1]] = row[2]
		}
	}
	var all []string
	add := func(prefix string, names ...string) {
		for _, name := range names {
			if !slices.Contains(all, prefix+name) {
				all = append(all, prefix+name)
			}
		}
	}
	add("", globals...)
	add("", jobKeys...)
	add("", defaults...)
	add("rules:", slices.Concat(jobRuleKeys, workflowRuleKeys, includeRuleKeys)...)
	add("include:", slices.Concat([]string{"local"}, kinds, otherIncludeKeys)...)
	var names []string
	for name := range listed {
		names = append(names, name)
	}
	require.ElementsMatch(t, all, names)

	for name, class := range listed {
		sample, own := samples[name]
		text := sample + "j: {script: [x]}\n"
		if !own {
			text = "j: {script: [x], " + name + ": x}\n"
		}
		got := "works"
		file, err := Read("ci.yml", []byte(text), project{
			"a.yml": "variables: {}", "b.yml": "spec: {inputs: {a: }}\n---\nvariables: {}\n",
		}.config())
		require.NoError(t, err, text)
		for _, job := range file.Jobs() {
			names, err := file.Builds(job)
			require.NoError(t, err, text)
			j, err := file.Job(names[0])
			require.NoError(t, err, text)
			_, last, _ := strings.Cut(name, ":")
			if notices := strings.Join(j.Notices, " "); strings.Contains(notices, "not done here") &&
				(strings.Contains(notices, name) || strings.Contains(notices, last)) {
				got = "noted"
			}
		}
		require.Equal(t, class, got, name)
	}
}

// docs/pipelines.md says of each keyword whether it works in a pipeline, and which test shows it.
func TestTheTableOfPipelinesIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../../docs/pipelines.md")
	require.NoError(t, err)
	_, part, _ := strings.Cut(string(page), "## Keywords")
	part, _, _ = strings.Cut(part, "\n## ")
	class := map[string]string{}
	rows := regexp.MustCompile("(?m)^\\| (`[^|]*`) \\| (\\w+) \\| ([^|]*)\\| (.*) \\|$").FindAllStringSubmatch(part, -1)
	require.Len(t, rows, strings.Count(part, "\n| `"), "a row has another form")
	for _, row := range rows {
		require.Contains(t, []string{"works", "differs", "notice"}, row[2], row[1])
		require.True(t, row[2] != "differs" || strings.TrimSpace(row[3]) != "", "%s: how does it differ?", row[1])
		require.Contains(t, row[4], ".Test", row[1])
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			require.NotContains(t, class, name[1])
			class[name[1]] = row[2]
		}
	}
	all := map[string]bool{}
	for prefix, names := range map[string][]string{
		"": slices.Concat(globals, jobKeys, defaults), "rules:": slices.Concat(jobRuleKeys, []string{"auto_cancel"}),
		"workflow:": {"auto_cancel", "name", "rules"}, "include:": slices.Concat([]string{"local", "rules"}, kinds,
			otherIncludeKeys), "only:": onlyKeys, "variables:": variableKeys, "needs:": needKeys,
		"artifacts:": artifactKeys, "cache:": cacheKeys, "cache:key:": cacheKeyKeys, "trigger:": triggerKeys,
		"retry:": {"max", "when", "exit_codes"}, "allow_failure:": {"exit_codes"}, "parallel:": {"matrix"},
		"inherit:": {"default", "variables"},
	} {
		for _, name := range names {
			all[prefix+name] = true
		}
	}
	for name := range all {
		require.Contains(t, class, name)
	}
	for name := range class {
		require.Contains(t, all, name)
	}
	for _, name := range jobKeys { // those that have no effect, and a note
		isNoted := slices.Contains(ignored, name) && !slices.Contains(ofPipelines, name)
		require.Equal(t, isNoted, class[name] == "notice", name)
		if isNoted {
			p := planOf(t, "j: {script: [x], "+name+": {a: b}}\n", Config{})
			require.Contains(t, strings.Join(p.Jobs[0].Notices, "\n"), name)
		}
	}
}
