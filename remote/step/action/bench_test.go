package action

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// BenchmarkSteps measures jobs of twenty steps: plain scripts of the engine, the same in a composite action, and the
// same as node actions beside node itself.
func BenchmarkSteps(b *testing.B) {
	const steps = 20
	list := func(step string) string { return strings.Repeat(step, steps) }
	run := func(b *testing.B, prepare func(*trial)) {
		tr := newTrial(b)
		prepare(tr)
		init := &proc.Init{}
		defer func() { require.NoError(b, init.Close()) }()
		b.ReportAllocs()
		for b.Loop() {
			cfg := tr.cfg
			cfg.Language, cfg.Start = New(Config{}), init.Start
			place := tr.place
			place.ScriptDir = b.TempDir()
			res := engine.New(cfg).Run(b.Context(), place)
			require.Equal(b, engine.Success, res.Status, res.Message)
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/steps/1000, "ms/step")
	}
	b.Run("plain", func(b *testing.B) {
		run(b, func(tr *trial) { tr.steps(list("- {script: 'echo \"${{ 1 + 1 }}\"'}\n")) })
	})
	b.Run("composite", func(b *testing.B) {
		run(b, func(tr *trial) {
			tr.file("a/action.yml", composite+list("    - {shell: bash, run: 'echo \"${{ 1 == 1 }}\"'}\n"))
			tr.steps("- {name: a, action: ./a}\n")
		})
	})
	b.Run("node-action", func(b *testing.B) {
		needs(b, "node")
		run(b, func(tr *trial) {
			tr.file("a/action.yml", "runs: {using: node20, main: m.js}\n")
			tr.file("a/m.js", "")
			tr.workflow(list("- uses: ./a\n"))
		})
	})
	b.Run("node", func(b *testing.B) {
		node := needs(b, "node")
		tr := newTrial(b)
		tr.file("m.js", "")
		file := filepath.Join(tr.place.WorkDir, "m.js")
		for b.Loop() {
			for range steps {
				require.NoError(b, exec.Command(node, file).Run())
			}
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/steps/1000, "ms/step")
	})
}
