package manager

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/connector/place"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
)

// Pipelines knows the languages of pipelines.
type Pipelines interface {
	// Read plans the pipeline of a request: the same each time. An error is about the request.
	Read(asked *pb.SubmitPipelineRequest) (Planned, error)
	// Missing returns the references of workflows that the pipeline of a request calls, and whose files the request does
	// not have. With these, it may call others.
	Missing(asked *pb.SubmitPipelineRequest) []string
	// Remarks returns the annotations and the summary of a job, in JSON, from its trace. It returns nil without any.
	Remarks(trace []byte) ([]byte, error)
}

// Planned is a pipeline that can be carried out.
type Planned interface {
	// Shown describes the pipeline before any job has run.
	Shown() *pb.Pipeline
	// Warnings are about the scripts of its jobs.
	Warnings() []*pb.Warning
	// Containers calls check with the containers that the jobs describe, if they run in them, as far as they are known. A
	// job without one has nil.
	Containers(check func(own *place.Spec) error) error
	// Carry carries the pipeline out as far as it goes by itself, with the builds of run, and describes how it stands
	// then: its phase is blocked or ended. When life ends, it returns, and the builds go on. ctx ends with it, and when
	// the pipeline is cancelled. Then Carry begins no job, but for those that run after a cancel, and waits for the
	// others.
	Carry(ctx, life context.Context, run *PipelineRun) (*pb.Pipeline, error)
	// Series is the series of pipelines of which a newer one with another version ends the part newer of an older one.
	// The name is empty for a pipeline without one.
	Series() (name, version, newer string)
}

// The parts of a pipeline that a newer one may end.
const (
	EndUnlessStarted = state.EndUnlessStarted
	EndInterruptible = state.EndInterruptible
	EndNothing       = state.EndNothing
)

const (
	// maxPipelines bounds the pipelines that have not ended.
	maxPipelines = 1000
	// maxPlayed bounds the manual jobs that somebody has started in a pipeline.
	maxPlayed = 10_000
	// changes is how often a change of a record is tried while others change it.
	changes = 10
)

var errChanges = status.Error(codes.Aborted, "the pipeline changes all the time: try again")

func noPipeline(id string) error {
	return status.Errorf(codes.NotFound, "there is no pipeline %.80q; stepmux pipelines lists them", id)
}

// SubmitPipeline implements pb.ManagerServer, as do the following.
func (s *service) SubmitPipeline(
	ctx context.Context, req *pb.SubmitPipelineRequest,
) (*pb.SubmitPipelineResponse, error) {
	id, err := s.m.submitPipeline(ctx, req)
	if err != nil {
		return nil, s.m.failed(ctx, err)
	}
	return &pb.SubmitPipelineResponse{Id: id}, nil
}

func (m *Manager) submitPipeline(ctx context.Context, req *pb.SubmitPipelineRequest) (id string, err error) {
	if m.cfg.Pipelines == nil {
		return "", status.Error(codes.Unimplemented, "this manager runs no pipelines")
	}
	key, err := keyOf(req)
	if err != nil {
		return "", err
	}
	if len(req.ProtoReflect().GetUnknown()) > 0 {
		return "", status.Error(codes.InvalidArgument, "the request has fields that this manager does not know: use the "+
			"same version of stepmux for both")
	}
	if len(req.GetSource().GetName()) > maxFileName {
		return "", status.Errorf(codes.InvalidArgument, "the name of the file has more than %d bytes", maxFileName)
	}
	req.Key = ""
	if size, most := proto.Size(req), m.store.MaxRequest; size > most {
		return "", status.Errorf(codes.InvalidArgument, "the request has %d bytes, at most %d can be kept: are the files "+
			"that the pipeline includes, or compares, so many?", size, most)
	}
	plan, err := m.cfg.Pipelines.Read(req)
	if err != nil {
		return "", status.Error(codes.InvalidArgument, err.Error())
	}
	if warnings := plan.Warnings(); m.cfg.StrictScripts && len(warnings) > 0 {
		return "", status.Errorf(codes.InvalidArgument, "%s: %s (--strict-scripts of the manager)", warnings[0].GetWhere(),
			warnings[0].GetMessage())
	}
	if err := m.checkLabels(req.GetLabels()); err != nil {
		return "", err
	}
	if err := plan.Containers(func(own *place.Spec) error {
		_, err := m.placeOf(own, true)
		return err
	}); err != nil {
		return "", status.Error(codes.InvalidArgument, err.Error())
	}
	if err := checkServices(req.GetServices()); err != nil {
		return "", err
	}
	project := &pb.SubmitRequest{Project: req.GetProject(), ProjectBytes: req.GetProjectBytes()}
	if err := m.checkFiles(ctx, project); err != nil {
		return "", err
	}
	return m.keepPipeline(ctx, state.PipelineID(key), req, plan)
}

// keepPipeline keeps a pipeline, and calls for a manager.
func (m *Manager) keepPipeline(
	ctx context.Context, id string, req *pb.SubmitPipelineRequest, plan Planned,
) (string, error) {
	p, err := m.store.Pipeline(ctx, id)
	if err != nil {
		return "", err
	}
	if p == nil {
		all, err := m.store.AllPipelines(ctx)
		if err != nil {
			return "", err
		}
		open := slices.DeleteFunc(all, func(p *state.Pipeline) bool { return p.Phase == state.PipelineEnded })
		if len(open) >= maxPipelines {
			return "", status.Errorf(codes.ResourceExhausted, "there are %d pipelines that have not ended, and no more are "+
				"taken: wait, or cancel some", len(open))
		}
		shown := plan.Shown()
		if err := m.store.KeepRequest(ctx, id, req); err != nil {
			return "", err
		}
		if err := m.store.PutJobs(ctx, id, shown); err != nil {
			return "", err
		}
		p = &state.Pipeline{
			ID: id, Phase: state.PipelineQueued, File: req.GetSource().GetName(), Name: shown.GetName(),
			Submitted: time.Now(), Project: req.GetProject(), Counts: countsOf(shown),
		}
		if name, version, newer := plan.Series(); name != "" {
			p.Series = state.Digest(req.GetRepository(), req.GetSource().GetName(), name)
			p.Version, p.Newer = state.Digest(version), newer
		}
		if err := m.store.PutPipeline(ctx, p); err != nil && !errors.Is(err, state.ErrTaken) {
			return "", err
		}
	}
	if p.Phase != state.PipelineQueued {
		return id, nil
	}
	if err := m.endOlder(ctx, p); err != nil {
		return "", err
	}
	return id, m.callFor(ctx, id)
}

// callFor calls for a manager that carries a new pipeline out. With other managers, this one begins at once if it has a
// slot for the pipeline.
func (m *Manager) callFor(ctx context.Context, id string) error {
	first := m.firstFor(id)
	place, err := m.store.Call(ctx, id, first)
	if err != nil || first == "" {
		return err
	}
	err = m.takeCall(id, place, nil) //nolint:contextcheck // bounded by the manager's life
	if !m.carries(id) {              // another one does, and does not know of the slot
		m.rooms.release(id)
	}
	return err
}

// endOlder ends older pipelines, or jobs of them, that a newer one makes redundant.
func (m *Manager) endOlder(ctx context.Context, newest *state.Pipeline) error {
	if newest.Series == "" {
		return nil
	}
	all, err := m.store.AllPipelines(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Series != newest.Series || p.Version == newest.Version || !p.Submitted.Before(newest.Submitted) {
			continue
		}
		if err := m.supersede(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// supersede ends a pipeline of which there is a newer one, or its interruptible jobs.
func (m *Manager) supersede(ctx context.Context, p *state.Pipeline) error {
	for range changes {
		switch {
		case p == nil || p.AtRest() || p.Canceled || p.Redundant:
			return nil
		case p.Newer == state.EndInterruptible:
			p.Redundant = true
		case p.Newer == state.EndUnlessStarted:
			builds, err := m.store.BuildsOf(ctx, p.ID)
			if err != nil || slices.ContainsFunc(builds, func(r *state.Record) bool {
				return !r.Interruptible && r.Phase != state.PhaseWaiting
			}) {
				return err
			}
			p.Canceled, p.Replaced = true, replacedByCommit
		default:
			return nil
		}
		id := p.ID
		err := m.store.PutPipeline(ctx, p)
		if !errors.Is(err, state.ErrTaken) {
			return err
		}
		if p, err = m.store.Pipeline(ctx, id); err != nil {
			return err
		}
	}
	return errChanges
}

// replacedByCommit is why a newer pipeline has cancelled one.
const replacedByCommit = "a newer run of another commit made it redundant"

// countsOf counts the jobs of a pipeline by their status.
func countsOf(p *pb.Pipeline) map[string]int32 {
	counts := map[string]int32{}
	for _, j := range p.GetJobs() {
		counts[j.GetStatus()]++
	}
	return counts
}

// pipelineMessage returns a pipeline as clients know it. jobs may be nil.
func pipelineMessage(p *state.Pipeline, jobs *pb.Pipeline) *pb.Pipeline {
	to := &pb.Pipeline{}
	if jobs != nil {
		to = proto.CloneOf(jobs)
	}
	to.Id, to.File, to.Name, to.Canceled, to.Error = p.ID, p.File, p.Name, p.Canceled, p.Error
	to.Phase = pb.Pipeline_Phase(pb.Pipeline_Phase_value[p.Phase])
	to.Status, to.ExitCode, to.Counts = p.Status, int32(p.ExitCode), p.Counts // an exit code
	if jobs != nil && !p.AtRest() {
		to.Counts = countsOf(jobs)
	}
	to.Submitted, to.Started, to.EndedAt = timeOf(p.Submitted), timeOf(p.Started), timeOf(p.Ended)
	return to
}

// ListPipelines returns pipelines.
func (s *service) ListPipelines(ctx context.Context, req *pb.ListPipelinesRequest) (*pb.ListPipelinesResponse, error) {
	all, err := s.m.store.AllPipelines(ctx)
	if err != nil {
		return nil, s.m.failed(ctx, err)
	}
	limit := defaultListed
	if n := int(req.GetLimit()); n > 0 {
		limit = min(n, maxListed)
	}
	resp := &pb.ListPipelinesResponse{}
	for _, p := range all[:min(len(all), limit)] {
		one := pipelineMessage(p, nil)
		if p.Phase == state.PipelineRunning {
			jobs, err := s.m.store.Jobs(ctx, p.ID)
			if err != nil {
				return nil, s.m.failed(ctx, err)
			}
			one.Counts = countsOf(jobs)
		}
		resp.Pipelines = append(resp.Pipelines, one)
	}
	return resp, nil
}

// GetPipeline returns a pipeline, and again when it has changed.
func (s *service) GetPipeline(req *pb.GetPipelineRequest, stream grpc.ServerStreamingServer[pb.Pipeline]) error {
	ctx := stream.Context()
	err := error(nil)
	if !state.IsPipeline(req.GetId()) {
		return noPipeline(req.GetId())
	}
	watchErr := s.m.store.WatchPipeline(ctx, req.GetId(), func(p *state.Pipeline, jobs *pb.Pipeline) bool {
		if p == nil {
			err = noPipeline(req.GetId())
			return false
		}
		if err = stream.Send(pipelineMessage(p, jobs)); err != nil {
			return false
		}
		return req.GetFollow() && !p.AtRest()
	})
	if err == nil {
		err = watchErr
	}
	if err != nil {
		return s.m.failed(ctx, err)
	}
	return nil
}

// changePipeline changes the record of a pipeline for a client, and calls for a manager. edit may be called again.
func (m *Manager) changePipeline(ctx context.Context, id string, edit func(*state.Pipeline) error) error {
	for range changes {
		p, err := m.store.Pipeline(ctx, id)
		if err != nil {
			return err
		}
		if p == nil {
			return noPipeline(id)
		}
		if err := edit(p); err != nil {
			return err
		}
		if p.AtRest() {
			p.Phase, p.Status, p.ExitCode, p.Error, p.Ended = state.PipelineQueued, "", 0, "", time.Time{}
		}
		err = m.store.PutPipeline(ctx, p)
		if errors.Is(err, state.ErrTaken) {
			continue
		}
		if err == nil {
			_, err = m.store.Call(ctx, id, "")
		}
		return err
	}
	return errChanges
}

func (s *service) cancelPipeline(ctx context.Context, id string) error {
	ended := false
	err := s.m.changePipeline(ctx, id, func(p *state.Pipeline) error {
		if ended = p.Phase == state.PipelineEnded; ended {
			return errEnded
		}
		p.Canceled, p.Killed = true, p.Canceled
		return nil
	})
	if ended {
		return nil
	}
	if err == nil {
		s.m.note(ctx, state.Action{Who: callerOf(ctx), Action: "cancel", Subject: id})
	}
	return err
}

// PlayPipeline starts manual jobs of a pipeline.
func (s *service) PlayPipeline(ctx context.Context, req *pb.PlayPipelineRequest) (*pb.PlayPipelineResponse, error) {
	ctx = context.WithoutCancel(ctx) // as in Cancel
	err := s.m.changePipeline(ctx, req.GetId(), func(p *state.Pipeline) error {
		if p.Canceled {
			return status.Error(codes.FailedPrecondition, "the pipeline was cancelled; stepmux retry begins it again")
		}
		jobs, err := s.m.store.Jobs(ctx, p.ID)
		if err != nil {
			return err
		}
		names, err := playable(jobs, req.GetJob())
		for _, name := range names {
			if !slices.Contains(p.Played, name) {
				p.Played = append(p.Played, name)
			}
		}
		if err == nil && len(p.Played) > maxPlayed {
			err = status.Errorf(codes.ResourceExhausted, "at most %d manual jobs of a pipeline can be started", maxPlayed)
		}
		return err
	})
	if err != nil {
		return nil, s.m.failed(ctx, err)
	}
	s.m.note(ctx, state.Action{
		Who: callerOf(ctx), Action: "play", Subject: req.GetId() + "/" + strings.ToValidUTF8(req.GetJob(), "?"),
	})
	return &pb.PlayPipelineResponse{}, nil
}

// statusManual is the status of a job that waits for PlayPipeline, and statusesBefore are those before.
const statusManual = "manual"

var statusesBefore = []string{"waiting", "blocked"}

// playable returns the jobs with a name that wait to be started.
func playable(p *pb.Pipeline, name string) (names []string, err error) {
	found := ""
	for _, j := range p.GetJobs() {
		if j.GetName() != name && j.GetBase() != name {
			continue
		}
		found = j.GetStatus()
		if found == statusManual || j.GetManual() && slices.Contains(statusesBefore, found) {
			names = append(names, j.GetName())
		}
	}
	switch {
	case found == "":
		return nil, status.Errorf(codes.NotFound, "the pipeline has no job %.160q; stepmux pipelines ID lists them", name)
	case len(names) == 0:
		return nil, status.Errorf(codes.FailedPrecondition, "the job %.160q does not wait to be started: its status is %s",
			name, found)
	}
	return names, nil
}

// RetryPipeline runs the jobs again that failed or did not run.
func (s *service) RetryPipeline(ctx context.Context, req *pb.RetryPipelineRequest) (*pb.RetryPipelineResponse, error) {
	ctx = context.WithoutCancel(ctx) // as in Cancel
	err := s.m.changePipeline(ctx, req.GetId(), func(p *state.Pipeline) error {
		if p.Phase == state.PipelineQueued {
			return nil // as after a retry whose call has failed
		}
		if !p.AtRest() {
			return status.Errorf(codes.FailedPrecondition, "the pipeline is %s: wait until it has ended, or cancel it", p.Phase)
		}
		jobs, err := s.m.store.Jobs(ctx, p.ID)
		if err != nil {
			return err
		}
		if !again(p, jobs) {
			return status.Error(codes.FailedPrecondition, "all jobs of the pipeline have succeeded, or shall not run: there "+
				"is nothing to run again")
		}
		if p.Project != "" {
			asked, err := s.m.store.PipelineRequest(ctx, p.ID)
			if err != nil {
				return err
			}
			kept, err := s.m.files.UseProject(ctx, p.Project, asked.GetProjectBytes())
			if err == nil && !kept {
				err = status.Error(codes.FailedPrecondition, "the project of the pipeline is not kept any more: submit it again")
			}
			if err != nil {
				return err
			}
		}
		p.Canceled, p.Killed, p.Replaced, p.Redundant, p.Started = false, false, "", false, time.Time{}
		return nil
	})
	if err != nil {
		return nil, s.m.failed(ctx, err)
	}
	s.m.note(ctx, state.Action{Who: callerOf(ctx), Action: "retry", Subject: req.GetId()})
	return &pb.RetryPipelineResponse{}, nil
}

// again lets the jobs that failed run again, and reports whether there is something to do.
func again(p *state.Pipeline, jobs *pb.Pipeline) (found bool) {
	rounds := map[string]int{}
	for name, n := range p.Rounds {
		rounds[name] = n
	}
	calls := map[string]bool{} // jobs without a build that have succeeded
	for _, j := range jobs.GetJobs() {
		calls[j.GetName()] = j.GetBuild() == "" && j.GetStatus() == "success"
	}
	for _, j := range jobs.GetJobs() {
		switch j.GetStatus() {
		case "failed", "warning", "cancelled":
			rounds[j.GetName()]++
			found = true
			for i := range j.GetName() { // a call, one of whose jobs may fail, takes its turn again
				if of := j.GetName()[:i]; strings.HasPrefix(j.GetName()[i:], " / ") && calls[of] {
					rounds[of]++
				}
			}
		}
	}
	rounds[""]++ // so does the pipeline
	p.Rounds = rounds
	return found || p.Error != ""
}
