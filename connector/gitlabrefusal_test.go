package connector

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// refusingServer refuses each job as GitLab's step runner does: with an error that has no code of its own.
type refusingServer struct {
	runnerproto.UnimplementedStepRunnerServer
	refuse func(*runnerproto.RunRequest) error
}

func (s *refusingServer) Run(_ context.Context, req *runnerproto.RunRequest) (*runnerproto.RunResponse, error) {
	return nil, s.refuse(req)
}

// Symptom: a mistake in the user's file was a runner_system_failure on a VM with GitLab's step runner.
//
//stepmux:faults executor | A mistake in the user's file is reported as a failure of the machine, because the step
//stepmux:more runner's errors have no codes
func TestAJobThatGitLabsStepRunnerCannotReadIsTheUsersMistake(t *testing.T) {
	for _, c := range []struct {
		before, after string // the steps, quoted
		mistake       bool
		says          string
	}{
		{"loading step: reading steps ", ": yaml: line 2: did not find", true, "loading step: yaml: line 2: did not find"},
		{"loading step: compiling steps: no run", "", true, "compiling steps: no run"},
		{"failed to start step runner service: no such step", "", true, "no such step"},
		{"initializing request: mkdir /tmp/x: no space left on device", "", false, "no space left on device"},
		{"preparing environment: open /tmp/x: too many open files", "", false, "too many open files"},
	} {
		connector := connectTo(t, &refusingServer{refuse: func(req *runnerproto.RunRequest) error {
			if c.after == "" {
				return errors.New(c.before)
			}
			return errors.New(c.before + strconv.Quote(req.GetSteps()) + c.after)
		}})
		job := Job{Job: &stepmuxv1.Job{Steps: []byte("run:\n- {name: \"a\tb\"}\n# " + strings.Repeat("x", 1000))}}
		_, err := connector.Execute(t.Context(), job, &sshtest.Log{})
		if c.mistake {
			require.IsType(t, &RequestError{}, err, c.says)
		} else {
			require.NotErrorAs(t, err, new(*RequestError))
		}
		require.ErrorContains(t, err, c.says)
	}
}

// Symptom: of two values of which one begins with the other, the shorter one was replaced first in most runs, and the
// rest of the longer one was shown: "[SHORT]word-s3cr3t".
//
//stepmux:faults executor | Secrets are replaced one by one in error texts, so that the rest of one that begins with
//stepmux:more another is shown
//stepmux:with connector.TestARefusalShowsNoLineOfAValueAndNoShortSecret
func TestARefusalShowsNoPartOfAValue(t *testing.T) {
	server := &refusingServer{refuse: func(*runnerproto.RunRequest) error {
		return errors.New("loading step: not valid: pass, password-s3cr3t, password-s3cr3t2")
	}}
	for range 20 { // a map's order is random
		connector := connectTo(t, server)
		job := Job{
			Job: &stepmuxv1.Job{
				Script:    "a",
				Env:       map[string]string{"SHORT": "pass", "LONG": "password-s3cr3t"},
				Variables: []*stepmuxv1.Variable{{Key: "LONGEST", Value: "password-s3cr3t2"}},
			},
		}
		_, err := connector.Execute(t.Context(), job, &sshtest.Log{})
		require.ErrorContains(t, err, "not valid: [SHORT], [LONG], [LONGEST]")
	}
}

// The value of a variable may be a part of a secret, and a hostile text has no end.
func TestARefusalShowsNoPartOfASecretAndIsCut(t *testing.T) {
	const secret = "hunter2@example.com:token99"
	server := &refusingServer{refuse: func(*runnerproto.RunRequest) error {
		return errors.New("loading step: not valid: " + secret + strings.Repeat("x", 1<<20))
	}}
	connector := connectTo(t, server)
	_, err := connector.Execute(t.Context(), Job{Job: &stepmuxv1.Job{Script: "a", Variables: []*stepmuxv1.Variable{
		{Key: "HOST", Value: "example.com"}, {Key: "CREDS", Value: secret, Masked: true},
	}}}, &sshtest.Log{})
	require.ErrorContains(t, err, "not valid: ")
	require.NotContains(t, err.Error(), "hunter2")
	require.NotContains(t, err.Error(), "token99")
	require.Less(t, len(err.Error()), 8<<10)
}

// A value of several lines was shown where a refusal quoted a line of it, and a masked value of fewer than four bytes
// always was.
func TestARefusalShowsNoLineOfAValueAndNoShortSecret(t *testing.T) {
	server := &refusingServer{refuse: func(req *runnerproto.RunRequest) error {
		var said strings.Builder
		for _, v := range req.GetJob().GetVariables() {
			said.WriteString(v.GetKey() + " " + strconv.Quote(v.GetValue()) + " ")
			for line := range strings.Lines(v.GetValue()) {
				said.WriteString("<" + strings.TrimSpace(line) + ">")
			}
		}
		return errors.New("loading step: line 42 of ab1: " + said.String())
	}}
	connector := connectTo(t, server)
	_, err := connector.Execute(t.Context(), Job{Job: &stepmuxv1.Job{Script: "a", Variables: []*stepmuxv1.Variable{
		{Key: "CERT", Value: "-----BEGIN-----\nfirst \"line\"\n\tsecond line\nxy\n", Masked: true},
		{Key: "PIN", Value: "ab", Masked: true},
		{Key: "TEXT", Value: "third line\r\nfourth \"line\" with ab in it\r\n"},
		{Key: "SHORT", Value: "of"},
	}}}, &sshtest.Log{})
	require.ErrorContains(t, err, "loading step: line 42 of ab1: CERT ")
	for _, secret := range []string{"BEGIN", "first", "second", "xy", "third", "fourth", "in it", "<ab>", `"ab"`} {
		require.NotContains(t, err.Error(), secret)
	}
	require.ErrorContains(t, err, "<[MASKED]><[MASKED]><[MASKED]><[CERT]>")
	require.ErrorContains(t, err, `PIN "[PIN]" <[PIN]>`)
	require.ErrorContains(t, err, "<[TEXT]><[TEXT]>")
}

func TestErrorsAndMessagesOfAVMAreCut(t *testing.T) {
	long := strings.Repeat("y", 1<<20)
	err := shortened(status.Error(codes.Unavailable, long))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Less(t, len(err.Error()), maxText+100)
	require.Equal(t, io.EOF, shortened(io.EOF))
}
