//go:build gitea

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/giteatest"
)

func TestAHundredJobsOfARealGiteaShareSixteenSlots(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger")
	g := giteatest.Real(t)
	serveServers(t, 4, map[string]*giteatest.Gitea{"one": g})
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprint(i))
	}
	r := g.Repo("many", workflow(`  a:
    runs-on: ubuntu-latest
    strategy: {matrix: {n: [`+strings.Join(all, ", ")+`]}}
    steps: [{run: 'echo job ${{ matrix.n }} | tee -a `+ledger+`'}]
`))
	jobs := r.Ended(len(all))
	for i, n := range all {
		job := jobs["a ("+n+")"]
		require.Equal(t, "success", job.Conclusion)
		require.Equal(t, []string{"job " + n, "stepmux: the job has succeeded"}, r.Rows(job.ID))
		all[i] = "job " + n
	}
	ran, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.ElementsMatch(t, all, strings.Split(strings.TrimSpace(string(ran)), "\n"), "each ran once")
}

// STEPMUX_GITEA_AWAY is how long the server is away, as 5m.
func TestAJobOfARealGiteaBearsThatTheServerIsAway(t *testing.T) {
	away, err := time.ParseDuration(os.Getenv("STEPMUX_GITEA_AWAY"))
	if err != nil {
		away = 10 * time.Second
	}
	dir := t.TempDir()
	again, done := filepath.Join(dir, "again"), filepath.Join(dir, "done")
	g := giteatest.Real(t)
	serveServers(t, 1, map[string]*giteatest.Gitea{"one": g})
	r := g.Repo("away", workflow(`  a:
    runs-on: ubuntu-latest
    steps:
    - run: echo begins; while ! test -e `+again+`; do sleep 0.1; done; seq 3000
    - run: touch `+done+`
`))
	require.Eventually(t, func() bool {
		jobs := r.Jobs()
		return len(jobs) > 0 && slices.Contains(r.Rows(jobs[0].ID), "begins")
	}, bound, 100*time.Millisecond)
	g.Stop()
	require.NoError(t, os.WriteFile(again, nil, 0o600))
	require.Eventually(t, func() bool {
		_, err := os.Stat(done)
		return err == nil
	}, bound, 20*time.Millisecond, "the job goes on without its server")
	wait(t, away)
	g.Start()
	job := r.Ended(1)["a"]
	require.Equal(t, "success: success success success success", conclusions(r, map[string]giteatest.Job{"a": job})["a"])
	rows := r.Rows(job.ID)
	require.Len(t, rows, 3002)
	require.Equal(t, []string{"begins", "1"}, rows[:2])
	require.Equal(t, []string{"3000", "stepmux: the job has succeeded"}, rows[3000:])
}

func TestARealGiteaThatIsAwayDisturbsNoOther(t *testing.T) {
	one, two := giteatest.Real(t), giteatest.Real(t)
	jobs := workflow("  a: {runs-on: ubuntu-latest, steps: [{run: echo here}]}\n")
	first := one.Repo("first", nil)
	late := two.Repo("late", jobs)
	two.Stop()
	serveServers(t, 1, map[string]*giteatest.Gitea{"one": one, "two": two})
	for i := range 3 {
		first.Push(map[string]string{fmt.Sprintf(".gitea/workflows/%d.yml", i): "on: push\njobs:\n" +
			"  a: {runs-on: ubuntu-latest, steps: [{run: echo here}]}\n"})
		for _, job := range first.Ended((i + 1) * (i + 2) / 2) {
			require.Equal(t, "success", job.Conclusion)
			require.Equal(t, "one", job.Runner)
		}
	}
	two.Start()
	job := late.Ended(1)["a"]
	require.Equal(t, "success", job.Conclusion)
	require.Equal(t, "two", job.Runner)
}
