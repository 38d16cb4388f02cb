package managed_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/standalone/managed"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// write makes files in a new directory.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "project")
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// shown describes the jobs of a request as a manager on another machine reads them.
func shown(t *testing.T, req *pb.SubmitPipelineRequest) string {
	t.Helper()
	text, err := proto.Marshal(req)
	require.NoError(t, err)
	again := &pb.SubmitPipelineRequest{}
	require.NoError(t, proto.Unmarshal(text, again))
	plan, err := managed.Pipelines{}.Read(again)
	require.NoError(t, err)
	var all []string
	for _, j := range plan.Shown().GetJobs() {
		all = append(all, j.GetName()+" "+j.GetStatus())
	}
	return strings.Join(all, ", ")
}

// A manager plans the pipeline that the submitter has read, without its files and its git.
func TestAManagerPlansWithoutTheFilesOfTheSubmitter(t *testing.T) {
	dir := write(t, map[string]string{
		"ci/one.yml": "one: {script: [\":\"]}\n", "ci/two.yml": "two: {script: [\":\"]}\n",
		"child.yml": "c: {script: [\":\"]}\n",
		"docs/a.md": "",
	})
	other := write(t, map[string]string{"group/shared/x.yml": "shared: {script: [\":\"]}\n"})
	asked := []string{}
	src := standalone.Source{
		Name: ".gitlab-ci.yml", Format: standalone.GitLabCI, WorkDir: dir, Includes: other, Elsewhere: true,
		Predefined: []gitlabci.Variable{{Name: "CI_COMMIT_BRANCH", Value: "main"}},
		Changed: func(base string) ([]string, error) {
			asked = append(asked, base)
			return []string{"docs/a.md", "caf\xe9"}, nil
		},
		Text: []byte(`
include: [{local: /ci/*.yml}, {project: group/shared, file: /x.yml}]
exists: {script: [":"], rules: [{exists: ["docs/*.md"]}]}
missing: {script: [":"], rules: [{exists: ["none/*"]}]}
changed: {script: [":"], rules: [{changes: ["docs/*"]}]}
same: {script: [":"], rules: [{changes: ["src/*"]}]}
compared: {script: [":"], rules: [{changes: {paths: ["docs/*"], compare_to: base}}]}
branch: {script: [":"], rules: [{if: $CI_COMMIT_BRANCH == "main" && $CI_PROJECT_NAME == "project"}]}
child: {trigger: {include: /child.yml, strategy: depend}}
`),
	}
	source, p, _, err := managed.Source(src)
	require.NoError(t, err)
	require.Len(t, p.Left, 2)
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.RemoveAll(other))
	require.ElementsMatch(t, []string{"", "base"}, asked, "each is asked once")
	require.Equal(t, "one waiting, two waiting, shared waiting, exists waiting, changed waiting, compared waiting, "+
		"branch waiting, child waiting, missing left out, same left out", shown(t, &pb.SubmitPipelineRequest{Source: source}))
	require.Equal(t, "one waiting, two waiting, shared waiting, exists waiting, changed waiting, compared waiting, "+
		"child waiting, missing left out, same left out, branch left out",
		shown(t, &pb.SubmitPipelineRequest{Source: source, Choice: &pb.PipelineChoice{Skip: []string{"branch"}}}))
}

// What cannot be asked is an error of the submitter, with its place.
func TestASubmitterSeesMistakesFirst(t *testing.T) {
	for text, wanted := range map[string]string{
		"include: {local: /none.yml}\na: {script: [\":\"]}": ".gitlab-ci.yml:1:18",
		"a: {script: [\":\"], needs: [b]}":                  ".gitlab-ci.yml:1:",
		"a: {trigger: group/other}":                         "",
	} {
		_, p, _, err := managed.Source(standalone.Source{
			Name: ".gitlab-ci.yml", Format: standalone.GitLabCI, WorkDir: t.TempDir(), Text: []byte(text), Elsewhere: true,
		})
		if wanted == "" {
			require.NoError(t, err)
			require.ErrorContains(t, managed.Choose(p, ".gitlab-ci.yml", nil), "starts another pipeline")
			continue
		}
		require.ErrorContains(t, err, wanted)
	}
	_, _, _, err := managed.Source(standalone.Source{Name: "s.yml", Format: standalone.Steps})
	require.ErrorContains(t, err, "a manager runs the pipeline of a .gitlab-ci.yml")
}

// The run of a workflow is the same each time that a manager reads it: its event, its ID and the workflows that it
// calls.
func TestAManagerPlansAWorkflowAsTheSubmitterHasReadIt(t *testing.T) {
	dir := write(t, map[string]string{
		".github/workflows/c.yml": "on: {workflow_call: }\njobs: {x: {steps: [{run: 'true'}]}}\n",
	})
	src := standalone.Source{
		Name: "ci.yml", Format: standalone.GitHub, WorkDir: dir, Elsewhere: true, Event: "pull_request",
		Vars: []engine.Variable{{Key: "TOKEN", Value: "geheim", Masked: true}},
		Predefined: []gitlabci.Variable{
			{Name: "CI_COMMIT_BRANCH", Value: "topic"}, {Name: "CI_COMMIT_SHA", Value: "0123"},
		},
		Text: []byte(`
on: [push, pull_request]
concurrency: ${{ github.event_name }} ${{ github.head_ref }} ${{ github.run_id }}
jobs:
  a: {steps: [{uses: actions/checkout@v4}]}
  c: {uses: ./.github/workflows/c.yml}
  gone: {uses: ./.github/workflows/gone.yml}
`),
	}
	source, p, _, err := managed.Source(src)
	require.NoError(t, err)
	require.Regexp(t, "^pull_request topic [0-9]+$", p.Group)
	require.NoError(t, os.RemoveAll(dir))
	for _, v := range source.GetPredefined() {
		require.NotEqual(t, "TOKEN", v.GetName(), "it is an option of the request")
	}
	choice := &pb.PipelineChoice{Skip: []string{"gone"}}
	req := &pb.SubmitPipelineRequest{Source: source, Choice: choice, Project: "sha256:0"}
	for range 2 {
		require.Equal(t, "a waiting, c waiting, gone left out", shown(t, req))
	}
	req.Choice = nil
	_, err = managed.Pipelines{}.Read(req)
	require.ErrorContains(t, err, "there is no workflow ./.github/workflows/gone.yml")

	group := p.Group
	p, err = managed.Read(req, choice)
	require.NoError(t, err)
	require.Equal(t, group, p.Group)
	opened, err := p.Jobs[0].Open(nil, false, func(string) {})
	require.NoError(t, err)
	job, err := opened.Builds.Jobs[0].Prepare(nil)
	require.NoError(t, err)
	require.Contains(t, job.Steps, `"in_project":true`, "a checkout uses the files of the project")
}
