package page

import (
	"context"
	"net/http"
	"slices"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

const (
	// maxPipelines bounds the pipelines on their page, and maxColumn the jobs of a stage on that of a pipeline.
	maxPipelines, maxColumn = 200, 200
)

// pipelinesData is the page of the pipelines.
type pipelinesData struct {
	Pipelines []pipelineRow `json:"pipelines"` // the latest first
}

// pipelineRow is a pipeline in the list.
type pipelineRow struct {
	pb.PipelineJSON
	CountsText string `json:"-"`
}

// State is the word for how a pipeline stands, and the class of its colour.
func (p pipelineRow) State() string { return stateOf(p.PipelineJSON) }

func stateOf(p pb.PipelineJSON) string {
	if p.Status != "" {
		return p.Status
	}
	return p.Phase
}

func (p *pages) pipelines(ctx context.Context, _ *http.Request) (any, error) {
	list, err := p.cfg.Manager.ListPipelines(ctx, &pb.ListPipelinesRequest{Limit: maxPipelines})
	if err != nil {
		return nil, err
	}
	d := pipelinesData{Pipelines: []pipelineRow{}}
	for _, one := range list.GetPipelines() {
		d.Pipelines = append(d.Pipelines, pipelineRow{one.JSON(), one.CountsText()})
	}
	return d, nil
}

// pipelineData is the page of a pipeline.
type pipelineData struct {
	Pipeline pb.PipelineJSON `json:"pipeline"`
	// Columns are its stages, which run one after the other unless jobs name their needs.
	Columns []column `json:"-"`
	State   string   `json:"-"`
}

// column is a stage, or the jobs without a stage.
type column struct {
	Name string
	Jobs []pb.PipelineJobJSON
	More int // jobs that are not shown
}

func (p *pages) pipeline(ctx context.Context, r *http.Request) (any, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.cfg.Manager.GetPipeline(ctx, &pb.GetPipelineRequest{Id: idOf(r)})
	if err != nil {
		return nil, err
	}
	found, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	d := pipelineData{Pipeline: found.JSON(), State: stateOf(found.JSON())}
	for _, name := range found.GetStages() {
		d.Columns = append(d.Columns, column{Name: name})
	}
	for _, j := range d.Pipeline.Jobs {
		i := slices.IndexFunc(d.Columns, func(c column) bool { return c.Name == j.Stage })
		if i < 0 {
			i = len(d.Columns)
			d.Columns = append(d.Columns, column{Name: j.Stage})
		}
		if c := &d.Columns[i]; len(c.Jobs) < maxColumn {
			c.Jobs = append(c.Jobs, j)
		} else {
			c.More++
		}
	}
	d.Columns = slices.DeleteFunc(d.Columns, func(c column) bool { return len(c.Jobs) == 0 })
	return d, nil
}

func (p *pages) livePipelines(w http.ResponseWriter, r *http.Request) {
	p.live(w, r, &part{name: "pipelines", data: p.pipelines})
}

func (p *pages) livePipeline(w http.ResponseWriter, r *http.Request) {
	p.live(w, r, &part{name: "pipeline", data: p.pipeline})
}

func (p *pages) retry(ctx context.Context, r *http.Request) error {
	_, err := p.cfg.Manager.RetryPipeline(ctx, &pb.RetryPipelineRequest{Id: r.PathValue("id")})
	return err
}

func (p *pages) play(ctx context.Context, r *http.Request) error {
	_, err := p.cfg.Manager.PlayPipeline(ctx, &pb.PlayPipelineRequest{Id: r.PathValue("id"), Job: r.PostFormValue("job")})
	return err
}
