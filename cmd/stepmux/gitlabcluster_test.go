//go:build gitlab

package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// One of two managers of a cluster is killed in a phase of a job, by turns. Every other time it starts again at once
// and goes on with its jobs; otherwise the other manager ends them first. STEPMUX_GITLAB_CLUSTER is how often one is
// killed.
func TestManagersOfAClusterThatAreKilledLoseNoJobOfGitLab(t *testing.T) {
	kills := numberFrom(t, "STEPMUX_GITLAB_CLUSTER", len(gitLabPhases))
	fake := gitlabtest.New(gitlabtest.Config{
		Acknowledges: true, Acknowledge: 3 * time.Second, Interval: time.Second, Hold: time.Second,
	})
	t.Cleanup(fake.Close)
	dir := t.TempDir()
	ledger, token := filepath.Join(dir, "ledger"), filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte(gitlabtest.RunnerToken), 0o600))
	inventory, _ := newInventory(t, dir, 2)
	servers, urls := newNATS(t, 3)
	for _, s := range servers {
		s.start()
		t.Cleanup(s.kill)
	}
	var gates []*gitLabGate
	var managers []*managerProcess
	var url string
	for i := range 2 {
		gate := &gitLabGate{to: fake}
		server := httptest.NewServer(gate)
		t.Cleanup(server.Close)
		url = server.URL
		file := filepath.Join(dir, fmt.Sprintf("m%d.yml", i))
		config := fmt.Sprintf("gitlab: {name: lab, url: %q, token-file: %s}\n", url, token)
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
		m := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: bound}
		m.args = []string{
			"manager", "--config", file, "--state", filepath.Join(dir, fmt.Sprintf("state-%d", i)), "--inventory", inventory,
			"--socket", m.socket, "--key-file", filepath.Join(dir, "key"), "--nats", urls, "--log-level", "info",
		}
		t.Cleanup(func() {
			m.kill()
			if t.Failed() {
				t.Logf("the log of manager %d:\n%s", i, lastOf(&m.stderr))
			}
		})
		m.start()
		gates, managers = append(gates, gate), append(managers, m)
	}
	var ids []int64
	for i := range kills {
		p, victim := gitLabPhases[i%len(gitLabPhases)], i/2%2
		t.Logf("kill %d: manager %d, %s", i, victim, p.name)
		hit, dead := gates[victim].arm(&p)
		require.Eventually(t, func() bool { // the other one may take a job
			select {
			case <-hit:
				return true
			default:
				ids = append(ids, fake.Add(countedJob(url, ledger, len(ids))))
				return false
			}
		}, bound, 3*time.Second)
		managers[victim].kill()
		close(dead)
		if i%2 == 0 {
			began := time.Now()
			requireEachOnce(t, fake, ids, ledger, func(int64) bool { return false })
			t.Logf("the other manager has ended all jobs after %v", time.Since(began).Round(time.Second))
		}
		managers[victim].start()
	}
	requireEachOnce(t, fake, ids, ledger, func(int64) bool { return false })
	systems := map[string]bool{}
	for _, id := range ids {
		systems[fake.Job(id).System] = true
	}
	t.Logf("%d kills, %d jobs", kills, len(ids))
	require.Len(t, systems, 2, "each manager has its own system_id")
}
