package giteadoor

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/internal/testing/giteatest"
	"github.com/stepmux/stepmux/internal/yamltree"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// However the log is cut into pieces, it becomes the same rows and steps.
func TestRowsAreTheSameHoweverTheLogIsCut(t *testing.T) {
	long := strings.Repeat("x", maxRow)
	log := "before\n##[step:t] 0 begin\none\r\ntwo\n\nunfinished##[step:t] 0 success\n##[step:t] 1 begin\n" +
		"##[step:t] 1 skipped\n" +
		"##[step:t] 2 begin\n##[step:other] 2 failure\n##[step:t] 9 begin\n##[step:t] x begin\n" + long + "yy\nbad \xff byte"
	want := []string{
		"before", "one", "two", "", "unfinished", "##[step:other] 2 failure", long, "yy", "bad \uFFFD byte",
	}
	at := time.Unix(1000, 0)
	for _, size := range []int{1, 7, 4096, len(log)} {
		var got []string
		r := newRows("t", 4, func(row Row) { got = append(got, row.Content) })
		for from := 0; from < len(log); from += size {
			r.write([]byte(log[from:min(from+size, len(log))]), at)
		}
		r.flush(at)
		require.Equal(t, want, got, "pieces of %d bytes", size)
		steps := r.ended(resultFailure, at)
		var shown []string
		for _, s := range steps {
			shown = append(shown, fmt.Sprintf("%d %s %d+%d %t", s.ID, s.Result, s.LogIndex, s.LogLength, s.StartedAt != nil))
		}
		require.Equal(t, []string{
			"0 RESULT_SUCCESS 1+4 true", "1 RESULT_SKIPPED 5+0 true", "2 RESULT_FAILURE 5+4 true", "3 RESULT_SKIPPED 0+0 false",
		}, shown)
	}
}

// A row that is too long is cut where no mark, no word for a secret and no character is cut.
func TestALongRowIsCutBetweenItsParts(t *testing.T) {
	for _, part := range []string{"[MASKED]", "\u00e4", "\U0001f600", "##[step:t] 0 success\n", "##[step:t] 0 begin\n"} {
		for before := maxRow - len(part) - 2; before <= maxRow+1; before++ {
			log := strings.Repeat("x", before) + part + "y"
			for _, size := range []int{len(log), maxRow, 1000} {
				var got []string
				r := newRows("t", 1, func(row Row) { got = append(got, row.Content) })
				for from := 0; from < len(log); from += size {
					r.write([]byte(log[from:min(from+size, len(log))]), time.Unix(1000, 0))
				}
				r.flush(time.Unix(1000, 0))
				all := strings.Join(got, "")
				if strings.HasPrefix(part, "##") {
					require.Equal(t, strings.Repeat("x", before)+"y", all)
					require.NotNil(t, r.steps[0].StartedAt, "%d", before)
					continue
				}
				require.Equal(t, log, all)
				for _, row := range got {
					require.LessOrEqual(t, len(row), maxRow)
				}
				require.True(t, strings.Contains(got[0], part) || strings.Contains(got[1], part), "%d", before)
			}
		}
	}
}

func FuzzRows(f *testing.F) {
	f.Add([]byte("a\n##[step:t] 0 begin\nb##[step:t] 0 success\n"), uint8(3))
	f.Fuzz(func(t *testing.T, log []byte, size uint8) {
		read := func(size int) (rows []string, steps []Step) {
			r := newRows("t", 3, func(row Row) { rows = append(rows, row.Content) })
			for from := 0; from < len(log); from += size {
				r.write(log[from:min(from+size, len(log))], time.Time{})
			}
			r.flush(time.Time{})
			return rows, r.ended(resultSuccess, time.Time{})
		}
		rows, steps := read(max(int(size), 1))
		whole, all := read(len(log) + 1)
		require.Equal(t, whole, rows)
		require.Equal(t, all, steps)
		for _, s := range steps {
			require.LessOrEqual(t, s.LogIndex+s.LogLength, int64(len(rows)))
		}
	})
}

func TestErrorsOfServersAreUnderstood(t *testing.T) {
	answer, status := "", http.StatusInternalServerError
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	c := NewClient(server.URL + "/")
	defer c.Close()
	for _, test := range []struct {
		answer string
		status int
		isGone bool
		text   string
	}{
		{
			`{"code":"unknown","message":"rpc error: code = Unauthenticated desc = unregistered runner"}`, 500, true,
			"the server answers 500 unauthenticated: unregistered runner",
		},
		{`{"code":"unauthenticated","message":"unregistered runner"}`, 401, true, "401 unauthenticated: unregistered runner"},
		{
			`{"code":"unknown","message":"rpc error: code = AlreadyExists desc = log file has been archived"}`, 500, false,
			"already_exists",
		},
		{
			`{"code":"unknown","message":"rpc error: code = Internal desc = get task: task with id 9: resource does not exist"}`,
			500, true, "internal",
		},
		{"<html>\x1b[31mBad Gateway</html>", 502, false, `502 unknown: <html>`},
		{strings.Repeat("x", 1000), 500, false, "500 unknown: " + strings.Repeat("x", 200)},
		{"<html>fine</html>", 200, false, "is the URL that of a Gitea or Forgejo?"},
		{"{", 200, false, "is not JSON of this service"},
		{`{"data":"` + strings.Repeat("x", maxAnswer) + `"}`, 200, false, "more than 16 MiB"},
		{"", 302, false, "302"},
		{"<html>not found</html>", 404, false, "is the URL that of a Gitea or Forgejo? <html>"},
	} {
		answer, status = test.answer, test.status
		err := c.Ping(t.Context())
		require.ErrorContains(t, err, test.text)
		require.Equal(t, test.isGone, gone(err), "%v", err)
		require.Less(t, len(err.Error()), 500)
		require.NotContains(t, err.Error(), "\x1b")
	}
}

// Forgejo gives the tasks of a question whose answer was lost again, if the question has the same key.
func TestAQuestionHasItsKeyUntilItIsAnswered(t *testing.T) {
	var keys []string
	fails := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("X-Runner-Request-Key"))
		if fails {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = w.Write([]byte(`{"tasksVersion":"7","task":{"id":"1"},"additionalTasks":[{"id":"2"},{"id":"3"}]}`))
	}))
	defer server.Close()
	c := NewClient(server.URL).As(Registration{UUID: "u", Token: "t"})
	defer c.Close()
	for range 2 {
		_, _, err := c.Fetch(t.Context(), 0, 1)
		require.Error(t, err)
	}
	fails = false
	tasks, version, err := c.Fetch(t.Context(), 0, 1)
	require.NoError(t, err)
	require.Len(t, tasks, 3)
	require.EqualValues(t, 3, tasks[2].ID)
	require.EqualValues(t, 7, version)
	_, _, err = c.Fetch(t.Context(), version, 1)
	require.NoError(t, err)
	require.True(t, keys[0] != "" && keys[0] == keys[1] && keys[1] == keys[2] && keys[2] != keys[3])
}

func read(t *testing.T, text string) (Servers, error) {
	t.Helper()
	loaded, err := yamltree.Load("manager.yml", []byte(text), 1<<20)
	require.NoError(t, err)
	r := &yamltree.Reader{Text: loaded, Rules: yamltree.Rules{MaxCost: 1 << 20, Unquoted: true}}
	var s Servers
	s.Read(r, loaded.Docs[0])
	return s, r.Err
}

func TestServersOfAConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(" secret\n"), 0o600))
	s, err := read(
		t,
		"- {url: 'https://Gitea.Example.com:3000', token-file: "+file+", labels: [gpu, 'zone=b'], limit: 3}\n"+
			"- {url: 'http://localhost', token-file: /none, name: other, share: 2, runner: r, webhook-secret-file: "+file+"}\n",
	)
	require.NoError(t, err)
	require.Equal(t, "gitea-example-com-3000", s.Servers[0].Name)
	require.Equal(t, []string{"gpu", "zone=b"}, s.Servers[0].Labels)
	token, err := s.Servers[0].Token()
	require.NoError(t, err)
	require.Equal(t, "secret", token)
	_, err = s.Servers[1].Token()
	require.ErrorContains(t, err, "no such file")
	require.Nil(t, s.Servers[0].Secret)
	secret, err := s.Servers[1].Secret()
	require.NoError(t, err)
	require.Equal(t, "secret", secret)

	for text, want := range map[string]string{
		"{url: 'gitea.example.com', token-file: t}":                              "the url \"gitea.example.com\": write",
		"{url: 'https://a'}":                                                     "token-file is missing",
		"{token-file: t}":                                                        "manager.yml:1:1: gitea: the url \"\"",
		"{url: 'https://a', token-file: t, label: [a]}":                          "unknown key \"label\"",
		"{url: 'https://a', token-file: t, labels: [a b]}":                       "the words of runs-on",
		"{url: 'https://a', token-file: t, labels: ['a:docker:b']}":              "the words of runs-on",
		"{url: 'https://a', token-file: t, images: {a: ''}}":                     "the image \"\" of a",
		"{url: 'https://a', token-file: t, images: {a b: c}}":                    "the label \"a b\" in images",
		"{url: 'https://a', token-file: t, labels: [b], images: {a: c}}":         "images has a, which is not in labels",
		"{url: 'https://a', token-file: t, environment: {A-B: c}}":               "the variable \"A-B\"",
		"{url: 'https://a', token-file: t, environment: [A]}":                    "environment",
		"{url: 'https://a', token-file: t, limit: 0}":                            "limit \"0\": write a positive number",
		"{url: 'https://a', token-file: t, name: A}":                             "the name \"A\": write 1 to 32",
		"[{url: 'https://a', token-file: t}, {url: 'https://a', token-file: t}]": "there are two servers a",
	} {
		_, err := read(t, text)
		require.ErrorContains(t, err, want, text)
	}
}

// A task is described to the manager; what a hostile server sends is bounded, or refused with a reason.
func TestPipelinesOfTasks(t *testing.T) {
	of := func(task Task) (*record, error) {
		r := &record{Task: &task, Marks: "m"}
		_, err := r.encode()
		return r, err
	}
	r, err := of(Task{
		ID: 1, Workflow: []byte("on: push\njobs: {a: {steps: [{run: x}, {run: y}]}}"),
		Context: map[string]any{
			"repository": "o/r\x1b[31m", "run_number": "2", "workflow": strings.Repeat("w", 1000),
			"base_ref": "main", "ref": "refs/pull/1/merge", "gitea_default_actions_url": "github",
			"event": map[string]any{"repository": map[string]any{"default_branch": "main"}},
		},
		Secrets: map[string]string{
			"bad name":     "x",
			"GITHUB_TOKEN": "a",
			"E":            "",
		}, Vars: map[string]string{"GITHUB_TOKEN": "b"},
	})
	require.NoError(t, err)
	req, shape, err := r.pipeline("s")
	require.NoError(t, err)
	require.Equal(t, 2, shape.steps)
	require.LessOrEqual(t, len(req.GetSource().GetName()), maxName+len("..."))
	require.NotContains(t, req.GetSource().GetName(), "\x1b")
	require.Empty(t, req.GetSource().GetActions())
	require.Len(t, req.GetOptions().GetVariables(), 1, "%v", req.GetOptions().GetVariables())
	require.Equal(t, []string{"refs/pull/1/merge", "refs/heads/main"}, r.Task.scopes())

	r, err = of(Task{ID: 1, Secrets: map[string]string{"BIG": strings.Repeat("x", maxRecord)}})
	require.NoError(t, err)
	_, _, err = r.pipeline("s")
	require.ErrorContains(t, err, "the task, with its event and secrets, has")
	many := map[string]string{}
	for i := range maxVariables + 1 {
		many[fmt.Sprint("V", i)] = "x"
	}
	r, err = of(Task{ID: 1, Vars: many})
	require.NoError(t, err)
	_, _, err = r.pipeline("s")
	require.ErrorContains(t, err, "more than 1000 variables")
	for text, want := range map[string]string{
		"a: [": "{0 false false}", "jobs: [1, 2]": "{0 false false}", "": "{0 false false}",
		"jobs: {a: {steps: [1, 2], container: x}}": "{2 true false}",
		"jobs: {a: {container: null, steps: []}}":  "{0 false false}", "jobs: {a: {uses: ./x.yml}}": "{0 false true}",
	} {
		require.Equal(t, want, fmt.Sprint(shapeOf([]byte(text))), text)
	}
}

func TestAWebhookWakesTheDoor(t *testing.T) {
	d := New(Config{Name: "s", Secret: func() (string, error) { return "key", nil }}, testHost())
	send := func(signature, event, body string) int {
		r := httptest.NewRequest(http.MethodPost, "/hooks/gitea/s", strings.NewReader(body))
		r.Header.Set("X-Gitea-Event", event)
		r.Header.Set("X-Gitea-Signature", signature)
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		return w.Code
	}
	const queued = `{"action":"queued"}`
	good := giteatest.Sign("key", queued)
	for _, test := range []struct {
		signature, event, body string
		code                   int
		wakes                  bool
	}{
		{good, "workflow_job", queued, 204, true},
		{good, "push", queued, 204, false},
		{giteatest.Sign("key", `{"action":"completed"}`), "workflow_job", `{"action":"completed"}`, 204, false},
		{giteatest.Sign("key", "no JSON"), "workflow_job", "no JSON", 204, false},
		{giteatest.Sign("other", queued), "workflow_job", queued, 403, false},
		{"", "workflow_job", queued, 403, false},
		{good, "workflow_job", strings.Repeat(" ", maxHook) + queued, 413, false},
	} {
		require.Equal(t, test.code, send(test.signature, test.event, test.body))
		require.Equal(t, test.wakes, d.Rest(t.Context(), time.Millisecond))
	}
	d.cfg.Secret = nil
	require.Equal(t, http.StatusNotFound, send(good, "workflow_job", queued))
}

// testHost is a host with no slot.
func testHost() jobdoor.Host {
	return jobdoor.Host{
		Logger: slog.New(slog.DiscardHandler),
		Labels: func() []map[string]string { return []map[string]string{{"gpu": "true", "zone": "b"}} },
		Reserve: func(ctx context.Context) (jobdoor.Room, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
	}
}

func TestLabelsOfTheVMsAreDeclared(t *testing.T) {
	d := New(Config{Name: "s"}, testHost())
	require.Equal(t, []string{"gpu", "gpu=true", "linux", "self-hosted", "ubuntu-latest", "zone=b"}, d.labels())
	d.cfg.Labels = []string{"own"}
	require.Equal(t, []string{"own"}, d.labels())
}
