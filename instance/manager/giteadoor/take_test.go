package giteadoor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
)

// taskServer has tasks, and gives at most so many of them in an answer. It answers when so many questions are asked at
// once as it expects.
type taskServer struct {
	most   int
	expect []int // for each round of questions; 1 after them

	mu           sync.Mutex // guards the following
	asking       int
	answers      chan struct{} // closed when the round is complete
	left, ended  int
	calls, round int // calls are those before the last task
}

func (s *taskServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		TaskCapacity int
		Index        int64 `json:",string"`
		Rows         []any
	}
	_ = json.NewDecoder(r.Body).Decode(&in)
	switch path.Base(r.URL.Path) {
	case "Register":
		_, _ = w.Write([]byte(`{"runner":{"uuid":"u","token":"t"}}`))
	case "FetchTask":
		s.fetch(w, max(in.TaskCapacity, 1))
	case "UpdateLog":
		_, _ = fmt.Fprintf(w, `{"ackIndex":"%d"}`, in.Index+int64(len(in.Rows)))
	case "UpdateTask":
		s.mu.Lock()
		s.ended++
		s.mu.Unlock()
		fallthrough
	default:
		_, _ = w.Write([]byte(`{}`))
	}
}

func (s *taskServer) fetch(w http.ResponseWriter, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left > 0 {
		s.calls++
	}
	size := 1
	if s.round < len(s.expect) {
		size = s.expect[s.round]
	}
	if s.asking++; s.asking < size {
		answers := s.answers
		s.mu.Unlock()
		<-answers
		s.mu.Lock()
	} else {
		close(s.answers)
		s.asking, s.answers = 0, make(chan struct{})
		s.round++
	}
	given := min(count, s.most, s.left)
	var out struct {
		TasksVersion    string           `json:"tasksVersion"`
		Task            map[string]any   `json:"task,omitempty"`
		AdditionalTasks []map[string]any `json:"additionalTasks,omitempty"`
	}
	out.TasksVersion = "1"
	for i := range given {
		task := map[string]any{"id": fmt.Sprint(s.left - i)}
		if i == 0 {
			out.Task = task
		} else {
			out.AdditionalTasks = append(out.AdditionalTasks, task)
		}
	}
	s.left -= given
	_ = json.NewEncoder(w).Encode(out)
}

// testRoom is a slot. It counts those that are held.
type testRoom struct{ held *atomic.Int64 }

func (r *testRoom) Release() {
	if r.held != nil {
		r.held.Add(-1)
		r.held = nil
	}
}

func (*testRoom) Soften() <-chan struct{} { return nil }

// While each slot gets a task, the door asks for several at once: a Gitea in several questions, a Forgejo in one. No
// more jobs run than the limit lets, and no slot stays reserved.
func TestManyTasksAreAskedForAtOnce(t *testing.T) {
	const tasks = 1 + 1 + 1 + 3 + 5*4 + 1
	for _, test := range []struct {
		most, limit, calls int
		expect             []int
	}{
		{most: 1, calls: tasks + 3, expect: []int{1, 1, 1, 3, 4, 4, 4, 4, 4, 4}},
		{most: 1, limit: 1, calls: tasks},
		{most: 100, calls: 4 + 5 + 1},
	} {
		server := &taskServer{most: test.most, expect: test.expect, left: tasks, answers: make(chan struct{})}
		web := httptest.NewServer(server)
		var held atomic.Int64
		host := testHost()
		host.TryReserve = func() jobdoor.Room {
			held.Add(1)
			return &testRoom{&held}
		}
		host.Reserve = func(context.Context) (jobdoor.Room, error) { return host.TryReserve(), nil }
		host.Term = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			term, stop := context.WithCancel(ctx)
			return term, stop, nil
		}
		host.Kept = func(context.Context, string) (map[string][]byte, error) { return nil, nil }
		host.Keep = func(context.Context, string, []byte) error { return nil }
		host.Tasks = func(context.Context, string, func(string, []byte)) error { return nil }
		host.AwaitTasks = func(term context.Context) error {
			<-term.Done()
			return context.Cause(term)
		}
		host.KeepTask = host.Keep
		host.ForgetTask = func(context.Context, string) error { return nil }
		host.Submit = func(context.Context, string, *pb.SubmitPipelineRequest, jobdoor.Room) (string, error) {
			return "", &jobdoor.RefusedError{Err: http.ErrNotSupported}
		}
		d := New(Config{
			Name: "s", URL: web.URL, Limit: test.limit, Token: func() (string, error) { return "t", nil },
		}, host)
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan struct{})
		go func() {
			defer close(served)
			d.Serve(ctx)
		}()
		remotetest.Eventually(t, func() bool {
			server.mu.Lock()
			defer server.mu.Unlock()
			return server.ended == tasks && d.Standing().Jobs == 0
		}, "all tasks end")
		stop()
		<-served
		web.Close()
		require.LessOrEqual(t, server.calls, test.calls, "%+v", test)
		require.Zero(t, held.Load())
	}
}
