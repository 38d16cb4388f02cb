package giteadoor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/internal/yamltree"
)

// A job that calls a workflow (uses) is a task of its own, without steps. Its pipeline has the jobs of that workflow,
// whose files the door fetches from the server, with the token of the task. The log of the task has the logs of their
// builds, one whole log after the other, in an order that is kept before the first row of each: so the rows are the
// same after a restart.

// calledFile is a workflow that a job calls.
type calledFile struct {
	Reference string `json:"reference"`
	Commit    string `json:"commit,omitempty"` // of a reference to another repository
	Data      []byte `json:"data,omitempty"`
}

// addTo adds the file to a request.
func (f calledFile) addTo(req *pb.SubmitPipelineRequest) {
	req.Source.Files = append(req.Source.Files, &pb.SourceFile{Path: f.Reference, Data: f.Data})
	if f.Commit != "" {
		req.Source.Files = append(req.Source.Files, &pb.SourceFile{Path: f.Reference + " commit", Data: []byte(f.Commit)})
	}
	req.InImage = req.GetInImage() || shapeOf(f.Data).contained
}

// toldBuild is a build whose log is reported.
type toldBuild struct {
	Build string `json:"build"`
	Job   string `json:"job"`
}

// withoutRunsOn returns a workflow without the key runs-on of jobs that call others: Gitea adds one, and chooses the
// runner by it; the jobs that are called have their own.
func withoutRunsOn(text []byte) ([]byte, error) {
	t, err := yamltree.Load("", text, maxRecord)
	if err != nil || len(t.Docs) == 0 {
		return text, err
	}
	r := &yamltree.Reader{Text: t, Rules: yamltree.Rules{MaxCost: 4 * maxRecord, Unquoted: true, Nulls: true}}
	for _, key := range r.Mapping(t.Docs[0], "") {
		if key.Key != "jobs" {
			continue
		}
		for _, job := range r.Mapping(key.Value, "") {
			of := job.Value
			for i := 0; i+1 < len(of.Content); i += 2 {
				if of.Kind == yaml.MappingNode && of.Content[i].Value == "runs-on" {
					of.Content = slices.Delete(of.Content, i, i+2)
					break
				}
			}
		}
	}
	return yaml.Marshal(t.Docs[0])
}

// maxCalled bounds the files of workflows that a job calls.
const maxCalled = 100

// fetchCalled adds the workflows that the job calls to the request, and keeps them with the task.
func (t *report) fetchCalled(ctx context.Context, req *pb.SubmitPipelineRequest) error {
	before := len(t.record.Files)
	for ctx.Err() == nil {
		missing := t.d.Host().Missing(req)
		if len(missing) == 0 {
			break
		}
		for _, reference := range missing {
			if len(t.record.Files) >= maxCalled {
				return fmt.Errorf("the job calls more than %d workflows", maxCalled)
			}
			f := calledFile{Reference: reference}
			var refused *jobdoor.RefusedError
			t.repeat(ctx, "fetch a workflow that a job calls", func() error {
				err := t.fetch(ctx, &f)
				if errors.As(err, &refused) {
					err = nil
				}
				return err
			})
			if refused != nil {
				return fmt.Errorf("the job calls %.160s: %w", reference, refused)
			}
			t.record.Files = append(t.record.Files, f)
			f.addTo(req)
		}
	}
	if len(t.record.Files) > before && ctx.Err() == nil {
		return t.keep(ctx)
	}
	return nil
}

// keep keeps the record of the task as it is now.
func (t *report) keep(ctx context.Context) error {
	text, err := t.record.encode()
	if err == nil && t.record.Refused != "" {
		err = errors.New(t.record.Refused)
	}
	if err == nil {
		t.repeat(ctx, "keep a task", func() error { return t.d.Host().ChangeTask(ctx, t.stored, text) })
	}
	return err
}

// fetch fetches a workflow: one of the repository of the task at its commit, or OWNER/NAME/PATH@REVISION. A
// RefusedError says that it is not there.
func (t *report) fetch(ctx context.Context, f *calledFile) error {
	repository, revision, token := t.task.text("repository"), t.task.text("sha"), t.task.text("token")
	file, local := strings.CutPrefix(f.Reference, "./")
	if !local {
		file, local = strings.CutPrefix(f.Reference, "$/")
	}
	var err error
	if !local {
		var name string
		name, revision, _ = strings.Cut(f.Reference, "@")
		parts := strings.SplitN(name, "/", 3)
		if len(parts) < 3 { // the manager knows no such reference
			return &jobdoor.RefusedError{Err: errors.New("this names no file")}
		}
		repository, file = parts[0]+"/"+parts[1], parts[2]
		if f.Commit, err = t.client.Commit(ctx, token, repository, revision); err == nil {
			revision = f.Commit
		}
	}
	if err == nil {
		f.Data, err = t.client.File(ctx, token, repository, revision, file)
	}
	if told, ok := errors.AsType[*CallError](err); ok && told.Status < http.StatusInternalServerError &&
		told.Status != http.StatusTooManyRequests {
		return &jobdoor.RefusedError{Err: fmt.Errorf(
			"the server has no file %.160s of %.160s at %.160s that the token of the job may read: it answers %d %s",
			file, repository, revision, told.Status, told.Text)}
	}
	return err
}

// nextBuild waits for the n-th build whose log is to be reported, and keeps its place. It returns false if there are no
// more.
func (t *report) nextBuild(ctx context.Context, n int) (b toldBuild, ok bool) {
	for {
		b, found, over := t.pick(n)
		if found && n == len(t.record.Told) && t.shape.calls {
			t.record.Told = append(t.record.Told, b)
			if err := t.keep(ctx); err != nil { // it has too many builds for a record
				t.logger.Warn("the order of the logs of a task is not kept", "error", err)
			}
		}
		if found || over || ctx.Err() != nil {
			return b, found && ctx.Err() == nil
		}
		select {
		case <-t.grown:
		case <-ctx.Done():
		}
	}
}

// pick returns the n-th build, as far as it is known now. over says that there are no more. A job with steps has one
// build. Of the others, builds come in the order in which they start; those that never started come at the end.
func (t *report) pick(n int) (b toldBuild, found, over bool) {
	if n < len(t.record.Told) {
		return t.record.Told[n], true, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > 0 && !t.shape.calls {
		return b, false, true
	}
	var left []*pb.PipelineJob
	for _, j := range t.state.GetJobs() {
		known := slices.ContainsFunc(t.record.Told, func(b toldBuild) bool { return b.Build == j.GetBuild() })
		if j.GetBuild() != "" && !known && (j.GetStarted() != nil || t.ended || !t.shape.calls) {
			left = append(left, j)
		}
	}
	if len(left) == 0 {
		return b, false, t.ended
	}
	first := slices.MinFunc(left, func(a, b *pb.PipelineJob) int {
		return cmp.Or(startOf(a).Compare(startOf(b)), strings.Compare(a.GetName(), b.GetName()))
	})
	return toldBuild{first.GetBuild(), first.GetName()}, true, false
}

// startOf returns when a job has started, a late time for one that has not.
func startOf(j *pb.PipelineJob) time.Time {
	if j.GetStarted() == nil {
		return time.Unix(1<<40, 0)
	}
	return j.GetStarted().AsTime()
}

// whyOf says in which job of a called workflow the pipeline has failed, and why, or is empty.
func whyOf(p *pb.Pipeline) string {
	for _, j := range p.GetJobs() {
		if j.GetStatus() == "failed" && j.GetBuild() != "" {
			why := ": " + j.GetName()
			if j.GetWhy() != "" {
				why += ": " + termtext.Line(j.GetWhy())
			}
			return why
		}
	}
	return ""
}
