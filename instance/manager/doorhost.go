package manager

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/manager/giteadoor"
	"github.com/stepmux/stepmux/instance/manager/gitlabdoor"
	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
)

// rooms are slots that were reserved for pipelines, by their IDs: the first build of each has the slot. The zero value
// is ready for use.
type rooms struct {
	mu  sync.Mutex // guards the following
	all map[string]*room
}

// room is a slot of a door.
type room struct {
	*instance.Reservation
	of *rooms
	id string // of the pipeline; empty before that is known
}

// Release implements jobdoor.Room.
func (r *room) Release() {
	r.of.mu.Lock()
	if r.of.all[r.id] == r {
		delete(r.of.all, r.id)
	}
	r.of.mu.Unlock()
	r.Reservation.Release()
}

// keep keeps a slot for a pipeline.
func (r *rooms) keep(id string, of *room) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]*room{}
	}
	of.id = id
	r.all[id] = of
}

// find returns the slot of a pipeline, or nil.
func (r *rooms) find(id string) *room {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[id]
}

// release gives the slot of a pipeline back, if there is one.
func (r *rooms) release(id string) {
	if found := r.find(id); found != nil {
		found.Release()
	}
}

// beginInRoom begins a build of a pipeline for which a slot is reserved, if there is one. Else the build begins when
// the queue hands its request out.
func (m *Manager) beginInRoom(ctx context.Context, r *state.Request, pipeline string) error {
	room := m.rooms.find(pipeline)
	if room == nil {
		return nil
	}
	defer room.Release() // unless the build has it
	m.begins.Lock()
	defer m.begins.Unlock()
	if m.find(r.ID) != nil {
		return nil
	}
	rec, err := m.store.Record(ctx, r.ID)
	if err != nil || rec == nil || rec.Phase != state.PhaseWaiting {
		return err
	}
	err = m.begin(ctx, r, rec, nil, room.Reservation)
	if errors.Is(err, state.ErrTaken) {
		return nil
	}
	if b := m.find(r.ID); b != nil && m.fleet.ID() != "" && slices.Contains(m.cfg.Group.Waiting(), b.attemptID()) {
		m.leaveTo(b) // the slot does not suit it: it waits in the queue of all managers
	}
	return err
}

// door takes the jobs of a server.
type door interface {
	Serve(ctx context.Context)
	Standing() jobdoor.Standing
}

// ServeGitea takes jobs from a Gitea server, until the Manager is shut down or ctx ends. The jobs that run then go on:
// the next manager reports them.
func (m *Manager) ServeGitea(ctx context.Context, cfg giteadoor.Config) {
	m.serveDoor(ctx, giteadoor.New(cfg, m.doorHost(cfg.Party(), nil)))
}

// ServeGitLab is ServeGitea for a GitLab server. It fails at once if a file of TLS cannot be read.
func (m *Manager) ServeGitLab(ctx context.Context, cfg gitlabdoor.DoorConfig) error {
	d, err := gitlabdoor.NewDoor(cfg, m.doorHost(cfg.Party(), cfg.Labels))
	if err == nil {
		m.serveDoor(ctx, d)
	}
	return err
}

// doorHost is the manager, for the door of a party whose jobs need these labels.
func (m *Manager) doorHost(party string, labels map[string]string) jobdoor.Host {
	texts := &doorTexts{m: m}
	return jobdoor.Host{
		Reserve: func(ctx context.Context) (jobdoor.Room, error) { return m.reserveForDoor(ctx, party, labels) },
		TryReserve: func() jobdoor.Room {
			if r := m.cfg.Group.TryReserve(party, labels); r != nil {
				return &room{Reservation: r, of: &m.rooms}
			}
			if m.groups.promise(labels) {
				return noRoom{}
			}
			return nil
		},
		Submit: m.submitTask,
		Missing: func(req *pb.SubmitPipelineRequest) []string {
			if m.cfg.Pipelines == nil { // Submit tells it
				return nil
			}
			return m.cfg.Pipelines.Missing(req)
		},
		Watch: func(ctx context.Context, id string, changed func(*pb.Pipeline) bool) error {
			return m.store.WatchPipeline(ctx, id, func(p *state.Pipeline, jobs *pb.Pipeline) bool {
				if p == nil {
					return changed(nil)
				}
				return changed(pipelineMessage(p, jobs))
			})
		},
		Log: m.taskLog, Result: m.taskResult, Outputs: m.taskOutputs,
		Cancel: func(ctx context.Context, key string) error {
			err := (&service{m: m}).cancelPipeline(ctx, state.PipelineID(key))
			if status.Code(err) == codes.NotFound { // it is not kept any more
				return nil
			}
			return err
		},
		Keep: texts.keep, Kept: texts.kept, Forget: texts.forget,
		Term: texts.term, KeepTask: texts.keepTask, ChangeTask: texts.changeTask, ForgetTask: m.store.ForgetText,
		Tasks: texts.take, AwaitTasks: m.fleet.awaitTasks,
		Labels: m.labels, Version: m.cfg.Version, Logger: m.cfg.Logger,
	}
}

func (m *Manager) serveDoor(ctx context.Context, d door) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.takes, cancel)() //nolint:contextcheck // the manager's end
	served := make(chan struct{})
	if !m.spawn(func() { // Shutdown waits: a task that comes at the end is kept, and reports end before the lease
		defer close(served)
		d.Serve(ctx)
	}) {
		return
	}
	m.mu.Lock()
	m.doors = append(m.doors, d)
	m.mu.Unlock()
	<-served
	m.mu.Lock()
	m.doors = slices.DeleteFunc(m.doors, func(other door) bool { return other == d })
	m.mu.Unlock()
}

// ServeHook takes a webhook of a server, by its name.
func (m *Manager) ServeHook(name string, w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	var hook http.Handler
	for _, d := range m.doors {
		if h, takes := d.(http.Handler); takes && d.Standing().Name == name {
			hook = h
		}
	}
	m.mu.Unlock()
	if hook == nil {
		http.Error(w, "there is no server of this name", http.StatusNotFound)
		return
	}
	hook.ServeHTTP(w, r)
}

// servers returns how the doors stand, by their names.
func (m *Manager) servers() (all []control.JobServer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.doors {
		s := d.Standing()
		all = append(all, control.JobServer{
			Name: s.Name, URL: s.URL, State: s.State, Reason: s.Reason, Since: s.Since, Jobs: s.Jobs, Taken: s.Taken,
		})
	}
	slices.SortFunc(all, func(a, b control.JobServer) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// submitTask keeps a pipeline of a door.
func (m *Manager) submitTask(
	ctx context.Context, key string, req *pb.SubmitPipelineRequest, in jobdoor.Room,
) (string, error) {
	if r, ok := in.(*room); ok {
		m.rooms.keep(state.PipelineID(key), r)
	}
	req.Key = key
	id, err := m.submitPipeline(ctx, req)
	if told, is := status.FromError(err); is && told.Code() == codes.InvalidArgument {
		return "", &jobdoor.RefusedError{Err: errors.New(told.Message())}
	}
	return id, err
}

// taskLog is jobdoor.Host.Log.
func (m *Manager) taskLog(
	ctx context.Context, build string, offset int64, follow bool, take func(jobdoor.Piece) error,
) error {
	asked := &pb.FollowRequest{Id: build, Offset: offset, Follow: follow}
	err := m.follow(ctx, asked, func(p *pb.FollowResponse) error {
		if p.GetMissing() == 0 && len(p.GetText()) == 0 {
			return nil
		}
		at := time.Now()
		if p.GetAt() != nil {
			at = p.GetAt().AsTime()
		}
		return take(jobdoor.Piece{Text: p.GetText(), At: at, Missing: p.GetMissing()})
	})
	if status.Code(err) == codes.NotFound { // it is not kept any more
		return nil
	}
	return err
}

// taskResult is jobdoor.Host.Result.
func (m *Manager) taskResult(ctx context.Context, build string) (*jobdoor.Result, error) {
	rec, err := m.store.Record(ctx, build)
	if err != nil || rec == nil || rec.Result == nil {
		return nil, err
	}
	return &jobdoor.Result{
		Reason: rec.Result.Reason, Message: rec.Result.Message, ExitCode: rec.Result.ExitCode, LogBytes: rec.LogBytes,
	}, nil
}

// taskOutputs returns the outputs of a job of a pipeline.
func (m *Manager) taskOutputs(ctx context.Context, pipeline string, job *pb.PipelineJob) (map[string]string, error) {
	outputs, err := m.store.Outputs(ctx, cmp.Or(job.GetBuild(), outputsOf(pipeline, job.GetName())))
	values := map[string]string{}
	for _, o := range outputs.GetGiven() {
		if !o.GetMasked() {
			values[o.GetName()] = o.GetValue()
		}
	}
	return values, err
}
