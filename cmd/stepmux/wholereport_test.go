package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
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
	code, late := 3, exitTimeout
	r := &whole.Report{Name: "night", Status: whole.Failure, Wall: 1.5, Busy: 2, Jobs: []whole.JobReport{
		{Name: "a", Stage: "test", Status: "failed", ExitCode: &code, Duration: 1, Attempts: 2},
		{Name: "t", Stage: "test", Status: "success", Child: &whole.Report{Jobs: []whole.JobReport{
			{Name: "c", Stage: "build", Status: "skipped", Why: "\"x\": failed"},
			{Name: "l", Stage: "build", Status: "cancelled", Why: "timed out", ExitCode: &late, Duration: 2},
		}}},
	}}
	for range 20 {
		r.CriticalPath = append(r.CriticalPath, "j")
	}
	require.Equal(t, []string{
		"test       a                        failed: exit code 3 (1.0s), 2 attempts",
		"test       t                        success",
		`  build      c                        skipped: "x": failed`,
		"  build      l                        cancelled: timed out (2.0s)",
	}, jobLines(r, ""))
	var out strings.Builder
	show := newReporter("text", &strings.Builder{}, &out, func(error) {})
	summarize(show, r)
	require.NoError(t, show.close(t.Context(), t.Context(), time.Minute))
	require.Contains(t, out.String(), "pipeline \"night\": failure in 1.5s; the jobs took 2s; critical path: "+
		strings.Repeat("j, ", 11)+"j and 8 more\n")
}

// On a terminal a pipeline has a line for each stage, and the output of a job cannot forge that of another.
func TestAPipelineOnATerminalShowsItsStages(t *testing.T) {
	t.Parallel()
	terminal, shown := openTerminal(t)
	require.NoError(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 100}))
	dir := t.TempDir()
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	text := fmt.Sprintf("one: {stage: build, script: [%q, \"printf 'a\\\\rtwo | x\\\\033[2K\\\\n'\"]}\n"+
		"two: {script: [\":\"]}\nthree: {script: [\":\"], when: manual}\n", wait)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "p.gitlab-ci.yml"), []byte(text), 0o600))
	cmd := exec.Command(runnertest.Manager(t), "local", "p.gitlab-ci.yml")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, terminal, terminal
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	require.NoError(t, cmd.Start())
	var log sshtest.Log
	ended := make(chan struct{})
	go func() { // it ends with the terminal
		defer close(ended)
		_, _ = io.Copy(&log, shown)
	}()
	log.Await(t, "0 of 3 jobs done, 1 running, 0 failed, ")
	log.Await(t, "build 0/1  one (")
	log.Await(t, "test  0/2")
	open()
	require.NoError(t, cmd.Wait())
	require.NoError(t, terminal.Close())
	<-ended
	require.Contains(t, log.String(), `one | a\rtwo | x\x1b[2K`+"\r\n")
	require.Contains(t, log.String(), "test       three                    blocked: manual\r\n")
	require.Contains(t, log.String(), "pipeline: success in ")
}
