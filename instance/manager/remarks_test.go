package manager_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/managed"
)

// remarksOf returns the annotations and the summary of a job as the manager has kept them.
func (r *running) remarksOf(j *pb.PipelineJob) (string, error) {
	r.t.Helper()
	stream, err := r.Artifacts(r.t.Context(), &pb.ArtifactsRequest{Id: j.GetBuild(), Remarks: true})
	require.NoError(r.t, err)
	var text strings.Builder
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return text.String(), nil
		}
		if err != nil {
			return "", err
		}
		text.Write(msg.GetData())
	}
}

// scripts returns the request for a workflow whose jobs are scripts.
func scripts(t *testing.T, jobs ...string) *pb.SubmitPipelineRequest {
	t.Helper()
	source, _, _, err := managed.Source(standalone.Source{
		Name: "w.yml", Text: []byte("on: push\njobs:\n" + strings.Join(jobs, "")), Format: standalone.GitHub,
		WorkDir: t.TempDir(), Elsewhere: true,
	})
	require.NoError(t, err)
	return &pb.SubmitPipelineRequest{Source: source, Repository: "r"}
}

// Any manager of a cluster has the annotations and summaries of jobs, not only the one that ran them.
func TestAnnotationsAndSummariesAreAtEachManagerOfACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pipelines := func() *running { return c.memberWith(t, c.nats, withPipelines(&fleet{}).change) }
	a := pipelines()
	b := pipelines()
	eventually(t, func() bool { return a.m.Holds() == 1 && b.m.Holds() == 1 })
	jobs := []string{"  quiet: {steps: [{run: 'true'}]}\n"}
	for i := range 4 { // on both VMs
		jobs = append(jobs, fmt.Sprintf(
			"  j%d: {steps: [{run: 'echo ::warning file=f,line=2::no %d; echo of %d >> $GITHUB_STEP_SUMMARY; exit 1'}]}\n",
			i, i, i))
	}
	id := a.submitPipeline(scripts(t, jobs...))
	a.restOf(id)
	a.stop()
	p := b.restOf(id)
	require.Len(t, p.GetJobs(), 5)
	for _, j := range p.GetJobs() {
		text, err := b.remarksOf(j)
		if j.GetName() == "quiet" {
			require.Zero(t, j.GetRemarks())
			require.Equal(t, codes.NotFound, status.Code(err), "nothing is kept of it")
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, len(text), j.GetRemarks())
		n := strings.TrimPrefix(j.GetName(), "j")
		require.JSONEq(t, fmt.Sprintf(
			`{"annotations":[{"level":"warning","message":"no %s","file":"f","line":2}],"summary":"of %s\n"}`, n, n), text)
		stream, err := b.Artifacts(t.Context(), &pb.ArtifactsRequest{Id: j.GetBuild(), Trace: true})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.NotFound, status.Code(err), "nobody asked for the trace")
	}
}

// A job whose annotations cannot be kept goes on, and its log says so.
func TestAJobWhoseAnnotationsCannotBeKeptSaysSoInItsLog(t *testing.T) {
	t.Parallel()
	f := withPipelines(newFleet(t))
	m := f.start(t)
	open := filepath.Join(t.TempDir(), "open")
	id := m.submitPipeline(scripts(t,
		fmt.Sprintf("  j: {steps: [{run: 'echo ::warning::no; until test -e %s; do sleep 0.1; done'}]}\n", open)))
	m.awaitPipeline(id, func(p *pb.Pipeline) bool { return strings.Contains(jobsOf(p), "j running") })
	dir := filepath.Join(m.m.Dir(), "artifacts")
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.WriteFile(open, nil, 0o600))
	p := m.restOf(id)
	require.Equal(t, "j success", jobsOf(p))
	require.Zero(t, p.GetJobs()[0].GetRemarks())
	require.Contains(t, m.logOf(p, "j"),
		"step runner: there is no report of annotations and of a summary: fetch trace: open "+dir)
}
