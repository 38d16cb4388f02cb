package bench

import (
	"fmt"
	"strings"
	"testing"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// benchmarkSteps measures a job of n trivial steps, beside as many children of this process one after the other.
func benchmarkSteps(b *testing.B, n int) {
	var text strings.Builder
	text.WriteString("run:\n")
	for i := range n {
		fmt.Fprintf(&text, "- name: step%d\n  script: %s\n", i, trivial)
	}
	s := newServe(b)
	r := inTurns(b, twice, []candidate{
		together("job", 1, func() error {
			id, err := s.submit(b.Context(), &pb.RunRequest{Job: &pb.Job{Steps: []byte(text.String())}})
			if err != nil {
				return err
			}
			return s.readAll(b.Context(), id, int64(3*n))
		}),
		together("fork", 1, func() error {
			for range n {
				if err := fork(b.Context(), trivial, 3); err != nil {
					return err
				}
			}
			return nil
		}),
	})
	r.latencies("ms", "job", "fork")
	r.ratios("fork", "job")
}

// benchmarkCompile measures the compilation of a job of n steps, each of which reads an output of the step before. It
// should take less than 50 ms.
func benchmarkCompile(b *testing.B, n int) {
	var text strings.Builder
	text.WriteString("run:\n")
	for i := range n {
		fmt.Fprintf(&text, "- name: step%d\n  step: ./lib/step\n  env: {NUMBER: \"%d\"}\n"+
			"  inputs:\n    message: \"hello ${{ vars.NAME }}\"\n", i, i)
		if i > 0 {
			fmt.Fprintf(&text, "    before: ${{ steps.step%d.outputs.value }}\n", i-1)
		}
	}
	r := inTurns(b, usual, []candidate{together("compile", 1, func() error {
		_, err := lang.Parse("job.yml", []byte(text.String()))
		return err
	})})
	r.latencies("ms", "compile")
}
