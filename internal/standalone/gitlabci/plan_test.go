package gitlabci

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/pipeline"
)

// planOf returns the pipeline of a valid file.
func planOf(t testing.TB, text string, cfg Config) *Pipeline {
	t.Helper()
	file, err := Read("ci.yml", []byte(text), cfg)
	require.NoError(t, err)
	p, err := file.Pipeline()
	require.NoError(t, err)
	return p
}

// edges returns the needs of a job of a pipeline: names of jobs, with + if it gets their artifacts, and "stages" if it
// waits for all earlier stages.
func edges(p *Pipeline, name string) string {
	i := slices.IndexFunc(p.Jobs, func(j *Planned) bool { return j.Name == name })
	if i < 0 {
		return "not there"
	}
	n := p.Graph.Nodes[i]
	var list []string
	told := func(name string, edge pipeline.Edge) {
		if edge&pipeline.Files != 0 {
			name += "+"
		}
		if edge&pipeline.Control == 0 {
			name = "(" + name + ")"
		}
		list = append(list, name)
	}
	if n.After != 0 {
		told("stages", n.After)
	}
	for _, need := range n.Needs {
		told(need.Name, need.Edge)
	}
	return strings.Join(list, " ")
}

// node returns the node of a job.
func node(t testing.TB, p *Pipeline, name string) pipeline.Node {
	t.Helper()
	for _, n := range p.Graph.Nodes {
		if n.Name == name {
			return n
		}
	}
	require.Fail(t, "there is no job "+name)
	return pipeline.Node{}
}

const graphFile = `
stages: [build, test, deploy]
default: {retry: 1}
.s: {script: [x]}
deploy: {extends: .s, stage: deploy, dependencies: [build]}
build: {extends: .s, stage: build, artifacts: {paths: [out]}}
lint: {extends: .s, needs: []}
unit: {extends: .s, parallel: 2}
e2e: {extends: .s, parallel: {matrix: [{OS: [linux, mac], ARCH: [arm, 64]}]}}
fast: {extends: .s, needs: [build, {job: lint, artifacts: false}, {job: gone, optional: true}]}
some:
  extends: .s
  needs: [{job: e2e, parallel: {matrix: [{OS: linux, ARCH: [arm]}]}}, "unit 2/2", {pipeline: $UP, job: x}]
all: {extends: .s, stage: deploy, needs: [unit, ~, build], dependencies: [build]}
none: {extends: .s, stage: deploy, dependencies: []}
first: {extends: .s, stage: .pre}
last: {extends: .s, stage: .post}
each:
  extends: .s
  parallel: {matrix: [{OS: [linux, mac]}]}
  needs: [{job: e2e, parallel: {matrix: [{ARCH: 64, OS: ["x", "$[[ matrix.OS ]]"]}]}}]
by-rule: {extends: .s, stage: deploy, rules: [{if: $A, needs: [lint]}], needs: [build]}
out: {extends: .s, rules: [{if: $GONE}]}
tagged: {extends: .s, only: [tags]}
`

func TestNeedsInAllTheirForms(t *testing.T) {
	p := planOf(t, graphFile, Config{
		Given: []Variable{{"A", "1"}}, Predefined: []Variable{{"CI_COMMIT_REF_NAME", "main"}},
	})
	for name, want := range map[string]string{
		"build": "stages+", "lint": "", "unit 1/2": "stages+", "deploy": "stages (build+)", "none": "stages",
		"fast": "build+ lint", "some": "e2e: [linux, arm]+ unit 2/2+", "all": "unit 1/2 unit 2/2 build+",
		"last": "stages+", "by-rule": "lint+",
		"each: [mac]": "e2e: [mac, 64]+", "each: [linux]": "e2e: [linux, 64]+",
	} {
		require.Equal(t, want, edges(p, name), name)
	}
	var names []string
	for _, j := range p.Jobs {
		names = append(names, j.Stage+"/"+j.Name)
	}
	require.Equal(t, []string{
		".pre/first", "build/build", "test/lint", "test/unit 1/2", "test/unit 2/2", "test/e2e: [linux, arm]",
		"test/e2e: [linux, 64]", "test/e2e: [mac, arm]", "test/e2e: [mac, 64]", "test/fast", "test/some",
		"test/each: [linux]", "test/each: [mac]", "deploy/deploy",
		"deploy/all", "deploy/none", "deploy/by-rule", ".post/last",
	}, names)
	require.Equal(t, []Left{{"out", "out", "test", "rules"}, {"tagged", "tagged", "test", "only and except"}}, p.Left)
	require.True(t, node(t, p, "fast").Strict)
	require.False(t, node(t, p, "none").Strict)
	require.Equal(t, "ci.yml:6:1", node(t, p, "build").Place)
	i := slices.IndexFunc(p.Jobs, func(j *Planned) bool { return j.Name == "some" })
	require.Contains(t, strings.Join(p.Jobs[i].Notices, "\n"), "ci.yml:13:83: a need of another pipeline")
}

// The artifacts of a job without needs come from all earlier stages.
func TestArtifactsReachTheJobsThatTheDocumentsSay(t *testing.T) {
	p := planOf(t, graphFile, Config{Given: []Variable{{"A", "1"}}})
	plan, err := pipeline.New(p.Graph)
	require.NoError(t, err)
	for name, want := range map[string]string{
		"build": "first", "lint": "", "unit 1/2": "first, build", "deploy": "build", "none": "", "fast": "build",
		"all": "build",
	} {
		i, ok := plan.Find(name)
		require.True(t, ok)
		var got []string
		for j := range plan.Sources(i, pipeline.Files) {
			got = append(got, p.Jobs[j].Name)
		}
		require.Equal(t, want, strings.Join(got, ", "), name)
	}
}

func TestWhenRetryAndFailuresOfJobs(t *testing.T) {
	each := pipeline.Match{Any: true}
	for text, want := range map[string]pipeline.Node{
		"":                                    {},
		"when: always":                        {When: pipeline.Always},
		"when: on_failure":                    {When: pipeline.OnFailure},
		"allow_failure: true":                 {MayFail: each, Optional: true},
		"allow_failure: {exit_codes: 3}":      {MayFail: pipeline.Match{ExitCodes: []int{3}}},
		"allow_failure: {exit_codes: [3, 4]}": {MayFail: pipeline.Match{ExitCodes: []int{3, 4}}},
		"when: manual":                        {Manual: true, Optional: true, MayFail: each},
		"when: manual, allow_failure: false":  {Manual: true},
		"rules: [{when: manual}]":             {Manual: true},
		"rules: [{when: manual, allow_failure: true}]":                       {Manual: true, Optional: true, MayFail: each},
		"rules: [{if: $A, when: never}, {when: delayed, start_in: 2 hours}]": {Delay: 2 * time.Hour},
		"rules: [{allow_failure: false}], allow_failure: true":               {},
		"when: delayed, start_in: '90'":                                      {Delay: 90 * time.Second},
		"retry: 2":                                                           {Retries: 2, RetryOn: each},
		"retry: {max: 1}":                                                    {Retries: 1, RetryOn: each},
		"retry: {max: 1, when: always}": {
			Retries: 1, RetryOn: pipeline.Match{Any: true, Reasons: []string{"always"}},
		},
		"retry: {max: 1, exit_codes: [7, 8]}": {Retries: 1, RetryOn: pipeline.Match{ExitCodes: []int{7, 8}}},
		"retry: {max: 2, when: [script_failure], exit_codes: 7}": {
			Retries: 2, RetryOn: pipeline.Match{ExitCodes: []int{7}, Reasons: []string{"script_failure"}},
		},
		"resource_group: prod-$N": {Groups: []string{"prod-1"}},
	} {
		p := planOf(t, "j: {script: [x], variables: {N: 1}, "+text+"}\n", Config{})
		got := p.Graph.Nodes[0]
		want.Name, want.Place, want.Stage, want.After = "j", "ci.yml:1:1", 2, pipeline.Control|given
		require.Equal(t, want, got, text)
		if len(got.Groups) > 0 {
			require.Equal(t, []pipeline.Group{{Name: "prod-1", Max: 1}}, p.Graph.Groups)
		}
	}
}

func TestKeysOfAPlannedJob(t *testing.T) {
	p := planOf(t, `
workflow: {name: "$KIND of $REF", rules: [{if: $REF, variables: {KIND: run}}]}
default: {timeout: 1h 30m, tags: [none]}
.t: {tags: [docker, [big]]}
j:
  tags: ["$OS-$REF", $UNKNOWN, !reference [.t, tags], zone=a]
  variables: {OS: linux, DIR: out, HERE: $CI_PROJECT_DIR/d}
  script: [x]
  artifacts:
    paths: ["$DIR/*.txt", b, "$CI_PROJECT_DIR/c/", "${HERE}", $CI_PROJECT_DIR]
    exclude: ["**/*.tmp"]
    untracked: true
    when: always
    expire_in: 1 week
    reports: {dotenv: "$DIR.env", junit: [a.xml, b.xml], sast: x.json}
  environment: prod
  cache: {paths: [c]}
`, Config{Given: []Variable{{"REF", "main"}}})
	j, err := p.Job(0, nil)
	require.NoError(t, err)
	require.Equal(t, Artifacts{
		Paths: []string{"out/*.txt", "b", "c/", "d", "."}, Exclude: []string{"**/*.tmp"}, Untracked: true, When: "always",
		Dotenv: []string{"out.env"}, JUnit: []string{"a.xml", "b.xml"},
	}, j.Artifacts)
	require.Equal(t, []string{"linux-main", "$UNKNOWN", "docker", "big", "zone=a"}, p.Jobs[0].Tags)
	require.Equal(t, []any{"run of main", 90 * time.Minute, "on_success"},
		[]any{p.Name, p.Jobs[0].Timeout, p.Jobs[0].When})
	require.Equal(t, []string{
		"not done here, but by a server or runner: environment",
		"artifacts not done here, but by a server: reports:sast",
	}, j.Notices)
}

// Reported variables override those of the file, and given ones override both.
func TestReportedVariablesReachAJob(t *testing.T) {
	p := planOf(t, `
a: {stage: build, script: [x], artifacts: {reports: {dotenv: a.env}}}
b: {script: [echo "$URL"], variables: {URL: none, LINK: "$URL/x", BOTH: file}}
`, Config{Given: []Variable{{"BOTH", "given"}}})
	reported, err := ParseDotenv([]byte("URL=old\r\nURL = https://x.test/?a=b \nBOTH=reported\n"))
	require.NoError(t, err)
	j, err := p.Job(1, reported)
	require.NoError(t, err)
	got := values(j)
	require.Equal(t, []string{"https://x.test/?a=b", "https://x.test/?a=b/x", "given"},
		[]string{got["URL"], got["LINK"], got["BOTH"]})
	require.Equal(t, "echo \"$URL\"", script(j))
	j, err = p.Job(1, nil)
	require.NoError(t, err)
	require.Equal(t, "none/x", values(j)["LINK"])

	for text, want := range map[string]string{
		"A=1\n\nB=2": "line 2 is not NAME=VALUE", "# x": "line 1 is not NAME=VALUE", "1A=1": "line 1: the name is not valid",
		"A=\x00": "line 1: the value has a NUL byte", "A=\xff": "not valid UTF-8",
		strings.Repeat("A=1\n", 2000): "more than 5120 bytes",
	} {
		_, err := ParseDotenv([]byte(text))
		require.ErrorContains(t, err, want)
	}
}

// A job that the caller skips may be one that cannot be read, such as one whose base is in a file from elsewhere.
func TestSkippedJobsMayHaveMistakes(t *testing.T) {
	const text = `
include: {project: group/tools, file: base.yml}
a: {extends: .gone, script: [x]}
b: {script: [x], needs: [a]}
c: {script: [x], needs: [{job: b}], dependencies: [a]}
d: {stage: test}
`
	file, err := Read("ci.yml", []byte(text), project{}.config())
	require.NoError(t, err)
	_, err = file.Pipeline()
	require.ErrorContains(t, err, `there is no job ".gone"`)
	cfg := project{}.config()
	cfg.Skip = []string{"a", "b", "d"}
	p := planOf(t, text, cfg)
	require.Equal(t, []Left{{"a", "a", "", NotChosen}, {"d", "d", "", NotChosen}}, p.Left, "b has no mistake")
	require.Equal(t, []string{"b", "c"}, []string{p.Jobs[0].Name, p.Jobs[1].Name})
	require.Equal(t, "", edges(p, "b"))
}

// A child pipeline may be of files in the directory of --includes. Without it, the job can be left out.
func TestChildPipelinesOfFilesFromElsewhere(t *testing.T) {
	const text = `
p: {trigger: {include: [{project: group/tools, file: child.yml}]}}
r: {trigger: {include: [{remote: 'https://ci.example/r.yml'}, own.yml]}}
u: {trigger: {include: https://ci.example/r.yml}}
`
	own := project{"own.yml": "o: {script: [x]}\n"}
	cfg := own.config()
	cfg.Other = project{
		"group/tools/child.yml": "include: {local: more.yml}\nc: {script: [x]}\n",
		"group/tools/more.yml":  "m: {script: [x]}\n", "ci.example/r.yml": "r: {script: [x]}\n",
	}.open
	names := func(p *Pipeline) (list []string) {
		for _, j := range p.Jobs {
			list = append(list, j.Name)
		}
		slices.Sort(list)
		return list
	}
	p := planOf(t, text, cfg)
	require.Equal(t, []string{"c", "m"}, names(p.Jobs[0].Trigger.Child))
	require.Equal(t, []string{"o", "r"}, names(p.Jobs[1].Trigger.Child))
	require.Equal(t, []string{"r"}, names(p.Jobs[2].Trigger.Child))

	p = planOf(t, text, own.config())
	require.Contains(t, p.Jobs[0].Trigger.Other, "its files are elsewhere; save them in a directory, and name it by --inc")
	require.Equal(t, []string{"o"}, names(p.Jobs[1].Trigger.Child), "the others are left out")
	require.Contains(t, p.Jobs[2].Trigger.Other, "--includes")
}

func TestChildPipelinesOfFilesOfTheProject(t *testing.T) {
	files := project{
		"child.yml": "spec: {inputs: {what: {default: x}}}\n---\nc: {script: ['echo $[[ inputs.what ]]'], rules: [{if: " +
			"$CI_PIPELINE_SOURCE == \"parent_pipeline\" && $MINE == \"job\" && $TOP == \"file\"}]}\n",
		"more.yml": "d: {stage: deploy, script: [x], needs: [c]}\n",
		"deep.yml": "t: {trigger: {include: deep.yml}}\n",
	}
	p := planOf(t, `
variables: {TOP: file}
t:
  variables: {MINE: job}
  trigger: {include: [{local: child.yml, inputs: {what: y}}, more.yml], strategy: depend}
other: {trigger: group/project}
made: {trigger: {include: [{artifact: x.yml, job: t}]}}
plain: {trigger: {include: child.yml, forward: {yaml_variables: false}}}
`, files.config())
	require.Len(t, p.Jobs, 4)
	child := p.Jobs[0].Trigger.Child
	require.True(t, p.Jobs[0].Trigger.Depend)
	require.Equal(t, "c+", edges(child, "d"))
	j, err := child.Job(0, nil)
	require.NoError(t, err)
	require.Equal(t, "echo y", script(j))
	require.Equal(t, `project "group/project"`, p.Jobs[1].Trigger.Other)
	require.True(t, p.Jobs[2].Trigger.Made)
	made, err := p.Made(2, []Variable{{"SAID", "b"}}, func(job, path string) ([]byte, error) {
		require.Equal(t, []string{"t", "x.yml"}, []string{job, path})
		return []byte("m: {script: ['echo made'], rules: [{if: $TOP}]}\n"), nil
	})
	require.NoError(t, err)
	require.Equal(t, "m", made.Jobs[0].Name)
	_, err = p.Made(2, nil, func(string, string) ([]byte, error) { return nil, fs.ErrNotExist })
	require.ErrorContains(t, err, `include: read "x.yml": file does not exist`)
	require.Empty(t, p.Jobs[3].Trigger.Child.Jobs)
	require.Equal(t, []Left{{"c", "c", "test", "rules"}}, p.Jobs[3].Trigger.Child.Left)
	require.True(t, p.Graph.Nodes[0].Free)
	require.Empty(t, p.Jobs[0].Notices)

	file, err := Read("ci.yml", []byte("t: {trigger: {include: deep.yml}}\n"), files.config())
	require.NoError(t, err)
	_, err = file.Pipeline()
	require.ErrorContains(t, err, "child pipelines start each other more than 2 deep")
}

func TestAPipelineThatRulesMakeEmpty(t *testing.T) {
	p := planOf(t, "workflow: {rules: [{if: $GONE}]}\nj: {script: [x]}\n", Config{})
	require.Equal(t, "workflow:rules", p.Out)
	require.Empty(t, p.Jobs)
	p = planOf(t, "j: {script: [x], stage: .post}\n", Config{})
	require.Empty(t, p.Jobs)
	require.Equal(t, []Left{{"j", "j", ".post", "the only jobs are in .pre and .post"}}, p.Left)
	p = planOf(t, "workflow: {rules: [{when: always}]}\nj: {script: [x], rules: [{changes: [a.go]}]}\n",
		Config{Changed: func(string) ([]string, error) { return []string{"b.go"}, nil }})
	require.Equal(t, []Left{{"j", "j", "test", "rules"}}, p.Left)
}

func TestMistakesOfAPipelineHaveAPlace(t *testing.T) {
	const base = "a: {script: [x], stage: build}\nb: {script: [x], stage: deploy}\n" +
		"out: {script: [x], rules: [{if: $GONE}]}\n"
	for _, c := range [][2]string{ // the text, and the error
		{"j: {script: [x], needs: [b]}", `ci.yml:4:26: the job "j" needs "b", which is in a later stage`},
		{"j: {script: [x], when: delayed, start_in: 8 days}", "ci.yml:4:43: start_in is at most a week"},
		{"j: {script: [x], needs: [gone]}", `ci.yml:4:26: the job "j" needs "gone", and there is no such job`},
		{
			"j: {script: [x], needs: [out]}",
			`ci.yml:4:26: the job "j" needs "out", which is not in this pipeline, by its rules`,
		},
		{
			"j: {script: [x], needs: [j]}",
			`ci.yml:4:1: the job needs itself, directly or by others: "j" needs "j"`,
		},
		{"j: {script: [x], needs: a}", `ci.yml:4:25: needs must be a list of jobs, not a text`},
		{
			"j: {script: [x], needs: [{artifacts: 1}]}",
			`ci.yml:4:38: artifacts of needs is true or false`,
		},
		{"j: {script: [x], needs: [{artifacts: true}]}", `ci.yml:4:26: an item of needs is the name of a job`},
		{"j: {script: [x], needs: [{jop: a}]}", `ci.yml:4:27: `},
		{
			"j: {script: [x], needs: [{job: a, parallel: {matrix: [{A: b}]}}]}",
			`needs builds of the job "a", and its 1 build have other values`,
		},
		{
			"j: {script: [x], dependencies: [b]}",
			`ci.yml:4:33: dependencies of the job "j": the job "b" is in no earlier stage`,
		},
		{
			"j: {script: [x], dependencies: [gone]}",
			`ci.yml:4:33: dependencies of the job "j": there is no job "gone"`,
		},
		{
			"j: {script: [x], needs: [{job: a, parallel: {matrix: [{A: '$[[ matrix.A ]]'}]}}]}",
			`needs builds of the job "a", and its 1 build have other values`,
		},
		{
			"c: {script: [x], parallel: {matrix: [{A: 1}]}}\n" +
				"j: {script: [x], needs: [{job: c, parallel: {matrix: [{A: '$[[ matrix.A ]]'}]}}]}",
			`ci.yml:5:59: $[[ ]] takes matrix.NAME here, with a name of the matrix of the job "j"`,
		},
		{"j: {script: [x], when: delayed}", `ci.yml:4:1: the job "j" is delayed and has no start_in`},
		{"j: {script: [x], when: delayed, start_in: x}", `ci.yml:4:43: start_in: write a time such as`},
		{"j: {script: [x], when: sometimes}", `ci.yml:4:24: when is one of`},
		{"workflow: {auto_cancel: x}\nj: {script: [x]}", `ci.yml:4:25: auto_cancel is a mapping with on_new_commit or`},
		{
			"workflow: {auto_cancel: {on_new_commit: x}}\nj: {script: [x]}",
			`ci.yml:4:41: on_new_commit is one of conservative, interruptible, none`,
		},
		{
			"workflow: {auto_cancel: {on_job_failure: some}}\nj: {script: [x]}",
			`ci.yml:4:42: on_job_failure is one of none, all`,
		},
		{"j: {script: [x], interruptible: maybe}", `ci.yml:4:33: interruptible is true or false`},
		{"j: {script: [x], retry: 3}", `ci.yml:4:25: retry must be a number from 0 to 2`},
		{"j: {script: [x], retry: {max: x}}", `ci.yml:4:31: retry must be a whole number, not a text`},
		{"j: {script: [x], retry: {mix: 1}}", `ci.yml:4:26: `},
		{
			"j: {script: [x], allow_failure: 3}",
			`ci.yml:4:33: allow_failure is true, false or a mapping with exit_codes`,
		},
		{"j: {script: [x], artifacts: [a]}", `ci.yml:4:29: artifacts must be a mapping with paths or reports`},
		{"j: {script: [x], artifacts: {path: a}}", `ci.yml:4:30: `},
		{
			"j: {script: [x], artifacts: {when: never}}",
			`ci.yml:4:36: artifacts: when is on_success, on_failure or always`,
		},
		{"j: {script: [x], timeout: 5 parsecs}", `ci.yml:4:27: timeout: write a time such as`},
		{
			"j: {trigger: {include: gone.yml}}",
			`ci.yml:4:24: the child pipeline of the job "j": ci.yml (trigger of "j"):1:`,
		},
		{"j: {trigger: {strategy: x, include: gone}}", `ci.yml:4:25: strategy of trigger is depend or mirror`},
		{"j: {trigger: {branch: x}}", `ci.yml:4:14: trigger needs project, or include with a file`},
		{
			"j: {script: [x], stage: gone}",
			`ci.yml:4:25: the job "j" has the stage "gone", which does not exist`,
		},
		{
			"'a 1/1': {script: [x]}\nc: {script: [x]}\na: {script: [x], parallel: 1}",
			`two jobs have the name "a 1/1"`,
		},
	} {
		file, err := Read("ci.yml", []byte(base+c[0]+"\n"), project{}.config())
		if err == nil {
			_, err = file.Pipeline()
		}
		if err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s:\n%v, not\n%s", c[0], err, c[1])
		}
	}
}

func TestDurationsAreThoseOfGitLab(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"42": 42 * time.Second, "42 seconds": 42 * time.Second, "3 mins 4 sec": 184 * time.Second,
		"2 hrs 20 min": 140 * time.Minute,
		"2h20min":      140 * time.Minute, "1.5 hours": 90 * time.Minute, "1w": 168 * time.Hour,
		"1 day and 1 hour":   25 * time.Hour,
		"1 hour, 30 minutes": 90 * time.Minute, "1 Year": 8760 * time.Hour,
		"": 0, "x": 0, "0": 0, "2 years": 0, "1e9 h": 0, "-1": 0, "1h x": 0, "..": 0, "NaN": 0,
		"99999999999999999999 weeks": 0,
	} {
		got, err := parseDuration(text)
		require.Equal(t, want, got, text)
		require.Equal(t, want == 0, err != nil, text)
	}
}

func FuzzDurationsAndReports(f *testing.F) {
	f.Add("1h 30m")
	f.Add("A=b\nC=d\n")
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := parseDuration(text); err == nil && (d <= 0 || d > maxDuration) {
			t.Fatal(d)
		}
		_, _ = ParseDotenv([]byte(text))
	})
}

// BenchmarkPipeline reads and plans 10,000 jobs in two stages.
func BenchmarkPipeline(b *testing.B) {
	var text strings.Builder
	text.WriteString(".s: {script: [make test], rules: [{if: $CI}]}\n")
	for i := range 50 {
		fmt.Fprintf(&text, "b%d: {extends: .s, stage: build, parallel: 100}\nt%d: {extends: .s, parallel: 100}\n", i, i)
	}
	for b.Loop() {
		require.Len(b, planOf(b, text.String(), Config{Predefined: []Variable{{"CI", "true"}}}).Jobs, 10_000)
	}
}

// The pipelines of testdata/real, whose files have the shapes of those of real projects.
func TestPipelinesOfRealShapes(t *testing.T) {
	dir := filepath.Join("testdata", "real")
	const units = " (on_success) after unit tests: [api, 20]+ unit tests: [api, 22]+ unit tests: [web, 20]+ " +
		"unit tests: [web, 22]+ unit tests: [cli, 22, --verbose]+"
	for name, want := range map[string][2]string{ // the jobs of a branch, and those left out
		"go.yml": {"test (on_success) after stages+", "goreleaser"},
		"node.yml": {strings.Join([]string{
			"unit tests: [api, 20] (on_success) after stages+", "unit tests: [api, 22] (on_success) after stages+",
			"unit tests: [web, 20] (on_success) after stages+", "unit tests: [web, 22] (on_success) after stages+",
			"unit tests: [cli, 22, --verbose] (on_success) after stages+", "e2e 1/3" + units, "e2e 2/3" + units,
			"e2e 3/3" + units, "pages (on_success) after stages+",
		}, "\n"), ""},
		"infra.yml": {
			"plan prod (on_success) after stages+\napply prod (manual) after stages (plan prod+)\n" +
				"destroy prod (manual) after stages+", "modules",
		},
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		p := planOf(t, string(text), Config{
			Open:    func(path string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, path)) },
			List:    func() ([]string, error) { return []string{"ci/setup.yml", "go.yml"}, nil },
			Changed: func(string) ([]string, error) { return []string{"packages/api/x.js"}, nil },
			Given:   []Variable{{"CI_COMMIT_BRANCH", "main"}, {"CI_COMMIT_REF_NAME", "main"}, {"CI_DEFAULT_BRANCH", "main"}},
		})
		var jobs, left []string
		for _, j := range p.Jobs {
			jobs = append(jobs, fmt.Sprintf("%s (%s) after %s", j.Name, j.When, edges(p, j.Name)))
		}
		for _, l := range p.Left {
			left = append(left, l.Name)
		}
		require.Equal(t, want, [2]string{strings.Join(jobs, "\n"), strings.Join(left, ", ")}, name)
	}
}
