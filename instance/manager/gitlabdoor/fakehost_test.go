package gitlabdoor

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/servercall"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
)

// host is a manager whose builds are functions. It works in a bubble of synctest, where an hour costs nothing.
type host struct {
	t     *testing.T
	fake  *gitlabtest.Fake
	slots chan struct{}
	// run is a build. It ends early when its ctx ends.
	run func(ctx context.Context, log *buildLog)

	mu     sync.Mutex // guards the following
	texts  map[string][]byte
	builds map[string]*fakeBuild // by the keys of pipelines
}

// fakeBuild is a pipeline of one build.
type fakeBuild struct {
	*buildLog
	cancel context.CancelFunc
	done   chan struct{}
}

func newHost(t *testing.T, cfg gitlabtest.Config, run func(ctx context.Context, log *buildLog)) *host {
	return &host{
		t: t, fake: gitlabtest.New(cfg), run: run, slots: make(chan struct{}, 2), texts: map[string][]byte{},
		builds: map[string]*fakeBuild{},
	}
}

// serve serves a door until the test ends.
func (h *host) serve() *Door {
	h.t.Helper()
	d, err := NewDoor(DoorConfig{
		Name: "lab", URL: "http://gitlab.example.com",
		Token: func() (string, error) { return gitlabtest.RunnerToken, nil },
	}, h.host())
	require.NoError(h.t, err)
	d.client.http = servercall.New(h.fake.Transport(h.t))
	ctx, cancel := context.WithCancel(h.t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { d.Serve(ctx) })
	h.t.Cleanup(func() {
		cancel()
		serving.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, b := range h.builds {
			b.cancel()
			<-b.done
		}
	})
	return d
}

// fakeRoom is a slot.
type fakeRoom struct{ release func() }

func (r fakeRoom) Release() { r.release() }

func (r fakeRoom) Soften() <-chan struct{} { return nil }

func (h *host) host() jobdoor.Host {
	keep := func(_ context.Context, key string, text []byte) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.texts[key] = text
		return nil
	}
	forget := func(_ context.Context, key string) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.texts, key)
		return nil
	}
	return jobdoor.Host{
		Reserve: func(ctx context.Context) (jobdoor.Room, error) {
			select {
			case h.slots <- struct{}{}:
				return fakeRoom{sync.OnceFunc(func() { <-h.slots })}, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		},
		TryReserve: func() jobdoor.Room {
			select {
			case h.slots <- struct{}{}:
				return fakeRoom{sync.OnceFunc(func() { <-h.slots })}
			default:
				return nil
			}
		},
		Submit: h.submit,
		Watch: func(ctx context.Context, id string, changed func(*pb.Pipeline) bool) error {
			p := &pb.Pipeline{Phase: pb.Pipeline_running, Jobs: []*pb.PipelineJob{{Build: id}}}
			if !changed(p) {
				return nil
			}
			select {
			case <-h.find(id).done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			p.Phase = pb.Pipeline_ended
			changed(p)
			return nil
		},
		Log: func(ctx context.Context, id string, offset int64, follow bool, take func(jobdoor.Piece) error) error {
			return h.find(id).read(ctx, offset, follow, func(text []byte) error { return take(jobdoor.Piece{Text: text}) })
		},
		Result: func(_ context.Context, id string) (*jobdoor.Result, error) {
			return &jobdoor.Result{LogBytes: int64(len(h.find(id).text))}, nil
		},
		Cancel: func(_ context.Context, key string) error {
			if b := h.find(key); b != nil {
				b.cancel()
			}
			return nil
		},
		Keep: keep, Forget: forget, KeepTask: keep, ForgetTask: forget,
		Kept: func(_ context.Context, prefix string) (map[string][]byte, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			all := maps.Clone(h.texts)
			maps.DeleteFunc(all, func(key string, _ []byte) bool { return !strings.HasPrefix(key, prefix) })
			return all, nil
		},
		Term: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			term, stop := context.WithCancel(ctx)
			return term, stop, context.Cause(ctx)
		},
		Tasks: func(context.Context, string, func(string, []byte)) error { return nil },
		AwaitTasks: func(term context.Context) error {
			<-term.Done()
			return context.Cause(term)
		},
		Logger: slog.New(slog.DiscardHandler),
	}
}

func (h *host) submit(_ context.Context, key string, _ *pb.SubmitPipelineRequest, _ jobdoor.Room) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.builds[key] != nil {
		return key, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &fakeBuild{newLog(""), cancel, make(chan struct{})}
	h.builds[key] = b
	go func() {
		defer close(b.done)
		h.run(ctx, b.buildLog)
		b.end()
	}()
	return key, nil
}

// find returns a build, or nil.
func (h *host) find(key string) *fakeBuild {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.builds[key]
}

// count returns how many builds were begun.
func (h *host) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.builds)
}
