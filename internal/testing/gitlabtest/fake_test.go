package gitlabtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/pause"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// caller makes calls to a Fake in a bubble of synctest.
type caller struct {
	t    *testing.T
	fake *Fake
	http *http.Client
}

func newCaller(t *testing.T, cfg Config) *caller {
	f := New(cfg)
	return &caller{t: t, fake: f, http: &http.Client{
		Transport:     f.Transport(t),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (c *caller) do(method, path, body string, header ...string) got {
	c.t.Helper()
	address := path
	if !strings.HasPrefix(path, "http") {
		address = "http://gitlab.example.com/api/v4/" + path
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, address, strings.NewReader(body))
	require.NoError(c.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.http.Do(req)
	require.NoError(c.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	return got{resp.StatusCode, resp.Header, string(text)}
}

// got is an answer.
type got struct {
	status int
	header http.Header
	text   string
}

// wait waits in the time of the bubble.
func (c *caller) wait(d time.Duration) {
	c.t.Helper()
	require.NoError(c.t, pause.For(c.t.Context(), d))
}

// ask asks for a job.
func (c *caller) ask(last string, features string) (resp got, job map[string]any) {
	c.t.Helper()
	resp = c.do("POST", "jobs/request", fmt.Sprintf(
		`{"token":%q,"system_id":"s_0123456789ab","last_update":%q,"info":{"features":{%s}}}`, RunnerToken, last, features))
	if resp.status == http.StatusCreated {
		require.NoError(c.t, json.Unmarshal([]byte(resp.text), &job))
	}
	return resp, job
}

// tell tells the state of the first job.
func (c *caller) tell(id int, state string) got {
	c.t.Helper()
	return c.do("PUT", fmt.Sprintf("jobs/%d", id),
		fmt.Sprintf(`{"token":"glcbt-token-of-job-%d","state":%q}`, id, state))
}

const twoPhase = `"two_phase_job_commit":true,"cancel_gracefully":true`

// The answers of the fake are those with which GitLab Runner's own client was content.
func TestTheRecordedConversationIsHeldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCaller(t, Config{Hold: 300 * time.Millisecond, Interval: 5 * time.Second, MaxTrace: 1000})
		lines := Conversation(t)
		require.Greater(t, len(lines), 40)
		for i, l := range lines {
			if l.Act != "" {
				c.fake.Act(l.Act)
				continue
			}
			body := string(l.Request)
			if l.Header["Content-Type"] != "application/json" && body != "" {
				require.NoError(t, json.Unmarshal(l.Request, &body))
			}
			var header []string
			for name, value := range l.Header {
				if value == "multipart/form-data" {
					body, value = form(t, body)
				}
				header = append(header, name, value)
			}
			c.do(l.Method, l.Path, body, header...)
			calls := c.fake.Calls()
			want, err := json.Marshal(l)
			require.NoError(t, err)
			got, err := json.Marshal(calls[len(calls)-1].Line())
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(got), "line %d", i+1)
		}
	})
}

// form returns a form with a file, and its type.
func form(t *testing.T, text string) (body, kind string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile("file", "artifacts.zip")
	require.NoError(t, err)
	_, err = io.WriteString(part, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String(), w.FormDataContentType()
}

// A request with the update of the queue is held, and answered without a job when the queue changes.
func TestARequestIsHeldWhileNothingChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCaller(t, Config{})
		resp, _ := c.ask("", "")
		require.Equal(t, http.StatusNoContent, resp.status)
		last := resp.header.Get("X-GitLab-Last-Update")
		began := time.Now()
		resp, _ = c.ask(last, "")
		require.Equal(t, http.StatusNoContent, resp.status)
		require.Empty(t, resp.header.Get("X-GitLab-Last-Update"))
		require.Equal(t, 50*time.Second, time.Since(began))

		time.AfterFunc(20*time.Second, func() { c.fake.Add(Script("true")) })
		began = time.Now()
		resp, _ = c.ask(last, "")
		require.Equal(t, http.StatusNoContent, resp.status, "it is asked again")
		require.Equal(t, 20*time.Second, time.Since(began))
		resp, job := c.ask(last, "")
		require.Equal(t, http.StatusCreated, resp.status)
		require.InDelta(t, 1, job["id"], 0)
	})
}

// A job that its runner does not acknowledge within two minutes fails, and another takes its place.
func TestAJobThatIsNotAcknowledgedGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCaller(t, Config{Acknowledges: true})
		c.fake.Add(Script("true"))
		_, job := c.ask("", twoPhase)
		require.NotNil(t, job)
		for range 3 { // it is kept
			c.wait(119 * time.Second)
			require.Equal(t, http.StatusOK, c.tell(1, "pending").status)
		}
		require.Equal(t, http.StatusBadRequest, c.tell(1, "success").status)
		require.Equal(t, http.StatusOK, c.tell(1, "running").status)
		c.wait(time.Hour)
		require.Equal(t, http.StatusOK, c.tell(1, "running").status)
		require.Equal(t, http.StatusBadRequest, c.tell(1, "pending").status, "it runs")

		c.fake.Add(Script("true"))
		c.ask("", twoPhase)
		c.wait(2*time.Minute + time.Second)
		resp := c.tell(2, "running")
		require.Equal(t, http.StatusForbidden, resp.status)
		require.Equal(t, Failed, resp.header.Get("Job-Status"))
		_, job = c.ask("", twoPhase)
		require.InDelta(t, 3, job["id"], 0)
		require.EqualValues(t, 3, c.fake.Job(2).Retry)
		require.Equal(t, "runner_provisioning_timeout", c.fake.Job(2).Reason)

		c.fake.Add(Script("true")) // a runner that does not know it
		c.ask("", "")
		require.Equal(t, Running, c.fake.Job(4).Status)
	})
}

func TestCallsAboveTheRateAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCaller(t, Config{Rate: 2})
		for range 2 {
			resp, _ := c.ask("", "")
			require.Equal(t, http.StatusNoContent, resp.status)
		}
		resp, _ := c.ask("", "")
		require.Equal(t, http.StatusTooManyRequests, resp.status)
		at, err := http.ParseTime(resp.header.Get("RateLimit-ResetTime"))
		require.NoError(t, err)
		c.wait(time.Until(at))
		resp, _ = c.ask("", "")
		require.Equal(t, http.StatusNoContent, resp.status)
	})
}

// Artifacts go to the store and come from it, by signed URLs.
func TestArtifactsAreRedirectedToTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCaller(t, Config{Store: "http://store.example.com"})
		c.fake.Add(Script("true"))
		_, job := c.ask("", "")
		body, kind := form(t, "the archive")
		token := job["token"].(string)
		resp := c.do("POST", "jobs/1/artifacts?artifact_type=archive", body, "Content-Type", kind, "JOB-TOKEN", token)
		require.Equal(t, http.StatusTemporaryRedirect, resp.status)
		resp = c.do("POST", resp.header.Get("Location"), body, "Content-Type", kind)
		require.Equal(t, http.StatusCreated, resp.status)
		resp = c.do("GET", "jobs/1/artifacts?direct_download=true", "", "JOB-TOKEN", token)
		require.Equal(t, http.StatusFound, resp.status)
		resp = c.do("GET", resp.header.Get("Location"), "")
		require.Equal(t, "the archive", resp.text)
		resp = c.do("GET", "jobs/1/artifacts", "", "JOB-TOKEN", token)
		require.Equal(t, "the archive", resp.text)
		resp = c.do("GET", "http://store.example.com/store/1/archive", "")
		require.Equal(t, http.StatusForbidden, resp.status)
	})
}

// A fault is the answer in place of the right one, or the loss of that.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCaller(t, Config{})
		c.fake.Add(Script("true"))
		c.fake.Fail(func(*http.Request) *Fault { return &Fault{Status: http.StatusConflict} })
		resp, _ := c.ask("", "")
		require.Equal(t, http.StatusConflict, resp.status)
		require.Equal(t, Pending, c.fake.Job(1).Status)
		c.fake.Fail(func(*http.Request) *Fault { return &Fault{Acts: true} })
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/api/v4/jobs/request",
			strings.NewReader(fmt.Sprintf(`{"token":%q}`, RunnerToken)))
		require.NoError(t, err)
		_, err = c.http.Do(req) //nolint:bodyclose // there is no answer
		require.Error(t, err)
		require.Equal(t, Running, c.fake.Job(1).Status, "the answer is lost")
	})
}
