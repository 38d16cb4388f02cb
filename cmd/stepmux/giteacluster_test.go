//go:build gitea

package main

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/giteatest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// clusterPhases are phases of killPhases.
var clusterPhases = []int{3, 4, 6, 7, 9, 10}

// One of two managers of a cluster is killed in a phase of its tasks, by turns. Every other time it starts again at
// once and goes on with them; otherwise the other manager ends them. Each is reported as if nothing had happened, by
// one manager at a time. STEPMUX_GITEA_CLUSTER is how often one is killed.
func TestManagersOfAClusterThatAreKilledLoseNoJobOfGitea(t *testing.T) {
	kills := numberFrom(t, "STEPMUX_GITEA_CLUSTER", len(clusterPhases))
	dir := t.TempDir()
	ledger := filepath.Join(dir, "ledger")
	g := giteatest.Real(t)
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte(g.RegistrationToken), 0o600))
	inventory, _ := newInventory(t, dir, 2)
	text, err := os.ReadFile(inventory)
	require.NoError(t, err)
	text = bytes.ReplaceAll(text, []byte("capacity: 4"), []byte(`capacity: 4, labels: {m0: "true", m1: "true"}`))
	require.NoError(t, os.WriteFile(inventory, text, 0o600))
	servers, urls := newNATS(t, 3)
	for _, s := range servers {
		s.start()
		t.Cleanup(s.kill)
	}
	var proxies []*giteatest.Proxy
	var managers []*managerProcess
	files := map[string]string{}
	for i := range 2 {
		label := fmt.Sprintf("m%d", i)
		proxies = append(proxies, giteatest.NewProxy(t, g.URL))
		file := filepath.Join(dir, label+".yml")
		config := fmt.Sprintf("gitea: {name: one, url: %q, token-file: %s, runner: %s, labels: [%s]}\n", proxies[i].URL,
			token, label, label)
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
		p := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: bound}
		p.args = []string{
			"manager", "--config", file, "--state", filepath.Join(dir, "state-"+label), "--inventory", inventory,
			"--socket", p.socket, "--key-file", filepath.Join(dir, "key"), "--nats", urls, "--log-level", "info",
		}
		t.Cleanup(func() {
			p.kill()
			if t.Failed() {
				t.Logf("the log of manager %d:\n%s", i, lastOf(&p.stderr))
			}
		})
		p.start()
		managers = append(managers, p)
		maps.Copy(files, ledgerWorkflows(label, ledger))
	}
	r := g.Repo("cluster", files)
	random := rand.New(rand.NewPCG(54, 1)) // no secret
	k := &killed{}
	n, came := 0, 0
	for i := range kills {
		phase, victim := clusterPhases[i%len(clusterPhases)], i/2%2
		t.Logf("kill %d: manager %d, %s", i, victim, killPhases[phase].name)
		if k.at(t, managers[victim], proxies[victim], phase, random, func() {
			for range 3 {
				r.Dispatch(ledgerFile(fmt.Sprintf("m%d", victim), n), map[string]string{"n": fmt.Sprint(n)})
				n++
			}
			require.Eventually(t, func() bool {
				return tasksOf(slices.Concat(proxies[0].Calls(), proxies[1].Calls())) == n
			}, bound, 10*time.Millisecond)
		}) {
			came++
		}
		if i%2 == 0 {
			began := time.Now()
			r.Ended(n)
			t.Logf("the other manager has ended its jobs after %v", time.Since(began).Round(time.Second))
		}
		managers[victim].start()
	}
	r.Ended(n)
	lost := requireReported(t, r, n, ledger, slices.Concat(proxies[0].Calls(), proxies[1].Calls()), k.times)
	changes := changesOf(proxies)
	t.Logf("%d kills, %d in their phase, %d jobs: %d lost; the manager that reports changed for %d", kills, came, n, lost,
		len(changes))
	require.Zero(t, lost)
	require.NotEmpty(t, changes)
	for task, times := range changes {
		require.Equal(t, 1, times, "the manager that reports task %s changed", task)
	}
}

// changesOf returns how often tasks came to another manager, by the proxies of the managers.
func changesOf(proxies []*giteatest.Proxy) map[string]int {
	type call struct {
		at   time.Time
		task string
		by   int
	}
	var all []call
	for i, p := range proxies {
		for _, c := range p.Calls() {
			in, _ := parsed(c)
			if task := in.TaskID + in.State.ID; task != "" {
				all = append(all, call{c.At, task, i})
			}
		}
	}
	slices.SortFunc(all, func(a, b call) int { return a.at.Compare(b.at) })
	last, changes := map[string]int{}, map[string]int{}
	for _, c := range all {
		if by, known := last[c.task]; known && by != c.by {
			changes[c.task]++
		}
		last[c.task] = c.by
	}
	return changes
}
