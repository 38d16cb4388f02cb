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
	source, p, err := managed.Source(src)
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
		_, p, err := managed.Source(standalone.Source{
			Name: ".gitlab-ci.yml", Format: standalone.GitLabCI, WorkDir: t.TempDir(), Text: []byte(text), Elsewhere: true,
		})
		if wanted == "" {
			require.NoError(t, err)
			require.ErrorContains(t, managed.Choose(p, ".gitlab-ci.yml", nil), "starts another pipeline")
			continue
		}
		require.ErrorContains(t, err, wanted)
	}
	_, _, err := managed.Source(standalone.Source{Name: "w.yml", Format: standalone.GitHub})
	require.ErrorContains(t, err, "a workflow of GitHub runs by stepmux local")
}
