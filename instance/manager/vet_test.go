package manager_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// vetted is a job, and where the manager finds its script to go on after a line that fails: empty for nowhere.
type vetted struct {
	where string
	job   *stepmuxv1.Job
}

var vettedJobs = map[string]vetted{
	"steps":     {"j.yml:2:11", &stepmuxv1.Job{Steps: []byte("run:\n- script: |\n    a\n    b\n"), StepsFile: "j.yml"}},
	"nameless":  {"steps:1:11", &stepmuxv1.Job{Steps: []byte("- script: |\n    a\n    b\n")}},
	"generated": {"x.yml", &stepmuxv1.Job{Steps: []byte(`[{"script": "a\nb"}]`), StepsFile: "x.yml", Generated: true}},
	"a script":  {"a.sh:1:1", &stepmuxv1.Job{Script: "a\nb\n", StepsFile: "a.sh"}},
	"a long name": {
		"..." + strings.Repeat("n", 200) + ":1:1", &stepmuxv1.Job{Script: "a\nb\n", StepsFile: strings.Repeat("n", 4000)},
	},
	"set -e":  {"", &stepmuxv1.Job{Script: "set -e\na\nb\n", StepsFile: "a.sh"}},
	"invalid": {"", &stepmuxv1.Job{Steps: []byte("run: [{scrpt: \"a\\nb\"}]"), StepsFile: "job.yml"}},
}

// Other clients than stepmux submit do not check the scripts.
func TestABuildHasTheWarningsAboutItsScriptsFromSubmitOn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.capacity = 1
	m := f.start(t)
	wait, open := gate(t)
	holds := m.submit(wait)
	ids := map[string]string{}
	check := func(phase pb.Build_Phase) {
		t.Helper()
		for name, test := range vettedJobs {
			b, err := m.Get(t.Context(), &pb.GetRequest{Id: ids[name]})
			require.NoError(t, err)
			require.Equal(t, phase, b.GetPhase(), name)
			require.Equal(t, test.job.GetStepsFile(), b.GetStepsFile(), name)
			if test.where == "" {
				require.Empty(t, b.GetWarnings(), name)
				continue
			}
			require.Len(t, b.GetWarnings(), 1, name)
			require.Equal(t, test.where, b.GetWarnings()[0].GetWhere(), name)
			require.Contains(t, b.JSON().Warnings[0].GetMessage(), "goes on after one that fails", name)
		}
	}
	for name, test := range vettedJobs {
		ids[name] = m.submitJob(&pb.SubmitRequest{Job: test.job, Warnings: []*pb.Warning{{Message: "a client's"}}})
	}
	check(pb.Build_queued)
	canceled := m.submitJob(&pb.SubmitRequest{Job: vettedJobs["steps"].job})
	_, err := m.Cancel(t.Context(), &pb.CancelRequest{Id: canceled})
	require.NoError(t, err)
	open()
	for _, id := range ids {
		m.wait(id, 0)
	}
	check(pb.Build_ended)
	m.wait(holds, 0)
	m.stop()
	m = f.start(t)
	check(pb.Build_ended)
	b, err := m.Get(t.Context(), &pb.GetRequest{Id: canceled})
	require.NoError(t, err)
	require.Len(t, b.GetWarnings(), 1)
	require.Equal(t, "j.yml", b.GetStepsFile())
}

func TestAManagerOfStrictScriptsRefusesJobsWithWarnings(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.change = func(cfg *manager.Config) { cfg.StrictScripts = true }
	m := f.start(t)
	for name, test := range vettedJobs {
		_, err := m.Submit(t.Context(), &pb.SubmitRequest{Job: test.job})
		if test.where == "" {
			require.NoError(t, err, name)
			continue
		}
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		require.Equal(t, test.where+": the script has several lines, and goes on after one that fails; begin it with set -e "+
			"(--strict-scripts of the manager)", status.Convert(err).Message(), name)
	}
}
