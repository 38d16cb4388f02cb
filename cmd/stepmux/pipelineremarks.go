package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/termtext"
)

// maxRemarks bounds the annotations and the summary of a job that come from a manager, in bytes.
const maxRemarks = 64 << 20

// remarkedReport returns the report of a pipeline with the annotations and summaries that the manager has kept. tell is
// called for those that are missing.
func remarkedReport(
	ctx context.Context, m pb.ManagerClient, p *pb.Pipeline, tell func(text string),
) (*whole.Report, error) {
	report := pipelineReport(p)
	jobs := map[string]*pb.PipelineJob{}
	for _, j := range p.GetJobs() {
		jobs[j.GetName()] = j
	}
	return report, report.AddRemarks(func(name string) ([]byte, error) {
		j := jobs[name]
		if j.GetRemarks() == 0 {
			return nil, nil
		}
		var text boundedBuffer
		err := getFile(ctx, m, &pb.ArtifactsRequest{Id: j.GetBuild(), Remarks: true}, &text)
		if status.Code(err) == codes.NotFound {
			tell(name + ": its annotations and its summary are not kept any more")
			return nil, nil
		}
		return text.Bytes(), err
	}, tell)
}

// boundedBuffer holds at most maxRemarks.
type boundedBuffer struct{ bytes.Buffer }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxRemarks {
		return 0, errors.New("they are too large")
	}
	return b.Buffer.Write(p)
}

// remarkedJSON returns a pipeline as JSON with the annotations and summaries of its report.
func remarkedJSON(p *pb.Pipeline, r *whole.Report) any {
	type job struct {
		pb.PipelineJobJSON
		Annotations any    `json:"annotations,omitempty"`
		Summary     string `json:"summary,omitempty"`
	}
	to := struct {
		pb.PipelineJSON
		Jobs []job `json:"jobs,omitempty"`
	}{PipelineJSON: p.JSON()}
	for i, j := range to.PipelineJSON.Jobs { // those of the report, in the same order
		one := job{PipelineJobJSON: j, Summary: r.Jobs[i].Summary}
		if list := r.Jobs[i].Annotations; len(list) > 0 {
			one.Annotations = list
		}
		to.Jobs = append(to.Jobs, one)
	}
	return to
}

// showPipeline writes the jobs of a pipeline, as JSON or as text, and the files of reports.
func showPipeline(
	ctx context.Context, cmd *cobra.Command, m pb.ManagerClient, p *pb.Pipeline, asJSON bool, files *wholeFlags,
) error {
	if !asJSON && files.sarif+files.summaries == "" {
		return writePipeline(cmd.OutOrStdout(), p)
	}
	report, err := remarkedReport(ctx, m, p, func(text string) {
		fmt.Fprintf(cmd.ErrOrStderr(), "note: %s\n", termtext.Line(text))
	})
	if err == nil {
		err = files.writeRemarks(report)
	}
	switch {
	case err != nil:
		return err
	case asJSON:
		return writeJSON(cmd.OutOrStdout(), remarkedJSON(p, report))
	default:
		return writePipeline(cmd.OutOrStdout(), p)
	}
}
