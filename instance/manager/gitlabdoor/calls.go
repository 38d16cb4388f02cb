package gitlabdoor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/servercall"
)

// Verdict is the server's answer to a report about a job.
type Verdict int

// The verdicts.
const (
	// Accepted: the report counts.
	Accepted Verdict = iota
	// Later: the server is not ready for the final state. It is to be told again after the Interval.
	Later
	// FromStart: the trace at the server is wrong. It is to be sent from its begin, and then the state again.
	FromStart
	// Elsewhere: the piece of the trace does not follow the trace at the server, which ends at Size.
	Elsewhere
	// Ended: the server has ended the job, or does not know it. Nothing about it is to be reported any more.
	Ended
)

// Reply is the server's answer to a report.
type Reply struct {
	Verdict Verdict
	// Canceling says that the job is to be ended gracefully.
	Canceling bool
	// Interval is the pause until the next report that the server asks for; zero without such a wish.
	Interval time.Duration
	// Size is that of the trace at the server, after a piece of it was sent.
	Size int64
}

// State is a state of a job that is reported.
type State string

// The states. Pending keeps a job that has to be acknowledged, and Running starts it.
const (
	Pending State = "pending"
	Running State = "running"
	Success State = "success"
	Failed  State = "failed"
)

// Update is a report of a job's state.
type Update struct {
	State State
	// Reason is why the job failed, such as script_failure, and ExitCode that of its script.
	Reason   string
	ExitCode int
	// Size and Checksum (CRC-32 of IEEE) are those of the whole trace so far.
	Size     int64
	Checksum uint32
	// Unchecked leaves size and checksum out: then the server does not compare them with its trace.
	Unchecked bool
}

// output is the part of an Update about the trace.
type output struct {
	Checksum string `json:"checksum,omitempty"`
	Size     int64  `json:"bytesize,omitempty"`
}

// Update tells the server the state of a job. Of a job that runs without an acknowledgement, Pending is refused with
// the status 400. A final state that is accepted is the last report; the next would be answered with Ended.
func (c *Client) Update(ctx context.Context, job *Job, u Update) (Reply, error) {
	op := fmt.Sprintf("report the job %d as %s", job.ID, u.State)
	in := struct {
		Info     *Info  `json:"info"`
		Token    string `json:"token"`
		State    State  `json:"state"`
		Reason   string `json:"failure_reason,omitempty"`
		Output   output `json:"output"`
		ExitCode int    `json:"exit_code,omitempty"`
	}{Info: &c.cfg.Info, Token: job.Token, State: u.State, Reason: u.Reason, ExitCode: u.ExitCode}
	if u.State != Pending && !u.Unchecked {
		in.Output = output{fmt.Sprintf("crc32:%08x", u.Checksum), u.Size}
	}
	body, err := json.Marshal(in)
	if err != nil {
		return Reply{}, fmt.Errorf("%s: %w", op, err)
	}
	got, err := c.do(ctx, request{
		op: op, method: http.MethodPut, path: "jobs/" + strconv.FormatInt(job.ID, 10), body: body, max: maxAnswer,
		header: http.Header{"Content-Type": {"application/json"}, "Job-Token": {job.Token}}, timeout: callTimeout,
	})
	if err != nil {
		return Reply{}, err
	}
	reply := replyOf(got)
	final := u.State == Success || u.State == Failed
	switch got.Status {
	case http.StatusOK:
		if final { // the Job-Status is that after this report
			reply.Verdict = Accepted
		}
		return reply, nil
	case http.StatusAccepted:
		reply.Verdict = Later
		return reply, nil
	case http.StatusPreconditionFailed:
		reply.Verdict = FromStart
		return reply, nil
	}
	return reply, refusal(op, got, &reply)
}

// Patch sends a piece of a trace that begins at start. It is not empty, and at most 1 MiB.
func (c *Client) Patch(ctx context.Context, job *Job, start int64, piece []byte) (Reply, error) {
	op := fmt.Sprintf("send the trace of the job %d", job.ID)
	end := start + int64(len(piece))
	got, err := c.do(ctx, request{
		op: op, method: http.MethodPatch, path: fmt.Sprintf("jobs/%d/trace?debug_trace=false", job.ID), body: piece,
		max: maxAnswer, timeout: traceTimeout, header: http.Header{
			"Content-Type": {"text/plain"}, "Job-Token": {job.Token},
			"Content-Range": {fmt.Sprintf("%d-%d", start, end-1)},
		},
	})
	if err != nil {
		return Reply{}, err
	}
	reply := replyOf(got)
	switch got.Status {
	case http.StatusAccepted:
		reply.Size = end
		return reply, nil
	case http.StatusRequestedRangeNotSatisfiable:
		size, is := strings.CutPrefix(got.Header.Get("Range"), "0-")
		n, err := strconv.ParseUint(size, 10, 62)
		if !is || err != nil {
			return reply, &CallError{Op: op, Status: got.Status, Text: fmt.Sprintf("the Range %.40q is not the size of a trace",
				got.Header.Get("Range"))}
		}
		if reply.Verdict == Accepted {
			reply.Verdict = Elsewhere
		}
		reply.Size = int64(n)
		return reply, nil
	}
	return reply, refusal(op, got, &reply)
}

// replyOf reads the header of an answer.
func replyOf(got *servercall.Answer) (r Reply) {
	switch got.Header.Get("Job-Status") {
	case "canceling":
		r.Canceling = true
	case "canceled", "failed":
		r.Verdict = Ended
	}
	seconds := number(got.Header, "X-Gitlab-Trace-Update-Interval")
	r.Interval = min(time.Duration(seconds)*time.Second, maxInterval)
	return r
}

// refusal sets the verdict Ended if the server says that the job is not this runner's. Otherwise it returns an error: a
// page with such a status comes from a proxy, and says nothing about the job.
func refusal(op string, got *servercall.Answer, reply *Reply) error {
	if (got.Status == http.StatusForbidden || got.Status == http.StatusNotFound) && !isPage(got) {
		reply.Verdict = Ended
		return nil
	}
	return callError(op, got)
}
