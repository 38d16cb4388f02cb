package lang

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// manySteps returns a job of n steps. Each reads outputs of the step before it.
func manySteps(n int) []byte {
	var b strings.Builder
	b.WriteString("run:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - name: step%d\n    step: ./lib/step\n    env: {LEVEL: debug, NUMBER: \"%d\"}\n    timeout: "+
			"10m\n    inputs:\n", i, i)
		fmt.Fprintf(&b, "      message: \"hello ${{ vars.NAME }}, number %d\"\n      list: [a, b, {c: 1.5}]\n", i)
		if i > 0 {
			fmt.Fprintf(&b, "      before: ${{ steps.step%d.outputs.value }}\n    if: steps.step%d.status == \"success\"\n", i-1,
				i-1)
		}
	}
	return []byte(b.String())
}

func BenchmarkParse(b *testing.B) {
	for name, text := range map[string][]byte{
		"calls=10":     manySteps(10),
		"calls=1000":   manySteps(1000),
		"scripts=1000": []byte("run:\n" + strings.Repeat("  - script: make ${{ vars.TARGET }}\n    env: {A: b}\n", 1000)),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				_, err := Parse("job.yml", text)
				require.NoError(b, err)
			}
		})
	}
}
