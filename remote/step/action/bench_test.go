package action

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// BenchmarkSteps measures a step of a composite action beside a plain script of the engine, and a node action beside
// node itself. The two take turns, so that other load on the machine affects both alike.
func BenchmarkSteps(b *testing.B) {
	const steps = 20
	job := func(b *testing.B, prepare func(*trial)) func() {
		tr := newTrial(b)
		prepare(tr)
		init := &proc.Init{}
		b.Cleanup(func() { require.NoError(b, init.Close()) })
		return func() {
			cfg := tr.cfg
			cfg.Language, cfg.Start = New(Config{}), init.Start
			place := tr.place
			place.ScriptDir = b.TempDir()
			res := engine.New(cfg).Run(b.Context(), place)
			require.Equal(b, engine.Success, res.Status, res.Message)
		}
	}
	b.Run("composite", func(b *testing.B) {
		list := func(step string) string { return strings.Repeat(step, steps) }
		plain, composite := turns(b, job(b, func(tr *trial) {
			tr.steps(list("- {script: 'echo \"${{ 1 + 1 }}\"'}\n"))
		}), job(b, func(tr *trial) {
			tr.file("a/action.yml", composite+list("    - {shell: bash, run: 'echo \"${{ 1 == 1 }}\"'}\n"))
			tr.steps("- {name: a, action: ./a}\n")
		}))
		b.ReportMetric(plain/steps, "plain-ms/step")
		b.ReportMetric(composite/steps, "composite-ms/step")
		b.ReportMetric(composite/plain, "composite/plain")
	})
	b.Run("node", func(b *testing.B) {
		node := needs(b, "node")
		tr := newTrial(b)
		tr.file("m.js", "")
		own := exec.Command(node, filepath.Join(tr.place.WorkDir, "m.js"))
		// Node is slower to start with some variables, which no action gets. A session has a share of a busy machine.
		own.Env = tr.cfg.RunnerEnv
		own.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		plain, action := turns(b, func() {
			cmd := *own
			require.NoError(b, cmd.Run())
		}, job(b, func(tr *trial) {
			tr.file("a/action.yml", "runs: {using: node20, main: m.js}\n")
			tr.file("a/m.js", "")
			tr.workflow("- uses: ./a\n")
		}))
		b.ReportMetric(plain, "node-ms")
		b.ReportMetric(action, "action-ms")
		b.ReportMetric(action-plain, "more-ms")
	})
}

// turns runs two functions in turns, and returns the median time of each, in milliseconds.
func turns(b *testing.B, one, other func()) (medianOne, medianOther float64) {
	b.ReportAllocs()
	var times [2][]float64
	for b.Loop() {
		for i, run := range []func(){one, other} {
			begin := time.Now()
			run()
			times[i] = append(times[i], float64(time.Since(begin).Microseconds())/1000)
		}
	}
	slices.Sort(times[0])
	slices.Sort(times[1])
	return times[0][len(times[0])/2], times[1][len(times[1])/2]
}
