package manager_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// Caches go from pipeline to pipeline of a project, also if the manager ends while a job runs. The job runs
// without a cache whose archive is not kept any more.
//
//stepmux:faults artifacts | A manager that dies while it saves a cache leaves one that is not whole
//stepmux:with cmd/stepmux.TestAManagerThatIsKilledLosesNoJobOfAPipeline
func TestCachesOfPipelinesAreKept(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	run := func(repository, text string) (p *pb.Pipeline, notes string) {
		req := pipelineOf(t, text)
		req.Repository = repository
		p = m.restOf(m.submitPipeline(req))
		return p, strings.Join(p.GetNotes(), "\n")
	}
	had := func(p *pb.Pipeline, job string) string {
		_, after, found := strings.Cut(m.logOf(p, job), "\nhad ")
		require.True(t, found, m.logOf(p, job))
		line, _, _ := strings.Cut(after, "\n")
		return line
	}
	wait, open := gate(t)
	line, times := ran(t)
	first := pipelineOf(t, fmt.Sprintf(`
a:
  cache: [{key: {files: [none], prefix: k}, paths: [c]}, {key: failed, paths: [c], when: on_failure}]
  script: [mkdir c, echo one >c/n, %q, %q]
`, line("a"), wait))
	first.Repository = "r"
	id := m.submitPipeline(first)
	m.awaitPipeline(id, func(p *pb.Pipeline) bool {
		return strings.Contains(strings.Join(p.GetNotes(), "\n"), `a: cache "k-default" does not exist yet`)
	})
	eventually(t, func() bool { return times()["a"] == 1 })
	m.stop()
	open()
	m = f.start(t)
	p := m.restOf(id)
	require.Equal(t, "a success", jobsOf(p))
	require.Contains(t, m.logOf(p, "a"), `cache "k-default" is saved`)

	const second = `
stages: [one, two]
b: {cache: {key: new, fallback_keys: [k-default], paths: [c]}, script: ['echo "had $(cat c/n 2>/dev/null)"'],
    stage: one}
c: {cache: {key: new, paths: [c], policy: pull}, script: ['echo "had $(cat c/n 2>/dev/null)"', 'echo x >c/n', exit 1],
    stage: two}
d: {cache: {key: failed, paths: [c], policy: pull}, script: ['echo "had $(cat c/n 2>/dev/null)"'],
    stage: one}
`
	p, notes := run("r", second)
	require.Equal(t, "one", had(p, "b"))
	require.Contains(t, m.logOf(p, "b"), `cache "new" is saved`)
	require.Equal(t, "one", had(p, "c"), "the cache of a fallback that has not changed")
	require.NotContains(t, m.logOf(p, "c"), "is saved")
	require.Empty(t, had(p, "d"))
	require.Contains(t, notes, `b: cache "k-default" is found`)
	p, _ = run("other", second)
	require.Empty(t, had(p, "b"), "another project")

	m.stop()
	kept, err := filepath.Glob(filepath.Join(f.dir, "projects", "*"))
	require.NoError(t, err)
	require.Len(t, kept, 1, "the two names have one archive")
	require.NoError(t, os.Remove(kept[0]))
	m = f.start(t)
	p, notes = run("r", second)
	require.Empty(t, had(p, "b"))
	require.Contains(t, notes, `b: cache "new" does not exist yet`)
}

// Symptom: a manager that ended between the save of a cache and the end of its build had the next one say it again.
func TestALogSaysOnceThatACacheIsSaved(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	wait, open := gate(t)
	id := m.submitPipeline(pipelineOf(t, fmt.Sprintf("a: {cache: {key: k, paths: [c]}, script: [mkdir c, %q]}\n", wait)))
	build := m.awaitPipeline(id, func(p *pb.Pipeline) bool { return strings.Contains(jobsOf(p), "running") })
	require.Equal(t, `cache "k" is saved`, m.m.SaveCache(t, build.GetJobs()[0].GetBuild()))
	m.stop()
	m = f.start(t)
	open()
	p := m.restOf(id)
	require.Equal(t, "success", p.GetStatus())
	require.NotContains(t, m.logOf(p, "a"), "is saved")
}
