package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// peersVar names the directory of the programs that make bin/peers installs.
const peersVar = "STEPMUX_PEERS"

// peer returns the path of a peer, or false, and reports that it is missing.
func peer(b *testing.B, name, path string) (string, bool) {
	dir, err := filepath.Abs(cmp.Or(os.Getenv(peersVar), "../bin/peers"))
	require.NoError(b, err)
	path = filepath.Join(dir, path)
	if _, err := os.Stat(path); err != nil {
		missing(b, name, "part missing: make bin/peers installs it")
		return "", false
	}
	return path, true
}

// peerTime bounds the time that a peer takes. One that has not ended by then counts as if it had.
const peerTime = 3 * time.Minute

// project is the directory of a project with one file, a pipeline or a workflow.
type project struct {
	b         *testing.B
	dir, file string
	manager   string
}

func newProject(b *testing.B, file, text string) *project {
	p := &project{b: b, dir: b.TempDir(), file: file, manager: runnertest.Manager(b)}
	path := filepath.Join(p.dir, file)
	require.NoError(b, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(b, os.WriteFile(path, []byte(text), 0o600))
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@x.test", "commit", "-q", "-m", "a"},
	} {
		require.NoError(b, p.run("git", args...))
	}
	return p
}

// command returns a command in the directory of the project.
func (p *project) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "HOME="+p.dir+".home")
	return cmd
}

// run runs a command for peerTime at most.
func (p *project) run(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(p.b.Context(), peerTime)
	defer cancel()
	cmd := p.command(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(name), err, out[max(0, len(out)-1<<10):])
	}
	return nil
}

// timed returns a candidate that runs a command.
func (p *project) timed(name, program string, args ...string) candidate {
	return candidate{name: name, run: func(r *results) error {
		begin := time.Now()
		err := p.run(program, args...)
		r.add(name, float64(time.Since(begin).Milliseconds()))
		return err
	}}
}

// stepmux is local, with as many jobs at once as there are processors.
func (p *project) stepmux() candidate { return p.timed("local", p.manager, "local", p.file) }

// stagesOf is the text of a pipeline of jobs of true in some stages.
func stagesOf(jobs, stages int) string {
	var text strings.Builder
	text.WriteString("stages: [s0")
	for i := 1; i < stages; i++ {
		fmt.Fprintf(&text, ", s%d", i)
	}
	text.WriteString("]\n")
	for i := range jobs {
		fmt.Fprintf(&text, "j%d: {stage: s%d, script: ['true']}\n", i, i*stages/jobs)
	}
	return text.String()
}

// BenchmarkLocalPipeline measures whole pipelines on this machine, beside the programs that people use for that.
func BenchmarkLocalPipeline(b *testing.B) {
	size := func(usual, short int) int {
		if testing.Short() {
			return short
		}
		return usual
	}
	jobs := size(200, 8)
	b.Run(fmt.Sprintf("gitlab/jobs=%d", jobs), func(b *testing.B) {
		p := newProject(b, ".gitlab-ci.yml", stagesOf(jobs, 4))
		all := []candidate{p.stepmux()}
		if path, ok := peer(b, "gitlab-ci-local", "node_modules/.bin/gitlab-ci-local"); ok {
			other := p.timed("gitlab-ci-local", path, "--shell-executor-no-image", "--quiet")
			other.every = 1000 // it takes minutes: the first turn is enough
			all = append(all, other)
		}
		against(inTurns(b, twice, all), "gitlab-ci-local")
	})
	jobs = size(50, 5)
	b.Run(fmt.Sprintf("github/jobs=%d", jobs), func(b *testing.B) {
		var text strings.Builder
		text.WriteString("on: push\njobs:\n")
		for i := range jobs {
			fmt.Fprintf(&text, "  j%d: {runs-on: ubuntu-latest, steps: [{run: 'true'}]}\n", i)
		}
		p := newProject(b, ".github/workflows/ci.yml", text.String())
		all := []candidate{p.stepmux()}
		if path, ok := peer(b, "act", "act"); ok {
			all = append(all, p.timed("act", path, "push", "-P", "ubuntu-latest=-self-hosted", "--quiet"))
		}
		against(inTurns(b, costly, all), "act")
	})
	b.Run("chain", func(b *testing.B) { benchmarkChain(b, size(40, 5)) })
	b.Run("plan/stages=2", func(b *testing.B) { benchmarkPlan(b, stagesOf(size(10_000, 100), 2)) })
	b.Run("plan/needs=50", func(b *testing.B) {
		var text strings.Builder
		text.WriteString(stagesOf(50, 1) + ".n: {script: ['true'], stage: s0, needs: [j0")
		for i := 1; i < 50; i++ {
			fmt.Fprintf(&text, ", j%d", i)
		}
		text.WriteString("]}\n")
		for i := range size(10_000, 100) - 50 {
			fmt.Fprintf(&text, "n%d: {extends: .n}\n", i)
		}
		benchmarkPlan(b, text.String())
	})
}

// against reports local beside a peer.
func against(r *results, other string) {
	r.medians("ms", "local", other)
	r.ratio("local", other, other)
}

// benchmarkChain measures jobs that wait for one another. handoff is from the last line of a job to the first line of
// the next one, and start from the slot of a job to its first line.
func benchmarkChain(b *testing.B, jobs int) {
	var text strings.Builder
	for i := range jobs {
		fmt.Fprintf(&text, "j%d: {needs: [", i)
		if i > 0 {
			fmt.Fprintf(&text, "j%d", i-1)
		}
		text.WriteString("], script: ['echo first $(date +%s%N)', 'echo last $(date +%s%N)']}\n")
	}
	p := newProject(b, ".gitlab-ci.yml", text.String())
	r := inTurns(b, usual, []candidate{{name: "chain", run: func(r *results) error {
		cmd := p.command(b.Context(), p.manager, "local", p.file, "--output", "json")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("local: %w: %s", err, stderr.Bytes())
		}
		return addChain(r, stdout.Bytes(), stderr.String())
	}}})
	r.latencies("µs", "handoff", "start")
	r.ratio("handoff", "start", "start")
}

// addChain adds the figures of a chain. output has the lines of its jobs.
func addChain(r *results, report []byte, output string) error {
	lines := map[string]time.Time{}
	for line := range strings.Lines(output) {
		job, text, _ := strings.Cut(strings.TrimSpace(line), " | ")
		which, at, _ := strings.Cut(text, " ")
		if ns, err := strconv.ParseInt(at, 10, 64); err == nil {
			lines[job+" "+which] = time.Unix(0, ns)
		}
	}
	var of struct {
		Jobs []struct {
			Name    string
			Started time.Time
		}
	}
	if err := json.Unmarshal(report, &of); err != nil {
		return err
	}
	for i, j := range of.Jobs {
		first, ok := lines[j.Name+" first"]
		if !ok {
			return errors.New("the output has no line of " + j.Name)
		}
		r.add("start", micros(first.Sub(j.Started)))
		if i > 0 {
			r.add("handoff", micros(first.Sub(lines[of.Jobs[i-1].Name+" last"])))
		}
	}
	return nil
}

// benchmarkPlan measures how long the list of a pipeline takes, and how much more memory than that of one job.
func benchmarkPlan(b *testing.B, text string) {
	large, small := newProject(b, ".gitlab-ci.yml", text), newProject(b, ".gitlab-ci.yml", stagesOf(1, 1))
	list := func(r *results, p *project, name string) error {
		cmd := p.command(b.Context(), p.manager, "local", p.file, "--list")
		begin := time.Now()
		if err := cmd.Run(); err != nil {
			return err
		}
		r.add(name+"-ms", float64(time.Since(begin).Microseconds())/1000)
		r.add(name+"-MiB", float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)/1024)
		return nil
	}
	r := inTurns(b, costly, []candidate{{name: "plan", run: func(r *results) error {
		if err := list(r, small, "small"); err != nil {
			return err
		}
		if err := list(r, large, "plan"); err != nil {
			return err
		}
		n := len(r.values["plan-MiB"]) - 1
		r.add("more-MiB", r.values["plan-MiB"][n]-r.values["small-MiB"][n])
		return nil
	}}})
	r.median("plan-ms", "plan-ms")
	r.median("more-MiB", "more-MiB")
}
