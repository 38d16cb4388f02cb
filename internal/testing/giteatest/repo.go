package giteatest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// try calls the API. in and out may be nil; out may be a *[]byte, which gets the answer as it is.
func (g *Gitea) try(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, g.URL+"/api/v1"+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "token "+g.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch out := out.(type) {
	case nil:
	case *[]byte:
		*out = text
	default:
		if err == nil && resp.StatusCode < 300 {
			err = json.Unmarshal(text, out)
		}
	}
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, text)
	}
	return err
}

func (g *Gitea) call(method, path string, in, out any) {
	g.t.Helper()
	require.NoError(g.t, g.try(g.t.Context(), method, path, in, out))
}

// click posts to a page of the server, as a user who is logged in, and returns the answer.
func (g *Gitea) click(path, kind, body string) []byte {
	g.t.Helper()
	if !g.loggedIn {
		g.loggedIn = true
		form := url.Values{"user_name": {User}, "password": {password}}
		g.click("/user/login", "application/x-www-form-urlencoded", form.Encode())
	}
	resp, err := g.session.Post(g.URL+path, kind, strings.NewReader(body))
	require.NoError(g.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(g.t, err)
	require.Less(g.t, resp.StatusCode, 300, "%s: %.300s", path, text)
	return text
}

// Runners returns the names of all runners that the server knows.
func (g *Gitea) Runners() (all []string) {
	g.t.Helper()
	var out struct {
		Runners []struct{ Name string }
	}
	g.call(http.MethodGet, "/admin/actions/runners?limit=50", nil, &out)
	for _, r := range out.Runners {
		all = append(all, r.Name)
	}
	return all
}

// Repo is a repository on a [Gitea].
type Repo struct {
	g    *Gitea
	Name string
}

// Repo makes a repository with files, by their paths.
func (g *Gitea) Repo(name string, files map[string]string) *Repo {
	g.t.Helper()
	g.call(http.MethodPost, "/user/repos", map[string]any{"name": name, "auto_init": true, "default_branch": "main"}, nil)
	r := &Repo{g, name}
	if len(files) > 0 {
		r.Push(files)
	}
	return r
}

func (r *Repo) path(format string, args ...any) string {
	return "/repos/" + User + "/" + r.Name + fmt.Sprintf(format, args...)
}

// Push commits files to the branch main, as a push does.
func (r *Repo) Push(files map[string]string) {
	r.g.t.Helper()
	var all []map[string]string
	for path, text := range files {
		all = append(all, map[string]string{
			"operation": "upload", "path": path, "content": base64.StdEncoding.EncodeToString([]byte(text)),
		})
	}
	r.g.call(http.MethodPost, r.path("/contents"),
		map[string]any{"branch": "main", "message": "change", "files": all}, nil)
}

// Secret sets a secret of the workflows.
func (r *Repo) Secret(name, value string) {
	r.g.t.Helper()
	r.g.call(http.MethodPut, r.path("/actions/secrets/%s", name), map[string]string{"data": value}, nil)
}

// Variable sets a variable of the workflows.
func (r *Repo) Variable(name, value string) {
	r.g.t.Helper()
	r.g.call(http.MethodPost, r.path("/actions/variables/%s", name), map[string]string{"value": value}, nil)
}

// Dispatch starts a workflow with inputs.
func (r *Repo) Dispatch(workflow string, inputs map[string]string) {
	r.g.t.Helper()
	r.g.call(http.MethodPost, r.path("/actions/workflows/%s/dispatches", workflow),
		map[string]any{"ref": "main", "inputs": inputs}, nil)
}

// Hook makes the server tell a URL of the jobs of the workflows, with a secret. The server is one that may call this
// machine: its configuration has ALLOWED_HOST_LIST = loopback in [webhook].
func (r *Repo) Hook(url, secret string) {
	r.g.t.Helper()
	r.g.call(http.MethodPost, r.path("/hooks"), map[string]any{
		"type": "gitea", "active": true, "events": []string{"workflow_job"},
		"config": map[string]string{"url": url, "content_type": "json", "secret": secret},
	}, nil)
}

// Run is a run of a workflow.
type Run struct {
	ID         int64  `json:"id"`
	Number     int64  `json:"run_number"`
	Status     string `json:"status"`
	Conclusion string `json:"conclusion"`
}

// Job is a job of a run.
type Job struct {
	ID         int64     `json:"id"`
	RunID      int64     `json:"run_id"`
	Attempt    int64     `json:"run_attempt"`
	Name       string    `json:"name"`
	Status     string    `json:"status"`
	Conclusion string    `json:"conclusion"`
	Runner     string    `json:"runner_name"`
	CreatedAt  time.Time `json:"created_at"`
	StartedAt  time.Time `json:"started_at"`
}

// pageSize is the most that the API answers at once.
const pageSize = 50

// Runs returns all runs, the first one first.
func (r *Repo) Runs() (all []Run) {
	r.g.t.Helper()
	for page := 1; ; page++ {
		var out struct {
			Runs []Run `json:"workflow_runs"`
		}
		r.g.call(http.MethodGet, r.path("/actions/runs?limit=%d&page=%d", pageSize, page), nil, &out)
		if all = append(all, out.Runs...); len(out.Runs) < pageSize {
			break
		}
	}
	slices.SortFunc(all, func(a, b Run) int { return int(a.ID - b.ID) })
	return all
}

// Jobs returns the jobs of all runs, the first one first.
func (r *Repo) Jobs() (all []Job) {
	r.g.t.Helper()
	for page := 1; ; page++ {
		var out struct {
			Jobs []Job `json:"jobs"`
		}
		r.g.call(http.MethodGet, r.path("/actions/jobs?limit=%d&page=%d", pageSize, page), nil, &out)
		if all = append(all, out.Jobs...); len(out.Jobs) < pageSize {
			break
		}
	}
	slices.SortFunc(all, func(a, b Job) int { return int(a.ID - b.ID) })
	return all
}

// Ended waits until all jobs of all runs have ended, and returns them by their names. There must be at least so many.
func (r *Repo) Ended(jobs int) map[string]Job {
	r.g.t.Helper()
	var all []Job
	require.Eventually(r.g.t, func() bool {
		all = r.Jobs()
		return len(all) >= jobs && !slices.ContainsFunc(all, func(j Job) bool { return j.Status != "completed" })
	}, 4*sshtest.Bound, 100*time.Millisecond, "%+v", &all)
	named := map[string]Job{}
	for _, j := range all {
		named[j.Name] = j
	}
	return named
}

// Rows returns the rows of a job's log that the server has, without their times.
func (r *Repo) Rows(job int64) (all []string) {
	var text []byte
	if err := r.g.try(r.g.t.Context(), http.MethodGet, r.path("/actions/jobs/%d/logs", job), nil, &text); err != nil {
		return nil // it has none yet
	}
	for line := range strings.Lines(strings.TrimSuffix(string(text), "\n") + "\n") {
		_, row, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		all = append(all, row)
	}
	return all
}

// Steps returns the results of the steps of a job, as its page shows them, between those of two that Gitea adds. In the
// API of 1.26 each step has the result of the job.
func (r *Repo) Steps(job Job) (all []string) {
	r.g.t.Helper()
	text := r.g.click(fmt.Sprintf("/%s/%s/actions/runs/%d/jobs/%d", User, r.Name, job.RunID, job.ID), "application/json",
		`{"logCursors": []}`)
	var page struct {
		State struct {
			CurrentJob struct {
				Steps []struct{ Status string }
			}
		}
	}
	require.NoError(r.g.t, json.Unmarshal(text, &page))
	for _, step := range page.State.CurrentJob.Steps {
		all = append(all, step.Status)
	}
	return all
}

// Cancel cancels a run, as the button of its page does: the API has no call for it.
func (r *Repo) Cancel(run int64) {
	r.g.t.Helper()
	r.g.click(fmt.Sprintf("/%s/%s/actions/runs/%d/cancel", User, r.Name, run), "text/plain", "")
}

// Rerun lets the jobs of a run that has ended run again.
func (r *Repo) Rerun(run int64) {
	r.g.t.Helper()
	r.g.call(http.MethodPost, r.path("/actions/runs/%d/rerun", run), nil, nil)
}
