//go:build gitea

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/giteatest"
	"github.com/stepmux/stepmux/internal/testing/npmtest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// serveServers starts a manager for servers, with VMs that have four slots each.
func serveServers(t *testing.T, vms int, servers map[string]*giteatest.Gitea) *serversRunner {
	t.Helper()
	dir := t.TempDir()
	config := "gitea:\n"
	for name, server := range servers {
		token := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(token, []byte(server.RegistrationToken), 0o600))
		config += fmt.Sprintf("- {name: %s, url: %q, token-file: %s, runner: %s}\n", name, server.URL, token, name)
	}
	return serveConfig(t, dir, vms, config)
}

// serveConfig starts a manager with lines of its configuration.
func serveConfig(t *testing.T, dir string, vms int, config string) *serversRunner {
	t.Helper()
	inventory, _ := newInventory(t, dir, vms)
	return serveInventory(t, dir, inventory, config)
}

// checkoutAction fetches the commit of the run with the token of the job.
const checkoutAction = `name: checkout
runs:
  using: composite
  steps:
  - shell: sh
    env: {TOKEN: "${{ github.token }}"}
    run: |
      git init -q .
      auth=$(printf 'x:%s' "$TOKEN" | base64 -w 0)
      git -c http.extraHeader="Authorization: Basic $auth" \
        fetch -q --depth 1 "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY" "$GITHUB_SHA"
      git checkout -q FETCH_HEAD
`

// workflow is a workflow that runs after a push.
func workflow(jobs string) map[string]string {
	return map[string]string{".gitea/workflows/ci.yml": "name: CI\non: push\njobs:\n" + jobs}
}

// conclusions describes jobs: how each, and each of its steps, has ended.
func conclusions(r *giteatest.Repo, jobs map[string]giteatest.Job) map[string]string {
	all := map[string]string{}
	for name, job := range jobs {
		all[name] = job.Conclusion + ": " + strings.Join(r.Steps(job), " ")
	}
	return all
}

// Jobs of a real Gitea. make prove WHAT=gitea runs these tests.
func TestJobsOfARealGitea(t *testing.T) {
	g := giteatest.Real(t)
	serveServers(t, 2, map[string]*giteatest.Gitea{"one": g})
	g.Repo("checkout", map[string]string{"action.yml": checkoutAction})

	t.Run("push", func(t *testing.T) {
		files := workflow(`  a:
    runs-on: ubuntu-latest
    steps:
    - uses: ann/checkout@main
    - run: cat text; echo "on $GITHUB_REF by $GITHUB_ACTOR of $GITHUB_REPOSITORY"
    - {run: exit 1, if: failure()}
    - run: echo long; seq 3000
`)
		files["text"] = "of the commit\n"
		r := g.Repo("push", files)
		jobs := r.Ended(1)
		rows := r.Rows(jobs["a"].ID)
		require.Equal(t, "success: success success success skipped success success", conclusions(r, jobs)["a"], "%q", rows)
		require.Contains(t, rows, "of the commit")
		require.Contains(t, rows, "on refs/heads/main by ann of ann/push")
		require.Equal(t, []string{"long", "1"}, rows[len(rows)-3002:][:2])
		require.Equal(t, []string{"3000", "stepmux: the job has succeeded"}, rows[len(rows)-2:])
	})
	t.Run("matrix and needs", func(t *testing.T) {
		r := g.Repo("needs", workflow(`  first:
    runs-on: ubuntu-latest
    outputs: {word: "${{ steps.s.outputs.word }}"}
    steps: [{id: s, run: 'echo "word=of the first" >> "$GITHUB_OUTPUT"'}]
  each:
    needs: first
    runs-on: ubuntu-latest
    strategy: {matrix: {n: [1, 2, 3], include: [{n: 3, more: yes}]}}
    steps: [{run: 'echo "${{ matrix.n }}${{ matrix.more }} ${{ needs.first.outputs.word }} ${{ strategy.job-total }}"'}]
  last:
    needs: [first, each]
    runs-on: ubuntu-latest
    steps: [{run: 'echo "${{ needs.each.result }} ${{ needs.first.outputs.word }}"'}]
`))
		jobs := r.Ended(5)
		said := map[string]string{}
		for name, job := range jobs {
			require.Equal(t, "success", job.Conclusion, "%s: %q", name, r.Rows(job.ID))
			said[name] = r.Rows(job.ID)[0]
		}
		require.Equal(t, "success of the first", said["last"])
		require.Equal(t, "2 of the first 1", said["each (2)"], "%q", said) // the server narrows the matrix
		require.Equal(t, "3yes of the first 1", said["each (yes, 3)"], "%q", said)
	})
	t.Run("if and a failed need", func(t *testing.T) {
		r := g.Repo("if", workflow(`  bad: {runs-on: ubuntu-latest, steps: [{run: exit 3}]}
  after: {needs: bad, runs-on: ubuntu-latest, steps: [{run: echo no}]}
  always:
    {needs: bad, if: always(), runs-on: ubuntu-latest, steps: [{run: 'echo "${{ needs.bad.result }}"'}]}
  failed: {needs: bad, if: failure(), runs-on: ubuntu-latest, steps: [{run: echo yes}]}
  never: {if: "github.ref == 'refs/heads/other'", runs-on: ubuntu-latest, steps: [{run: echo no}]}
`))
		jobs := r.Ended(5)
		require.Equal(t, map[string]string{
			"bad": "failure: success failure failure", "after": "skipped: ", "never": "skipped: skipped skipped skipped",
			"always": "success: success success success", "failed": "success: success success success",
		}, conclusions(r, jobs))
		require.Equal(t, "failure", r.Rows(jobs["always"].ID)[0])
	})
	t.Run("secrets are masked", func(t *testing.T) {
		r := g.Repo("secrets", nil)
		r.Secret("PASSWORD", "correct horse battery")
		r.Variable("LEVEL", "low")
		r.Push(workflow(`  a:
    runs-on: ubuntu-latest
    steps:
    - run: echo "$P, ${{ vars.LEVEL }}, ${{ github.token }}"; echo "$P" | tr a-z A-Z
      env: {P: "${{ secrets.PASSWORD }}"}
`))
		rows := r.Rows(r.Ended(1)["a"].ID)
		require.Equal(t, []string{
			"[MASKED], low, [MASKED]", "CORRECT HORSE BATTERY", "stepmux: the job has succeeded",
		}, rows)
	})
	t.Run("cancel", func(t *testing.T) {
		pid := filepath.Join(t.TempDir(), "pid")
		r := g.Repo("cancel", workflow(`  a:
    runs-on: ubuntu-latest
    steps:
    - run: echo $$ >`+pid+`.part; mv `+pid+`.part `+pid+`; exec sleep 1000
    - {run: echo always, if: always()}
`))
		var number int
		require.Eventually(t, func() bool {
			text, err := os.ReadFile(pid)
			number, _ = strconv.Atoi(strings.TrimSpace(string(text)))
			return err == nil
		}, bound, 20*time.Millisecond)
		r.Cancel(r.Runs()[0].ID)
		began := time.Now()
		require.Eventually(t, func() bool { return !sshtest.Runs(number) }, bound, time.Millisecond)
		t.Logf("the step ended %v after the cancel", time.Since(began))
		require.Less(t, time.Since(began), 5*time.Second)
		job := r.Ended(1)["a"]
		require.Equal(t, "cancelled", job.Conclusion)
		require.Eventually(t, func() bool {
			rows := r.Rows(job.ID)
			return len(rows) > 0 && rows[len(rows)-1] == "stepmux: the job was cancelled"
		}, bound, 100*time.Millisecond, "%q", r.Rows(job.ID))
	})
	t.Run("rerun", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		r := g.Repo("rerun", workflow(`  a:
    runs-on: ubuntu-latest
    steps: [{run: 'echo "attempt $GITHUB_RUN_ATTEMPT"; test -e `+file+`'}]
  b: {needs: a, runs-on: ubuntu-latest, steps: [{run: echo b}]}
`))
		require.Equal(t, "failure", r.Ended(2)["a"].Conclusion)
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		r.Rerun(r.Runs()[0].ID)
		jobs := r.Ended(2)
		require.Equal(t, "success", jobs["a"].Conclusion)
		require.Equal(t, "success", jobs["b"].Conclusion)
		require.Equal(t, "attempt 2", r.Rows(jobs["a"].ID)[0])
	})
	t.Run("a mistake", func(t *testing.T) {
		r := g.Repo("mistake", workflow("  a: {runs-on: ubuntu-latest, steps: [{run: 'echo ${{ nothing.of }}'}]}\n"))
		job := r.Ended(1)["a"]
		require.Equal(t, "failure", job.Conclusion)
		require.Contains(t, r.Rows(job.ID)[0], "ci.yml:8: run: Unrecognized named-value: 'nothing'.")
	})
}

// clientsAction calls the clients of npm, as the lines of its input say.
const clientsAction = `import fs from 'node:fs'
import path from 'node:path'
const [,, packages, ...verbs] = process.argv
const load = async name => import(path.join(packages, 'node_modules', name, 'lib', name.split('-')[0] + '.js')).
  catch(() => import(path.join(packages, 'node_modules', name, 'lib', name.split('-')[0] + '-client.js')))
fs.mkdirSync('d', { recursive: true })
for (const verb of verbs) {
  const [what, name, key] = verb.split(':')
  const m = await load(name)
  try {
    if (what == 'upload') {
      fs.writeFileSync('d/f', 'an artifact of ' + name)
      const client = m.create ? m.create() : new m.DefaultArtifactClient()
      await client.uploadArtifact(key, ['d/f'], '.')
      await client.downloadArtifact(key, 'back')
      console.log('artifact: ' + fs.readFileSync('back/d/f'))
    } else if (what == 'save') {
      fs.writeFileSync('d/f', 'a cache of ' + key)
      console.log('saved: ' + (await m.saveCache(['d'], key) > 0))
    } else {
      fs.rmSync('d', { recursive: true })
      console.log('restored: ' + await m.restoreCache(['d'], 'none', [key.slice(0, 2)]) + ': ' + fs.readFileSync('d/f'))
    }
  } catch (err) {
    console.log('error of ' + name + ': ' + err.message)
  }
}
`

// addClients adds an action that calls the clients in packages.
func addClients(g *giteatest.Gitea, packages string) {
	g.Repo("clients", map[string]string{
		"action.yml": "runs: {using: node20, main: main.mjs}\ninputs: {do: {}}\n",
		"main.mjs": "import { execFileSync } from 'node:child_process'\nimport path from 'node:path'\n" +
			"execFileSync(process.execPath, [path.join(import.meta.dirname, 'clients.mjs'), '" + packages +
			"', ...process.env.INPUT_DO.split(' ')], { stdio: 'inherit' })\n",
		"clients.mjs": clientsAction,
	})
}

// The clients of artifacts and caches in jobs of a real Gitea, which has the artifacts; the manager has the caches.
func TestClientsOfArtifactsAndCachesInJobsOfARealGitea(t *testing.T) {
	packages, err := npmtest.Install(t.TempDir(), map[string]string{
		"artifact-1": npmtest.Clients["artifact-1"], "artifact-2": npmtest.Clients["artifact-2"],
		"cache-3": npmtest.Clients["cache-3"], "cache-4": "@actions/cache@4.0.0",
	})
	require.NoError(t, err)
	g := giteatest.Real(t)
	serveServers(t, 1, map[string]*giteatest.Gitea{"one": g})
	g.Repo("checkout", map[string]string{"action.yml": checkoutAction})
	addClients(g, packages)
	r := g.Repo("uses", workflow(`  first:
    runs-on: ubuntu-latest
    steps:
    - uses: ann/clients@main
      with: {do: 'upload:artifact-1:one upload:artifact-2:two save:cache-3:k3 save:cache-4:k4'}
  second:
    needs: first
    runs-on: ubuntu-latest
    steps: [{uses: ann/clients@main, with: {do: 'restore:cache-3:k3 restore:cache-4:k4'}}]
`))
	jobs := r.Ended(2)
	first, second := strings.Join(r.Rows(jobs["first"].ID), "\n"), strings.Join(r.Rows(jobs["second"].ID), "\n")
	t.Logf("%s\n%s", first, second)
	require.Contains(t, first, "artifact: an artifact of artifact-1\n")
	require.Contains(t, first, "error of artifact-2: @actions/artifact v2.0.0+, upload-artifact@v4+ and "+
		"download-artifact@v4+ are not currently supported on GHES.\n", "the client refuses each host that is not GitHub's")
	require.Equal(t, 2, strings.Count(first, "saved: true\n"), first)
	require.Contains(t, second, "restored: k3: a cache of k3\n")
	require.Contains(t, second, "restored: k4: a cache of k4\n")
}
