package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"gitlab.com/gitlab-org/gitlab-runner/common"
	"gitlab.com/gitlab-org/gitlab-runner/common/spec"
	"gitlab.com/gitlab-org/gitlab-runner/network"

	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
)

var update = flag.Bool("update", false, "write the conversation of GitLab Runner's client with the fake")

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	m.Run()
}

// peer is GitLab Runner's client with a Fake.
type peer struct {
	t      *testing.T
	fake   *gitlabtest.Fake
	client *network.GitLabClient
	config common.RunnerConfig
	lines  []gitlabtest.Line
	seen   int // calls of the fake that are in lines
}

func newPeer(t *testing.T, cfg gitlabtest.Config) *peer {
	fake := gitlabtest.New(cfg)
	p := &peer{t: t, fake: fake, client: network.NewGitLabClient(), config: common.RunnerConfig{
		SystemID: "s_0123456789ab", RunnerCredentials: common.RunnerCredentials{Token: gitlabtest.RunnerToken},
	}}
	p.config.URL = fake.Serve(t)
	return p
}

// note adds the calls since the last one to the lines.
func (p *peer) note() {
	calls := p.fake.Calls()
	for _, c := range calls[p.seen:] {
		p.lines = append(p.lines, c.Line())
	}
	p.seen = len(calls)
}

// act does something at the server.
func (p *peer) act(format string, args ...any) {
	p.note()
	act := fmt.Sprintf(format, args...)
	p.fake.Act(act)
	p.lines = append(p.lines, gitlabtest.Line{Act: act})
}

func (p *peer) verify() (*common.VerifyRunnerResponse, error) {
	return p.client.VerifyRunner(p.t.Context(), p.config, p.config.SystemID)
}

func (p *peer) request() (job *spec.Job, healthy bool) {
	return p.client.RequestJob(p.t.Context(), p.config, nil)
}

// take adds a job and takes it.
func (p *peer) take() (*spec.Job, *common.JobCredentials) {
	p.t.Helper()
	p.act("add echo hello")
	for range 3 { // a request that was held gives none
		if job, healthy := p.request(); job != nil {
			return job, p.of(job)
		} else if !healthy {
			break
		}
	}
	require.Fail(p.t, "there is no job")
	return nil, nil
}

func (p *peer) of(job *spec.Job) *common.JobCredentials {
	return &common.JobCredentials{ID: job.ID, Token: job.Token, URL: p.config.URL}
}

func (p *peer) put(c *common.JobCredentials, state common.JobState, trace string) common.UpdateJobResult {
	info := common.UpdateJobInfo{ID: c.ID, State: state}
	if state != "pending" {
		info.Output = common.JobTraceOutput{
			Checksum: fmt.Sprintf("crc32:%08x", crc32.ChecksumIEEE([]byte(trace))), Bytesize: len(trace),
		}
	}
	if state == common.Failed {
		info.FailureReason, info.ExitCode = common.ScriptFailure, 3
	}
	return p.client.UpdateJob(p.config, c, info)
}

func (p *peer) patch(c *common.JobCredentials, start int, text string) common.PatchTraceResult {
	return p.client.PatchTrace(p.config, c, []byte(text), start, false)
}

// The client is content with each right answer. The lines are those of the recorded conversation.
func TestTheClientIsContent(t *testing.T) {
	p := newPeer(t, gitlabtest.Config{Hold: 300 * time.Millisecond, Interval: 5 * time.Second, MaxTrace: 1000})
	runner, err := p.verify()
	require.NoError(t, err)
	require.EqualValues(t, 12, runner.ID)
	right := p.config.Token
	p.config.Token = "glrt-a-wrong-token"
	runner, err = p.verify()
	require.NoError(t, err)
	require.Nil(t, runner, "it is not valid")
	job, healthy := p.request()
	require.Nil(t, job)
	require.False(t, healthy)
	p.config.Token = right

	job, healthy = p.request() // no job: it learns the update
	require.Nil(t, job)
	require.True(t, healthy)
	began := time.Now()
	job, healthy = p.request() // it is held
	require.Nil(t, job)
	require.True(t, healthy)
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)

	job, c := p.take()
	require.Equal(t, spec.StepScript{"echo hello"}, job.Steps[0].Script)
	require.Equal(t, "group/project", job.JobInfo.ProjectFullPath)
	require.Equal(t, 3600, job.RunnerInfo.Timeout)
	require.Equal(t, []string{"+refs/heads/main:refs/remotes/origin/main"}, job.GitInfo.Refspecs)
	require.Equal(t, "a secret value", job.Variables.Get("SECRET"))
	require.True(t, job.Features.TraceSections)
	require.Equal(t, common.UpdateSucceeded, p.put(c, common.Running, "").State)
	require.Equal(t, common.UpdateFailed, p.put(c, "pending", "").State, "it runs without an acknowledgement")

	patched := p.patch(c, 0, "one\n")
	require.Equal(t, common.PatchTraceResult{
		SentOffset: 4, State: common.PatchSucceeded, NewUpdateInterval: 5 * time.Second,
	}, patched)
	require.Equal(t, common.PatchSucceeded, p.patch(c, 0, "one\n").State, "the answer was lost")
	require.Equal(t, common.PatchSucceeded, p.patch(c, 4, "two\n").State)
	patched = p.patch(c, 4, "two\nthree\n")
	require.Equal(t, common.PatchRangeMismatch, patched.State)
	require.Equal(t, 8, patched.SentOffset)
	p.act("cut %d 3", c.ID)
	patched = p.patch(c, 8, "three\n")
	require.Equal(t, common.PatchRangeMismatch, patched.State)
	require.Equal(t, 3, patched.SentOffset)
	require.Equal(t, common.PatchSucceeded, p.patch(c, 3, "\ntwo\nthree\n").State)

	require.Equal(t, common.UpdateTraceValidationFailed, p.put(c, common.Success, "other").State)
	require.Equal(t, common.PatchSucceeded, p.patch(c, 0, "one\ntwo\nthree\n").State)
	done := p.put(c, common.Success, "one\ntwo\nthree\n")
	require.Equal(t, common.UpdateSucceeded, done.State)
	require.Equal(t, common.UpdateAbort, p.put(c, common.Success, "one\ntwo\nthree\n").State, "it has ended")
	require.Equal(t, gitlabtest.Success, p.fake.Job(c.ID).Status)

	_, c = p.take() // one that fails
	// The 200 has the Job-Status failed, which the client takes as an end by the server: it reports no more.
	require.Equal(t, common.UpdateAbort, p.put(c, common.Failed, "").State)
	require.Equal(t, "script_failure", p.fake.Job(c.ID).Reason)
	require.Equal(t, 3, p.fake.Job(c.ID).ExitCode)

	_, c = p.take() // one that is canceled gracefully
	p.act("cancel %d", c.ID)
	patched = p.patch(c, 0, "one\n")
	require.Equal(t, common.PatchSucceeded, patched.State)
	require.True(t, patched.CancelRequested)
	require.True(t, p.put(c, common.Running, "one\n").CancelRequested)
	require.Equal(t, common.UpdateAbort, p.put(c, common.Failed, "one\n").State, "canceled")
	require.Equal(t, gitlabtest.Canceled, p.fake.Job(c.ID).Status)

	_, c = p.take() // one that the server ends
	p.act("end %d canceled", c.ID)
	require.Equal(t, common.PatchAbort, p.patch(c, 0, "one\n").State)
	require.Equal(t, common.UpdateAbort, p.put(c, common.Running, "").State)

	_, c = p.take() // one with a trace over the limit
	require.Equal(t, common.PatchAbort, p.patch(c, 0, strings.Repeat("x", 1001)).State)
	require.Equal(t, common.PatchAbort, p.patch(c, 0, "one\n").State)

	require.Equal(t, common.PatchAbort, p.patch(&common.JobCredentials{ID: 99, Token: "no job"}, 0, "one\n").State)

	_, c = p.take() // one with artifacts
	download := func(c *common.JobCredentials, direct bool) (string, common.DownloadState) {
		var got buffer
		state := p.client.DownloadArtifacts(*c, &got, &direct)
		return got.String(), state
	}
	_, got := download(c, true)
	require.Equal(t, common.DownloadNotFound, got)
	state, _, err := p.upload(c, "the archive")
	require.NoError(t, err)
	require.Equal(t, common.UploadSucceeded, state)
	text, got := download(c, true)
	require.Equal(t, common.DownloadSucceeded, got)
	require.Equal(t, "the archive", text)
	wrong := *c
	wrong.Token = "of no job"
	_, got = download(&wrong, true)
	require.Equal(t, common.DownloadForbidden, got)
	wrong.Token = ""
	_, got = download(&wrong, true)
	require.Equal(t, common.DownloadUnauthorized, got)

	p.act("revoke")
	for range 2 { // the first was held
		_, healthy = p.request()
	}
	require.False(t, healthy)

	p.note()
	var all bytes.Buffer
	for _, l := range p.lines {
		line, err := json.Marshal(l)
		require.NoError(t, err)
		all.Write(append(line, '\n'))
	}
	name := "../testdata/runner-19.4.0.jsonl"
	if *update {
		require.NoError(t, os.WriteFile(name, all.Bytes(), 0o600))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), all.String(), "go test -update writes it")
}

func (p *peer) upload(c *common.JobCredentials, text string) (common.UploadState, string, error) {
	return p.client.UploadRawArtifacts(*c, common.BytesProvider{Data: []byte(text)}, common.ArtifactsOptions{
		BaseName: "artifacts.zip", Format: "zip", Type: "archive", ExpireIn: "1 week",
	})
}

// buffer takes a download. The client closes it.
type buffer struct{ bytes.Buffer }

func (*buffer) Close() error { return nil }

// A job that has to be acknowledged waits for its runner, and goes to the next if it does not say a word.
func TestTheClientAcknowledges(t *testing.T) {
	p := newPeer(t, gitlabtest.Config{Acknowledges: true, Acknowledge: 500 * time.Millisecond, Hold: -1})
	_, c := p.take()
	for range 4 {
		require.Equal(t, gitlabtest.Waiting, p.fake.Job(c.ID).Status)
		require.Equal(t, common.UpdateSucceeded, p.put(c, "pending", "").State)
		time.Sleep(200 * time.Millisecond) // the client has no clock of its own to turn
	}
	require.Equal(t, common.UpdateFailed, p.put(c, common.Success, "").State, "400: it does not run yet")
	require.Equal(t, common.UpdateSucceeded, p.put(c, common.Running, "").State)
	require.Equal(t, gitlabtest.Running, p.fake.Job(c.ID).Status)
	require.Equal(t, common.UpdateSucceeded, p.put(c, common.Success, "").State)

	_, c = p.take()
	failed := func() bool { return p.fake.Job(c.ID).Status == gitlabtest.Failed }
	require.Eventually(t, failed, 5*time.Second, time.Millisecond)
	require.Equal(t, common.UpdateAbort, p.put(c, "pending", "").State)
	job, _ := p.request()
	require.NotNil(t, job)
	require.Equal(t, p.fake.Job(c.ID).Retry, job.ID)
}

// Each refusal is one that the client knows.
func TestTheClientKnowsRefusals(t *testing.T) {
	fault := func(statuses ...int) func(*http.Request) *gitlabtest.Fault {
		var mu sync.Mutex
		return func(*http.Request) *gitlabtest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if len(statuses) == 0 {
				return nil
			}
			status := statuses[0]
			statuses = statuses[1:]
			return &gitlabtest.Fault{Status: status, Header: http.Header{"Retry-After": {"1"}}, Text: "{}"}
		}
	}
	five := []int{503, 503, 503, 503, 503}
	for _, test := range []struct {
		name  string
		fails []int
		call  func(p *peer, c *common.JobCredentials) any
		want  any
	}{
		{"request lost a race", []int{409}, func(p *peer, _ *common.JobCredentials) any {
			job, healthy := p.request()
			return job == nil && healthy
		}, true},
		{"request too often", []int{429}, func(p *peer, _ *common.JobCredentials) any {
			p.fake.Add(gitlabtest.Script("echo hello"))
			job, healthy := p.request()
			return job != nil && healthy
		}, true},
		{"request while the server is away", five, func(p *peer, _ *common.JobCredentials) any {
			job, healthy := p.request()
			return job == nil && healthy
		}, true},
		{"update later", []int{202}, func(p *peer, c *common.JobCredentials) any {
			return p.put(c, common.Success, "").State
		}, common.UpdateAcceptedButNotCompleted},
		{"update not found", []int{404}, func(p *peer, c *common.JobCredentials) any {
			return p.put(c, common.Running, "").State
		}, common.UpdateAbort},
		{"patch not found", []int{404}, func(p *peer, c *common.JobCredentials) any {
			return p.patch(c, 0, "one\n").State
		}, common.PatchNotFound},
		{"patch while the server is away", five, func(p *peer, c *common.JobCredentials) any {
			return p.patch(c, 0, "one\n").State
		}, common.PatchFailed},
		{"patch through", []int{500, 502}, func(p *peer, c *common.JobCredentials) any {
			return p.patch(c, 0, "one\n").State
		}, common.PatchSucceeded},
		{"upload that is too large", []int{413}, func(p *peer, c *common.JobCredentials) any {
			state, _, _ := p.upload(c, "x")
			return state
		}, common.UploadTooLarge},
		{"upload that is forbidden", []int{403}, func(p *peer, c *common.JobCredentials) any {
			state, _, _ := p.upload(c, "x")
			return state
		}, common.UploadForbidden},
		{"upload while the server is away", five, func(p *peer, c *common.JobCredentials) any {
			state, _, _ := p.upload(c, "x")
			return state
		}, common.UploadServiceUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, gitlabtest.Config{Hold: -1})
			_, c := p.take()
			p.fake.Fail(fault(test.fails...))
			require.Equal(t, test.want, test.call(p, c))
		})
	}
}

// Above its rate the server says when the client may ask again.
func TestTheClientWaitsForTheRate(t *testing.T) {
	p := newPeer(t, gitlabtest.Config{Hold: -1, Rate: 1})
	_, err := p.verify()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, _ = p.client.RequestJob(ctx, p.config, nil)
	require.Len(t, p.fake.Calls(), 2, "it waits for the next minute")
	require.Equal(t, http.StatusTooManyRequests, p.fake.Calls()[1].Status)
}

// An artifact goes to the store that the server names, and comes from there.
func TestTheClientUsesTheStore(t *testing.T) {
	store := gitlabtest.New(gitlabtest.Config{})
	p := newPeer(t, gitlabtest.Config{Hold: -1, Store: store.Serve(t)})
	_, c := p.take()
	state, _, err := p.upload(c, "the archive") // net/http follows the 307, with the file; the store knows no such job
	require.NoError(t, err)
	require.Equal(t, common.UploadForbidden, state)
	require.Equal(t, "POST", store.Calls()[0].Method)

	store.Add(nil)
	store.Fail(func(*http.Request) *gitlabtest.Fault { return &gitlabtest.Fault{Status: http.StatusServiceUnavailable} })
	state, _, err = p.upload(c, "the archive") // five times, each through the server
	require.NoError(t, err)
	require.Equal(t, common.UploadServiceUnavailable, state)
	store.Fail(nil)
	state, _, err = p.upload(c, "the archive")
	require.NoError(t, err)
	require.Equal(t, common.UploadSucceeded, state)
	require.Equal(t, "the archive", string(store.Job(1).Artifacts["archive"]))
}

// A whole job, as the runner reports it: the trace arrives in full, whatever the server loses and asks for.
func TestTheTraceOfTheClientArrives(t *testing.T) {
	for _, test := range []struct {
		name string
		cfg  gitlabtest.Config
		hurt func(p *peer, id int64)
	}{
		{"undisturbed", gitlabtest.Config{}, func(*peer, int64) {}},
		{"cut", gitlabtest.Config{}, func(p *peer, id int64) { p.fake.Cut(id, 2) }},
		{"later", gitlabtest.Config{Later: 2}, func(*peer, int64) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.cfg.Hold, test.cfg.Interval = -1, time.Second
			p := newPeer(t, test.cfg)
			_, c := p.take()
			trace, err := p.client.ProcessJob(p.config, c)
			require.NoError(t, err)
			_, err = io.WriteString(trace, "first\n")
			require.NoError(t, err)
			require.Eventually(t, func() bool { return len(p.fake.Job(c.ID).Trace) > 0 }, 20*time.Second, 5*time.Millisecond)
			test.hurt(p, c.ID)
			_, err = io.WriteString(trace, "last\n")
			require.NoError(t, err)
			require.NoError(t, trace.Success())
			job := p.fake.Job(c.ID)
			require.Equal(t, gitlabtest.Success, job.Status)
			require.Contains(t, string(job.Trace), "first\n")
			require.Contains(t, string(job.Trace), "last\n")
			require.LessOrEqual(t, strings.Count(string(job.Trace), "first\n"), 1)
		})
	}
}
