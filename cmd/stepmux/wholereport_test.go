package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/whole"
)

func TestTheViewOfAPipelineHasALineForEachStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &whole.Pipeline{}
		for _, j := range [][2]string{
			{"build", "make"}, {"test", "unit"}, {"test", "lint\x1b[2J"}, {"test", "slow"}, {"deploy", "prod"}, {"last", "end"},
		} {
			p.Jobs = append(p.Jobs, &whole.Job{Stage: j[0], Name: j[1]})
		}
		v := newStageView(p)
		require.Equal(t, "0 of 6 jobs done, 0 running, 0 failed, 0s|build  0/1|test   0/3|deploy 0/1|last   0/1",
			strings.Join(v.lines(24), "|"))
		v.observe("make", "running")
		v.observe("trigger / child", "running") // a job of another pipeline
		<-time.NewTimer(2 * time.Second).C
		v.observe("make", "success")
		v.observe("unit", "running")
		<-time.NewTimer(time.Second).C
		v.observe("lint\x1b[2J", "running")
		v.observe("slow", "failed")
		require.Equal(t, "2 of 6 jobs done, 2 running, 1 failed, 3s|build  1/1|"+
			`test   1/3  unit (1s), lint?[2J (0s)|deploy 0/1|last   0/1`, strings.Join(v.lines(24), "|"))
		require.Equal(t, "2 of 6 jobs done, 2 running, 1 failed, 3s|"+
			`test   1/3  unit (1s), lint?[2J (0s)|deploy 0/1|and 1 more stage`, strings.Join(v.lines(6), "|"))
		v.observe("unit", "delayed") // before another attempt
		require.Contains(t, v.lines(24)[0], "2 of 6 jobs done, 1 running")
	})
}

func TestTheSummaryOfAPipelineHasItsChildrenAndABoundedPath(t *testing.T) {
	code := 3
	r := &whole.Report{Status: whole.Failure, Wall: 1.5, Busy: 2, Jobs: []whole.JobReport{
		{Name: "a", Stage: "test", Status: "failed", ExitCode: &code, Duration: 1, Attempts: 2},
		{Name: "t", Stage: "test", Status: "success", Child: &whole.Report{Jobs: []whole.JobReport{
			{Name: "c", Stage: "build", Status: "skipped", Why: "\"x\": failed"},
		}}},
	}}
	for range 20 {
		r.CriticalPath = append(r.CriticalPath, "j")
	}
	require.Equal(t, []string{
		"test       a                        failed: exit code 3 (1.0s), 2 attempts",
		"test       t                        success",
		`  build      c                        skipped: "x": failed`,
	}, jobLines(r, ""))
	var out strings.Builder
	show := newReporter("text", &strings.Builder{}, &out, func(error) {})
	summarize(show, r)
	require.NoError(t, show.close(t.Context(), t.Context(), time.Minute))
	require.Contains(t, out.String(), "pipeline: failure in 1.5s; the jobs took 2s; critical path: "+
		strings.Repeat("j, ", 11)+"j and 8 more\n")
}
