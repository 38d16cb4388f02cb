//go:build gitea

package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/giteatest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// rival is a runner that is measured: jobs with its label go to it, and its calls through its proxy.
type rival struct {
	label string
	proxy *giteatest.Proxy
	pss   func() int64 // memory of the runner, without that of its jobs
}

// newRivals starts a manager and Gitea's own runner, each with so many slots, one VM or machine, and defaults.
func newRivals(t *testing.T, g *giteatest.Gitea, slots int) []rival {
	t.Helper()
	ours, peer := giteatest.NewProxy(t, g.URL), giteatest.NewProxy(t, g.URL)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte(g.RegistrationToken), 0o600))
	inventory, _ := newInventory(t, dir, 1)
	text, err := os.ReadFile(inventory)
	require.NoError(t, err)
	text = bytes.Replace(text, []byte("capacity: 4"), fmt.Appendf(nil, "capacity: %d", slots), 1)
	require.NoError(t, os.WriteFile(inventory, text, 0o600))
	m := serveInventory(t, dir, inventory,
		fmt.Sprintf("gitea: {name: ours, url: %q, token-file: %s, labels: [ours]}\n", ours.URL, token))
	vm := runnertest.Command(t)[0]

	program, home := giteatest.Program(t, "runner"), t.TempDir()
	file := filepath.Join(home, "config.yml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "runner: {capacity: %d}\n", slots), 0o600))
	run := func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, append([]string{"--config", file}, args...)...)
		cmd.Dir, cmd.Env = home, append(os.Environ(), "HOME="+home)
		return cmd
	}
	out, err := run("register", "--no-interactive", "--instance", peer.URL, "--token", g.RegistrationToken,
		"--name", "peer", "--labels", "peer:host").CombinedOutput()
	require.NoError(t, err, "%s", out)
	daemon := run("daemon")
	require.NoError(t, daemon.Start())
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait() // it was killed
	})
	return []rival{
		{"ours", ours, func() int64 {
			manager := pssOf(t, m.cmd.Process.Pid)
			ends, n := pssOfProgram(t, vm)
			t.Logf("of ours: %d MiB of the manager, %d MiB of %d processes on the VM", manager>>20, ends>>20, n)
			return manager + ends
		}},
		{"peer", peer, func() int64 { return pssOf(t, daemon.Process.Pid) }},
	}
}

// allowHooks lets a server call webhooks on this machine.
var allowHooks = []string{"[webhook]", "ALLOWED_HOST_LIST = loopback"}

// newHooked starts a manager with webhooks and 16 slots. hook lets a repository call them; seen gets the statuses of
// the answers about jobs that wait.
func newHooked(t *testing.T, g *giteatest.Gitea) (r rival, hook func(*giteatest.Repo), seen <-chan int) {
	t.Helper()
	dir := t.TempDir()
	token, secret := filepath.Join(dir, "token"), filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(token, []byte(g.RegistrationToken), 0o600))
	require.NoError(t, os.WriteFile(secret, []byte("of-the-hook"), 0o600))
	port, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	page := &url.URL{Scheme: "http", Host: port.Addr().String()}
	require.NoError(t, port.Close())
	proxy := giteatest.NewProxy(t, g.URL)
	serveConfig(t, dir, 4, fmt.Sprintf("http-listen: %q\ngitea: {name: hooked, url: %q, token-file: %s, "+
		"labels: [hooked], webhook-secret-file: %s}\n", page.Host, proxy.URL, token, secret))
	answers := make(chan int, 1000)
	forward := httputil.NewSingleHostReverseProxy(page)
	forward.ModifyResponse = func(resp *http.Response) error {
		answers <- resp.StatusCode
		return nil
	}
	front := httptest.NewServer(forward)
	t.Cleanup(front.Close)
	return rival{label: "hooked", proxy: proxy}, func(r *giteatest.Repo) {
		r.Hook(front.URL+"/hooks/gitea/hooked", "of-the-hook")
	}, answers
}

func TestAWebhookOfARealGiteaIsTaken(t *testing.T) {
	g := giteatest.Real(t, allowHooks...)
	hooked, hook, seen := newHooked(t, g)
	r := hooked.repo(g, "hook", "    steps: [{run: echo hello}]\n")
	hook(r)
	r.Dispatch("ci.yml", nil)
	require.Equal(t, "success", r.Ended(1)["a"].Conclusion)
	select {
	case status := <-seen:
		require.Equal(t, http.StatusNoContent, status)
	case <-t.Context().Done():
		t.Fatal("the server has not called")
	}
}

// pssOfProgram returns that of all processes of a program, and how many there are.
func pssOfProgram(t *testing.T, program string) (sum int64, n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == program {
			sum += pssOf(t, pid)
			n++
		}
	}
	return sum, n
}

// repo makes a repository for a rival, whose workflow is started by hand.
func (r rival) repo(g *giteatest.Gitea, name, job string) *giteatest.Repo {
	return g.Repo(name+"-"+r.label, map[string]string{
		".gitea/workflows/ci.yml": "on: workflow_dispatch\njobs:\n  a:\n    runs-on: " + r.label + "\n" + job,
	})
}

// The manager beside Gitea's own runner with its defaults, in turns: how long a job waits for its first row, calls, 100
// jobs on 16 slots, and memory. STEPMUX_GITEA_ROUNDS is how often.
func TestMeasureJobsOfARealGitea(t *testing.T) {
	rounds := numberFrom(t, "STEPMUX_GITEA_ROUNDS", 3)
	g := giteatest.Real(t, allowHooks...)
	t.Run("first row", func(t *testing.T) {
		rivals := newRivals(t, g, 16)
		hooked, hook, _ := newHooked(t, g)
		times := map[string][]time.Duration{}
		var repos []*giteatest.Repo
		all := append(slices.Clone(rivals), hooked)
		for _, r := range all {
			repos = append(repos, r.repo(g, "first", "    steps: [{run: echo first; sleep 1}]\n"))
		}
		hook(repos[2])
		for i := range rounds + 1 {
			for k, r := range all {
				repos[k].Dispatch("ci.yml", nil)
				began := time.Now()
				job := repos[k].Jobs()[i]
				require.Eventually(t, func() bool { return len(repos[k].Rows(job.ID)) > 0 }, bound, 5*time.Millisecond)
				if i > 0 { // the first one connects
					times[r.label] = append(times[r.label], time.Since(began))
				}
				repos[k].Ended(i + 1)
			}
		}
		ours, peer, fast := median(times["ours"]), median(times["peer"]), median(times["hooked"])
		t.Logf("job waiting to first row, median of %d: ours %v, peer %v: %.2f; with the webhook %v: %.2f", rounds, ours,
			peer, ours.Seconds()/peer.Seconds(), fast, fast.Seconds()/peer.Seconds())
		for _, r := range rivals {
			before := len(r.proxy.Calls())
			wait(t, 20*time.Second)
			t.Logf("idle calls a minute: %s %d", r.label, 3*(len(r.proxy.Calls())-before))
		}
		calls := map[string]int{}
		for _, r := range rivals {
			repo := r.repo(g, "calls", "    steps: [{run: 'for i in $(seq 100); do echo line $i; sleep 0.6; done'}]\n")
			before := r.proxy.Count()
			repo.Dispatch("ci.yml", nil)
			repo.Ended(1)
			after := r.proxy.Count()
			for _, method := range []string{"UpdateLog", "UpdateTask"} {
				calls[r.label] += after[method] - before[method]
			}
			t.Logf("calls in a job of 60 s and 100 lines: %s %d UpdateLog, %d UpdateTask, and %d FetchTask for others", r.label,
				after["UpdateLog"]-before["UpdateLog"], after["UpdateTask"]-before["UpdateTask"],
				after["FetchTask"]-before["FetchTask"])
		}
		t.Logf("calls about a job: ours %d, peer %d: %.2f", calls["ours"], calls["peer"],
			float64(calls["ours"])/float64(calls["peer"]))
		hundred(t, g, rivals, (rounds+2)/3)
	})
	t.Run("memory", func(t *testing.T) {
		used, end := map[string]int64{}, filepath.Join(t.TempDir(), "end")
		for _, r := range newRivals(t, g, 100) {
			idle := r.pss()
			repo := r.repo(g, "memory", "    strategy: {matrix: {n: ["+numbers(100)+"]}}\n"+
				"    steps: [{run: 'echo on; while ! test -e "+end+"; do sleep 2; done'}]\n")
			repo.Dispatch("ci.yml", nil)
			require.Eventually(t, func() bool {
				jobs := repo.Jobs()
				return len(jobs) == 100 && !slices.ContainsFunc(jobs, func(j giteatest.Job) bool {
					return j.Status != "in_progress" || len(repo.Rows(j.ID)) == 0
				})
			}, bound, time.Second)
			used[r.label] = r.pss()
			t.Logf("memory of %s: %d MiB idle, %d MiB with 100 running jobs", r.label, idle>>20, used[r.label]>>20)
			require.NoError(t, os.WriteFile(end, nil, 0o600)) // a cancelled job may leave processes of the peer
			repo.Ended(100)
			require.NoError(t, os.Remove(end))
		}
		t.Logf("memory with 100 running jobs: %.2f", float64(used["ours"])/float64(used["peer"]))
	})
}

func numbers(n int) string {
	var all []string
	for i := range n {
		all = append(all, strconv.Itoa(i))
	}
	return strings.Join(all, ", ")
}

// hundred measures 100 jobs on 16 slots.
func hundred(t *testing.T, g *giteatest.Gitea, rivals []rival, rounds int) {
	t.Helper()
	walls := map[string][]time.Duration{}
	var repos []*giteatest.Repo
	for _, r := range rivals {
		repos = append(repos, r.repo(g, "hundred",
			"    strategy: {matrix: {n: ["+numbers(100)+"]}}\n    steps: [{run: 'echo hello'}]\n"))
	}
	for i := range rounds {
		for k, r := range rivals {
			repos[k].Dispatch("ci.yml", nil)
			began := time.Now()
			require.Eventually(t, func() bool {
				jobs := repos[k].Jobs()
				return len(jobs) == 100*(i+1) && !slices.ContainsFunc(jobs, func(j giteatest.Job) bool {
					return j.Status != "completed"
				})
			}, 2*bound, 200*time.Millisecond)
			walls[r.label] = append(walls[r.label], time.Since(began))
		}
	}
	ours, peer := median(walls["ours"]), median(walls["peer"])
	t.Logf("100 echo jobs on 16 slots, median of %d: ours %v, peer %v: %.2f", rounds, ours, peer,
		ours.Seconds()/peer.Seconds())
}
