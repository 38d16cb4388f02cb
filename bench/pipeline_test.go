package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// pipelineVMs are VMs that share no cache of projects.
type pipelineVMs struct {
	b       *testing.B
	options []string     // of stepmux run
	bytes   atomic.Int64 // to and from all VMs
}

// newPipelineVMs starts VMs with a number of slots each.
func newPipelineVMs(b *testing.B, vms, slots int) *pipelineVMs {
	b.Helper()
	p := &pipelineVMs{b: b}
	runner, err := runnertest.Program() // beside the program for archives
	require.NoError(b, err)
	runnertest.Manager(b) // its build is not a part of the first run
	var inventory strings.Builder
	inventory.WriteString("instances:\n")
	for i := range vms {
		v := newVM(b, "SetEnv SHLVL=1 XDG_CACHE_HOME="+b.TempDir())
		addr := sshtest.Listen(b, "tcp", "127.0.0.1:0", func(client net.Conn) { p.count(client, v.Addr) })
		fmt.Fprintf(&inventory, "  - {id: vm-%d, address: %q, user: %s, key: %s, capacity: %d, runner: %s, temp_dir: %s, "+
			"host_keys: [%q]}\n", i, addr, v.User, v.IdentityFile, slots, runner, v.tmp,
			strings.TrimSpace(string(ssh.MarshalAuthorizedKey(v.HostKey))))
	}
	file := filepath.Join(b.TempDir(), "fleet.yml")
	require.NoError(b, os.WriteFile(file, []byte(inventory.String()), 0o600))
	p.options = []string{"run", "--inventory", file, "--output", "json"}
	return p
}

// count connects a client to a VM, and counts the bytes.
func (p *pipelineVMs) count(client net.Conn, addr string) {
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	var copying sync.WaitGroup
	one := func(to, from net.Conn) {
		n, _ := io.Copy(to, struct{ io.Reader }{from})
		p.bytes.Add(n)
		to.Close()
	}
	copying.Go(func() { one(server, client) })
	one(client, server)
	copying.Wait()
}

// run runs a file of a project, and returns its results.
func (p *pipelineVMs) run(project string, more ...string) ([]byte, error) {
	cmd := exec.Command(runnertest.Manager(p.b), append(p.options[:len(p.options):len(p.options)], more...)...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr, cmd.Env = project, &stderr, append(os.Environ(), "XDG_CACHE_HOME="+p.b.TempDir())
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	return out, err
}

// pipelineProject returns a directory with a .gitlab-ci.yml.
func pipelineProject(b *testing.B, text string) string {
	b.Helper()
	dir := b.TempDir()
	require.NoError(b, os.WriteFile(filepath.Join(dir, ".gitlab-ci.yml"), []byte(text), 0o600))
	return dir
}

// BenchmarkPipeline measures whole pipelines on four VMs.
func BenchmarkPipeline(b *testing.B) {
	b.Run("stages", benchmarkStages)
	b.Run("artifacts", benchmarkArtifacts)
}

// benchmarkStages measures 200 jobs in four stages, beside as many builds of one job that wait for nothing.
func benchmarkStages(b *testing.B) {
	jobs, stages := 200, 4
	if testing.Short() {
		jobs = 24
	}
	text := "stages: ["
	for i := range stages {
		text += fmt.Sprintf("s%d, ", i)
	}
	text += "]\n"
	for i := range jobs {
		text += fmt.Sprintf("j%d: {stage: s%d, script: [\"true\"]}\n", i, i*stages/jobs)
	}
	p, project := newPipelineVMs(b, 4, 4), pipelineProject(b, text)
	timed := func(name string, more ...string) candidate {
		return candidate{name: name, run: func(r *results) error {
			begin := time.Now()
			_, err := p.run(project, append(more, ".gitlab-ci.yml")...)
			r.add(name, millis(time.Since(begin)))
			return err
		}}
	}
	n := strconv.Itoa(jobs)
	all := []candidate{
		timed("pipeline"), timed("builds", "--project", ".", "--job-name", "j0", "--builds", n),
		timed("bare", "--job-name", "j0", "--builds", n),
	}
	r := inTurns(b, costly, all)
	r.medians("ms", names(all)...)
	r.ratio("pipeline", "builds", "builds")
	r.ratio("pipeline", "bare", "bare")
}

// benchmarkArtifacts measures 60 jobs with an artifact of 1 MiB each, which three others need.
func benchmarkArtifacts(b *testing.B) {
	jobs, size := 60, 1<<20
	if testing.Short() {
		jobs = 8
	}
	const needs = 3
	text := "stages: [make, use]\n"
	for i := range jobs {
		text += fmt.Sprintf("m%d: {stage: make, script: [head -c %d /dev/urandom > f%[1]d], artifacts: {paths: [f%[1]d]}}\n",
			i, size)
		text += fmt.Sprintf("u%d: {stage: use, needs: [", i)
		for k := range needs {
			text += fmt.Sprintf("m%d, ", (i+k)%jobs)
		}
		text += fmt.Sprintf("], script: [test $(cat f* | wc -c) = %d]}\n", needs*size)
	}
	p, project := newPipelineVMs(b, 4, 4), pipelineProject(b, text)
	all := []candidate{{name: "all", run: func(r *results) error {
		before, begin := p.bytes.Load(), time.Now()
		out, err := p.run(project, ".gitlab-ci.yml")
		if err != nil {
			return err
		}
		r.add("all", millis(time.Since(begin)))
		at, err := instancesOf(out)
		if err != nil {
			return err
		}
		least := 0 // a transfer here of each artifact, and one to each VM that lacks it
		for i := range jobs {
			has := map[string]bool{at[fmt.Sprintf("m%d", i)]: true}
			for k := range needs {
				has[at[fmt.Sprintf("u%d", (i-k+jobs)%jobs)]] = true
			}
			least += len(has)
		}
		r.add("bytes", float64(p.bytes.Load()-before))
		r.add("least", float64(least*size))
		return nil
	}}}
	r := inTurns(b, costly, all)
	r.medians("ms", "all")
	r.ratio("bytes", "least", "least")
}

// instancesOf returns the VMs of jobs.
func instancesOf(out []byte) (map[string]string, error) {
	at := map[string]string{}
	for line := range bytes.Lines(out) {
		var result struct{ File, Instance string }
		if err := json.Unmarshal(line, &result); err != nil {
			return nil, err
		}
		at[strings.TrimPrefix(result.File, ".gitlab-ci.yml ")] = result.Instance
	}
	return at, nil
}
