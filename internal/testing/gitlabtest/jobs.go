package gitlabtest

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxRequest bounds the body of a request for a job: Workhorse takes no larger ones.
const maxRequest = 32 << 10

const prefix = "/api/v4/"

// relative returns the path of a call, after the prefix.
func relative(u *url.URL) string {
	path := strings.TrimPrefix(u.EscapedPath(), prefix)
	if u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	return path
}

// serve answers a call as it should be.
func (f *Fake) serve(req *http.Request, body []byte) *answer {
	if a := f.limited(time.Now()); a != nil {
		return a
	}
	if key, is := strings.CutPrefix(req.URL.Path, "/store/"); is {
		return f.serveStore(req, key, body)
	}
	path, is := strings.CutPrefix(req.URL.Path, prefix)
	if !is {
		return &answer{
			status: http.StatusNotFound, header: http.Header{"Content-Type": {"text/html"}}, text: []byte("<html>404</html>"),
		}
	}
	switch {
	case req.Method == http.MethodPost && path == "runners/verify":
		return f.verify(body)
	case req.Method == http.MethodPost && path == "jobs/request":
		return f.request(req, body)
	}
	id, part, _ := strings.Cut(strings.TrimPrefix(path, "jobs/"), "/")
	number, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return of(http.StatusNotFound, map[string]string{"error": "404 Not Found"})
	}
	switch req.Method + " " + part {
	case "PUT ":
		return f.put(number, body)
	case "PATCH trace":
		return f.patch(req, number, body)
	case "POST artifacts":
		return f.upload(req, number, body)
	case "GET artifacts":
		return f.download(req, number)
	}
	return of(http.StatusMethodNotAllowed, map[string]string{"error": "405 Not Allowed"})
}

// limited returns the answer to a call above the rate.
func (f *Fake) limited(now time.Time) *answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cfg.Rate == 0 {
		return nil
	}
	if now.Sub(f.window) >= time.Minute {
		f.window, f.counted = now.Truncate(time.Second), 0
	}
	if f.counted++; f.counted <= f.cfg.Rate {
		return nil
	}
	reset := f.window.Add(time.Minute)
	return &answer{status: http.StatusTooManyRequests, text: []byte("Retry later\n"), header: http.Header{
		"Content-Type": {"text/plain"}, "Ratelimit-Limit": {strconv.Itoa(f.cfg.Rate)}, "Ratelimit-Remaining": {"0"},
		"Ratelimit-Reset":     {strconv.FormatInt(reset.Unix(), 10)},
		"Ratelimit-Resettime": {reset.UTC().Format(http.TimeFormat)},
		"Retry-After":         {strconv.Itoa(int(reset.Sub(now).Seconds()) + 1)},
	}}
}

// said has the fields of all requests.
type said struct {
	Token      string
	SystemID   string `json:"system_id"`
	LastUpdate string `json:"last_update"`
	Info       struct {
		Features struct {
			TwoPhase bool `json:"two_phase_job_commit"`
			Graceful bool `json:"cancel_gracefully"`
		}
	}
	State    string
	Reason   string `json:"failure_reason"`
	ExitCode int    `json:"exit_code"`
	Checksum string // deprecated
	Output   struct {
		Checksum string
		Bytesize int64
	}
}

// read reads a request. The token is required.
func read(body []byte) (in said, a *answer) {
	if err := json.Unmarshal(body, &in); err != nil {
		return in, of(http.StatusBadRequest, map[string]string{"error": "the body is not JSON"})
	}
	if in.Token == "" {
		return in, of(http.StatusBadRequest, map[string]string{"error": "token is missing"})
	}
	return in, nil
}

// isRunner reports whether a token is that of the runner.
func (f *Fake) isRunner(token string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return token == RunnerToken && !f.revoked
}

func (f *Fake) verify(body []byte) *answer {
	in, a := read(body)
	switch {
	case a != nil:
		return a
	case !f.isRunner(in.Token):
		return refused(http.StatusForbidden, "")
	}
	return of(http.StatusOK, map[string]any{"id": 12, "token": RunnerToken, "token_expires_at": nil})
}

// request answers a request for a job. As Workhorse, it holds a request whose last_update is that of the queue, and
// then gives no job: the runner asks again.
func (f *Fake) request(req *http.Request, body []byte) *answer {
	if len(body) > maxRequest {
		return &answer{status: http.StatusRequestEntityTooLarge, text: []byte("Request Entity Too Large\n")}
	}
	in, a := read(body)
	if a != nil {
		return a
	}
	f.mu.Lock()
	now, changed := strconv.Itoa(f.update), f.changed
	f.mu.Unlock()
	if in.LastUpdate == now && f.cfg.Hold > 0 {
		timer := time.NewTimer(f.cfg.Hold)
		defer timer.Stop()
		select {
		case <-changed:
		case <-timer.C:
		case <-req.Context().Done():
		}
		return of(http.StatusNoContent, nil, "Gitlab-Ci-Builds-Polling", "yes")
	}
	if !f.isRunner(in.Token) {
		return refused(http.StatusForbidden, "")
	}
	return f.give(in)
}

// give gives the first job of the queue to a runner.
func (f *Fake) give(in said) *answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) == 0 {
		return of(http.StatusNoContent, nil, "X-GitLab-Last-Update", strconv.Itoa(f.update))
	}
	j := f.queue[0]
	f.queue = f.queue[1:]
	j.System, j.graceful = in.SystemID, in.Info.Features.Graceful
	j.Taken++
	j.Status = Running
	if f.cfg.Acknowledges && in.Info.Features.TwoPhase {
		j.Status = Waiting
		j.expiry = time.AfterFunc(f.cfg.Acknowledge, func() { f.expire(j) })
	}
	fields := maps.Clone(j.Answer)
	if fields == nil {
		fields = map[string]any{}
	}
	fields["id"], fields["token"] = j.ID, j.Token
	return of(http.StatusCreated, fields)
}

// expire ends a job that its runner did not acknowledge: another one takes its place.
func (f *Fake) expire(j *Job) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if j.Status == Waiting {
		j.Status, j.Reason = Failed, "runner_provisioning_timeout"
		j.Retry = f.addLocked(j.Answer).ID
	}
}

// jobLocked returns the job of a call, if the token is that of the job and a runner has it. Of a job that is not there
// GitLab says 403, too, because a 404 may come from any proxy.
func (f *Fake) jobLocked(id int64, token string) (*Job, *answer) {
	j := f.jobs[id]
	if j == nil || j.Token != token {
		return nil, refused(http.StatusForbidden, "")
	}
	if !slices.Contains([]string{Waiting, Running, Canceling}, j.Status) {
		return nil, refused(http.StatusForbidden, "Job is not processing on runner", "Job-Status", j.Status)
	}
	return j, nil
}

// status returns an answer about a job whose body is the code.
func (j *Job) status(code int, header ...string) *answer {
	state := j.Status
	if state == Waiting {
		state = Pending
	}
	return of(code, code, append(header, "Job-Status", state)...)
}

func (f *Fake) put(id int64, body []byte) *answer {
	in, a := read(body)
	if a != nil {
		return a
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	j, a := f.jobLocked(id, in.Token)
	if a != nil {
		return a
	}
	if j.Status == Waiting {
		switch in.State {
		case "pending":
			j.expiry.Reset(f.cfg.Acknowledge)
			return j.status(http.StatusOK)
		case "running":
			j.expiry.Stop()
			j.Status = Running
		default:
			return j.status(http.StatusBadRequest)
		}
	}
	switch in.State {
	case "running":
		return j.status(http.StatusOK)
	case "success", "failed":
		return f.finishLocked(j, in)
	}
	return j.status(http.StatusBadRequest)
}

// finishLocked answers a final state.
func (f *Fake) finishLocked(j *Job, in said) *answer {
	j.Final++
	if sum := in.Output.Checksum; sum != "" && !f.cfg.Lenient &&
		(sum != fmt.Sprintf("crc32:%08x", crc32.ChecksumIEEE(j.Trace)) || in.Output.Bytesize != int64(len(j.Trace))) {
		j.Trace = nil // the runner sends it again
		return j.status(http.StatusPreconditionFailed, "X-GitLab-Trace-Update-Interval", "1")
	}
	if j.later < f.cfg.Later {
		j.later++
		return j.status(http.StatusAccepted, "X-GitLab-Trace-Update-Interval", "1")
	}
	switch {
	case j.Status == Canceling:
		j.Status = Canceled
	case in.State == "success":
		j.Status = Success
	default:
		j.Status, j.Reason, j.ExitCode = Failed, in.Reason, in.ExitCode
	}
	return j.status(http.StatusOK)
}
