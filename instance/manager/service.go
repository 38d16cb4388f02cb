package manager

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
)

const (
	// defaultListed and maxListed bound the builds in a list.
	defaultListed, maxListed = 100, 10_000
	// maxNote bounds the note of a drain, in bytes.
	maxNote = 1 << 10
	// maxFileName bounds the name of a steps file, in bytes, as step runners do: lists and records of builds have it.
	maxFileName = 4095
)

// Serve answers the service of package managerv1 on a listener, which it closes, until the Manager is shut down or ctx
// ends. Then it ends all calls. It returns nil, or the error of the listener.
func (m *Manager) Serve(ctx context.Context, listener net.Listener) error {
	return m.serve(ctx, listener)
}

func (m *Manager) serve(ctx context.Context, listener net.Listener, options ...grpc.ServerOption) error {
	server := control.NewServer(&service{m: m}, append(options, grpc.MaxRecvMsgSize(state.MaxPayload))...)
	stop := func() { server.Stop() }
	defer context.AfterFunc(ctx, stop)()
	defer context.AfterFunc(m.takes, stop)() //nolint:contextcheck // the manager's end
	err := server.Serve(listener)
	server.Stop() // waits for the calls
	if ctx.Err() != nil || m.takes.Err() != nil {
		return nil
	}
	return err
}

// service implements the service of package managerv1.
type service struct {
	pb.UnimplementedManagerServer
	m *Manager
}

// Submit implements pb.ManagerServer, as do the following.
func (s *service) Submit(ctx context.Context, req *pb.SubmitRequest) (*pb.SubmitResponse, error) {
	key, err := keyOf(req)
	if err != nil {
		return nil, err
	}
	if req.GetPipeline() != nil {
		return nil, status.Error(codes.InvalidArgument, "a manager alone queues the builds of its pipelines: use "+
			"SubmitPipeline")
	}
	if len(req.ProtoReflect().GetUnknown())+len(req.GetJob().ProtoReflect().GetUnknown()) > 0 {
		return nil, status.Error(codes.InvalidArgument, "the request has fields that this manager does not know: use the "+
			"same version of stepmux for both")
	}
	if err := checkServices(req.GetServices()); err != nil {
		return nil, err
	}
	if (len(req.GetJob().GetSteps()) > 0) == (req.GetJob().GetScript() != "") {
		return nil, status.Error(codes.InvalidArgument, "the request has neither steps nor a script, or both")
	}
	if len(req.GetJob().GetStepsFile()) > maxFileName {
		return nil, status.Errorf(codes.InvalidArgument, "the name of the steps file has more than %d bytes", maxFileName)
	}
	req.Key, req.Warnings = "", nil // the queue has the key beside the text
	if size, most := proto.Size(req), s.m.store.MaxRequest; size > most {
		return nil, status.Errorf(codes.InvalidArgument, "the request has %d bytes, at most %d can be queued", size, most)
	}
	if err := s.m.vet(req); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.m.checkLabels(req.GetLabels()); err != nil {
		return nil, err
	}
	if err := s.m.checkFiles(ctx, req); err != nil {
		return nil, s.m.failed(ctx, err)
	}
	text, err := proto.Marshal(req)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	id, err := s.m.store.Push(ctx, key, req.GetProject(), text)
	if err != nil {
		return nil, s.m.failed(ctx, err)
	}
	return &pb.SubmitResponse{Id: id}, nil
}

// keyOf returns the key of a request, or a new one.
func keyOf(req interface{ GetKey() string }) (string, error) {
	key := cmp.Or(req.GetKey(), rand.Text())
	if len(key) > 64 || strings.Trim(key, keyLetters) != "" {
		return "", status.Error(codes.InvalidArgument, "the key of the request is not 1 to 64 of A-Z a-z 0-9 . _ -")
	}
	return key, nil
}

const keyLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

// failed returns the answer for an error of the store.
func (m *Manager) failed(ctx context.Context, err error) error {
	switch lost := m.store.Err(); {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case m.Err() != nil && !errors.Is(m.Err(), ErrStopped): // the store was lost
		return status.Error(codes.Unavailable, m.Err().Error())
	case m.takes.Err() != nil:
		return status.Error(codes.Unavailable, "the manager is shutting down")
	case lost != nil:
		return status.Error(codes.Unavailable, lost.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return cmp.Or(m.store.Failure(err), status.Error(codes.Internal, err.Error()))
}

func notFound(id string) error {
	if state.IsPipeline(id) {
		return status.Errorf(codes.NotFound, "%.80q is the ID of a pipeline: name one of its jobs, as %.80s/JOB", id, id)
	}
	return status.Errorf(codes.NotFound, "there is no build %.80q; stepmux builds lists them", id)
}

// Get returns a build.
func (s *service) Get(ctx context.Context, req *pb.GetRequest) (*pb.Build, error) {
	b, err := s.m.get(ctx, req.GetId())
	if err != nil {
		return nil, s.m.failed(ctx, err)
	}
	return b, nil
}

func (m *Manager) get(ctx context.Context, id string) (*pb.Build, error) {
	rec, err := m.store.Record(ctx, id)
	if err != nil {
		return nil, err
	}
	if rec != nil {
		return buildOf(rec), nil
	}
	r, err := m.store.Find(ctx, id)
	if err != nil {
		return nil, err
	}
	if r == nil { // it may have ended since
		if rec, err = m.store.Record(ctx, id); rec != nil {
			return buildOf(rec), nil
		}
		return nil, cmp.Or(err, notFound(id))
	}
	return m.waiting(r), nil
}

// waiting returns a build that has no record.
func (m *Manager) waiting(r *state.Request) *pb.Build {
	b := &pb.Build{Id: r.ID, Phase: pb.Build_queued, Submitted: timestamppb.New(r.Submitted)}
	if asked, err := m.store.Read(r); err == nil {
		b.StepsFile, b.Labels, b.Warnings = asked.GetJob().GetStepsFile(), asked.GetLabels(), asked.GetWarnings()
	}
	return b
}

// buildOf returns a record as clients know it.
func buildOf(r *state.Record) *pb.Build {
	b := &pb.Build{
		Id: r.ID, Phase: pb.Build_queued, Instance: r.Instance, StepsFile: r.StepsFile, Canceled: r.Canceled,
		Submitted: timeOf(r.Submitted), Started: timeOf(r.Started), EndedAt: timeOf(r.Ended),
		Attempt:  int32(r.Attempt), // it is small
		Warnings: r.Warnings, Pipeline: r.Pipeline, Job: r.Job,
	}
	if r.Connect > 0 {
		b.Connect = durationpb.New(r.Connect)
	}
	if r.FirstOutput > 0 {
		b.FirstOutput = durationpb.New(r.FirstOutput)
	}
	switch r.Phase {
	case state.PhaseRunning:
		b.Phase = pb.Build_running
	case state.PhaseEnded:
		b.Phase = pb.Build_ended
	}
	if r.Result != nil {
		b.Result = &pb.Result{
			Reason: r.Result.Reason, ExitCode: int32(r.Result.ExitCode), // an exit code
			Message: strings.ToValidUTF8(r.Result.Message, "?"), Left: r.Result.Left, Artifacts: r.Result.Artifacts,
			Trace: r.Result.Trace, Remarks: r.Result.Remarks,
		}
	}
	return b
}

// timeOf returns nil for the zero time.
func timeOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// List returns builds.
func (s *service) List(ctx context.Context, req *pb.ListRequest) (*pb.ListResponse, error) {
	resp, err := s.m.list(ctx, req, min(cmp.Or(max(int(req.GetLimit()), 0), defaultListed), maxListed))
	if err != nil {
		return nil, s.m.failed(ctx, err)
	}
	return resp, nil
}

func (m *Manager) list(ctx context.Context, req *pb.ListRequest, limit int) (*pb.ListResponse, error) {
	resp, phase := &pb.ListResponse{}, req.GetPhase()
	taken := map[string]bool{} // with a record
	for _, a := range append([]peerAnswer{m.taken()}, m.fleet.ask(ctx, peerQuestion{Taken: true})...) {
		for _, id := range a.Taken {
			taken[id] = true
		}
		resp.Running += a.Running
	}
	requests, err := m.store.InQueue(ctx, taken)
	if err != nil {
		return nil, err
	}
	resp.Queued = max(int64(requests)-int64(len(taken)), 0) // there are not that many
	wanted := func(b *pb.Build) bool {
		return (phase == pb.Build_phase_unspecified || phase == b.GetPhase()) &&
			(req.GetFile() == "" || req.GetFile() == b.GetStepsFile()) &&
			(req.GetInstance() == "" || req.GetInstance() == b.GetInstance())
	}
	waiting := (phase == pb.Build_phase_unspecified || phase == pb.Build_queued) && req.GetInstance() == ""
	for seq := uint64(1); waiting && len(resp.Builds) < limit; {
		r, err := m.store.Queued(ctx, seq)
		if err != nil {
			return nil, err
		}
		if r == nil {
			break
		}
		seq = r.Seq + 1
		if taken[r.ID] {
			continue
		}
		if b := m.waiting(r); wanted(b) {
			resp.Builds = append(resp.Builds, b)
		}
	}
	if phase == pb.Build_queued {
		return resp, nil
	}
	listed := map[string]int{}
	for i, b := range resp.Builds {
		listed[b.GetId()] = i
	}
	err = m.store.Newest(ctx, func(r *state.Record) bool {
		b := buildOf(r)
		at, twice := listed[r.ID]
		switch {
		case twice: // another call has taken it
			resp.Builds[at] = b
		case wanted(b) && len(resp.Builds) < limit:
			resp.Builds = append(resp.Builds, b)
		}
		return len(resp.Builds) < limit
	})
	return resp, err
}

// Follow streams the log of a build.
func (s *service) Follow(req *pb.FollowRequest, stream grpc.ServerStreamingServer[pb.FollowResponse]) error {
	ctx := stream.Context()
	if err := s.m.follow(ctx, req, stream.Send); err != nil {
		return s.m.failed(ctx, err)
	}
	return nil
}

func (m *Manager) follow(ctx context.Context, req *pb.FollowRequest, send func(*pb.FollowResponse) error) error {
	b, err := m.get(ctx, req.GetId())
	if err != nil {
		return err
	}
	ended := b.GetPhase() == pb.Build_ended
	at := req.GetOffset()
	if at < 0 {
		log, err := m.store.OpenLog(ctx, m.life, req.GetId()) //nolint:contextcheck // not written to
		log.Stop()
		if err != nil {
			return err
		}
		at = max(log.Length()+at, 0)
	}
	err = m.store.ReadLog(ctx, req.GetId(), at, req.GetFollow(), ended, func(p state.Piece) error {
		text, missing := p.Text, max(p.Offset-at, 0)
		if behind := at - p.Offset; behind > 0 {
			text = text[min(behind, int64(len(text))):]
		}
		at += missing
		if len(text) == 0 && missing == 0 {
			return nil
		}
		err := send(&pb.FollowResponse{Text: text, Offset: at, Missing: missing, At: timeOf(p.At)})
		at += int64(len(text))
		return err
	})
	if err != nil || !ended && !req.GetFollow() {
		return err
	}
	running := m.find(req.GetId())
	switch {
	case !req.GetFollow():
	case running != nil: // its result is kept soon
		select {
		case <-running.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	default:
		if err := m.fleet.awaitEnd(ctx, req.GetId()); err != nil {
			return err
		}
	}
	rec, err := m.store.Record(ctx, req.GetId())
	if err != nil {
		return err
	}
	if rec != nil && rec.LogBytes > at { // its end is not kept any more
		missing := rec.LogBytes - at
		at = rec.LogBytes
		if err := send(&pb.FollowResponse{Offset: at, Missing: missing}); err != nil {
			return err
		}
	}
	if !req.GetFollow() {
		return nil
	}
	if b, err = m.get(ctx, req.GetId()); err != nil {
		return err
	}
	return send(&pb.FollowResponse{Offset: at, Build: b})
}

// Cancel ends a build or a pipeline.
func (s *service) Cancel(ctx context.Context, req *pb.CancelRequest) (*pb.CancelResponse, error) {
	ctx = context.WithoutCancel(ctx) // else it could be done in part, and not be noted
	if state.IsPipeline(req.GetId()) {
		if err := s.cancelPipeline(ctx, req.GetId()); err != nil {
			return nil, s.m.failed(ctx, err)
		}
		return &pb.CancelResponse{}, nil
	}
	// A build may be taken, or end, between two looks at it.
	for range 10 {
		err := s.m.cancel(ctx, req.GetId())
		if err == nil {
			s.m.note(ctx, state.Action{Who: callerOf(ctx), Action: "cancel", Subject: req.GetId()})
		}
		if err == nil || errors.Is(err, errEnded) {
			return &pb.CancelResponse{}, nil
		}
		if !errors.Is(err, state.ErrTaken) {
			return nil, s.m.failed(ctx, err)
		}
	}
	return nil, status.Error(codes.Aborted, state.ErrTaken.Error())
}

// errEnded says that a build has ended, so that it cannot be canceled.
var errEnded = errors.New("the build has ended")

func (m *Manager) cancel(ctx context.Context, id string) error {
	if b := m.find(id); b != nil {
		return m.cancelLive(b) //nolint:contextcheck // done although the caller goes away
	}
	m.begins.Lock() // it does not begin in between
	defer m.begins.Unlock()
	if b := m.find(id); b != nil {
		return m.cancelLive(b) //nolint:contextcheck // as above
	}
	rec, err := m.store.Record(ctx, id)
	if err != nil {
		return err
	}
	if rec != nil && rec.Phase == state.PhaseEnded {
		return errEnded
	}
	if rec != nil {
		if done, err := m.fleet.cancelRecord(ctx, rec); done {
			return err
		}
	}
	r, err := m.store.Find(ctx, id)
	if err != nil {
		return err
	}
	if r == nil && rec != nil && rec.Pipeline != "" { // its request is known by its record
		r = &state.Request{ID: id, Submitted: rec.Submitted}
	}
	if r == nil {
		return notFound(id)
	}
	log, err := m.store.OpenLog(ctx, m.life, id)
	defer log.Stop()
	if err != nil {
		return err
	}
	m.canceled = max(m.canceled, r.Seq)
	err = m.store.Refuse(ctx, r, rec, log, &state.Result{
		Reason: string(instance.JobCanceled), Message: errCanceled.Error(),
	})
	if err != nil {
		return err
	}
	return m.fleet.TellCancel(ctx, id) // it may wait for a slot in another manager
}

// cancelLive ends a build that this manager has.
func (m *Manager) cancelLive(b *build) error {
	if b.kept().Phase == state.PhaseEnded {
		return errEnded
	}
	if err := m.change(b, func(r *state.Record) { r.Canceled = true }); err != nil {
		return err
	}
	b.cancel(errCanceled)
	return nil
}

// Status describes the manager.
func (s *service) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	return s.m.status(ctx).Response(), nil
}

// Drain lets VMs take no new builds.
func (s *service) Drain(ctx context.Context, req *pb.DrainRequest) (*pb.DrainResponse, error) {
	if limit := req.GetFor().AsDuration(); limit < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "a drain for %v", limit)
	}
	if len(req.GetNote()) > maxNote {
		return nil, status.Errorf(codes.InvalidArgument, "a note has at most %d bytes", maxNote)
	}
	if err := s.m.knows(req.GetInstances()); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // as in Cancel
	for _, id := range req.GetInstances() {
		if err := s.m.drain(ctx, callerOf(ctx), id, req.GetNote(), req.GetFor().AsDuration()); err != nil {
			return nil, s.m.failed(ctx, err)
		}
	}
	return &pb.DrainResponse{}, nil
}

// Undrain undoes Drain.
func (s *service) Undrain(ctx context.Context, req *pb.UndrainRequest) (*pb.UndrainResponse, error) {
	if err := s.m.knows(req.GetInstances(), s.m.drainedNow()...); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // as in Cancel
	for _, id := range req.GetInstances() {
		if err := s.m.undrain(ctx, callerOf(ctx), id); err != nil {
			return nil, s.m.failed(ctx, err)
		}
	}
	return &pb.UndrainResponse{}, nil
}

// knows returns an error unless each of these VMs is in the group or among names.
func (m *Manager) knows(ids []string, names ...string) error {
	for _, in := range m.cfg.Group.Instances() {
		names = append(names, in.ID)
	}
	for _, id := range ids {
		if !slices.Contains(names, id) {
			return status.Errorf(codes.NotFound, "there is no instance %.160q", id)
		}
	}
	return nil
}
