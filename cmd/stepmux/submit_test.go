package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stepmux/stepmux/connector/place"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// A user who is not in the socket-group was told that no manager listens there, and to start one.
func TestASocketOfAManagerForOthersIsNotTakenForNone(t *testing.T) {
	err := noManager("/run/stepmux-manager/manager.sock", syscall.EACCES)
	require.ErrorContains(t, err, "this user may not use the manager's socket /run/stepmux-manager/manager.sock")
	require.ErrorContains(t, err, "--socket-group")
	require.NotContains(t, err.Error(), "no manager listens")
}

// The list showed "script_failure 0" for it, as if its script had succeeded.
func TestAFailedBuildWithoutAnExitCodeIsListedWithoutOne(t *testing.T) {
	var out strings.Builder
	failed := &pb.Build{Result: &pb.Result{Reason: "script_failure"}}
	require.NoError(t, writeBuilds(&out, &pb.ListResponse{Builds: []*pb.Build{failed}}))
	require.Regexp(t, `script_failure +-`, out.String()) // the next column is the VM, which it has not
}

// The clock of the manager's machine is ahead of this one's.
func TestABuildIsListedAsTakingNoLessThanNothing(t *testing.T) {
	var out strings.Builder
	begun := &pb.Build{Phase: pb.Build_running, Started: timestamppb.New(time.Now().Add(time.Hour))}
	require.NoError(t, writeBuilds(&out, &pb.ListResponse{Builds: []*pb.Build{begun}}))
	require.Regexp(t, ` 0s +- +-\n`, out.String())
}

// answers is a manager whose answers to requests are lost at first.
type answers struct {
	pb.ManagerClient
	lost int
	keys []string // of the requests
}

func (m *answers) Submit(
	_ context.Context, req *pb.SubmitRequest, _ ...grpc.CallOption,
) (*pb.SubmitResponse, error) {
	m.keys = append(m.keys, req.GetKey())
	if len(m.keys) <= m.lost {
		return nil, status.Error(codes.Unavailable, "error reading from server: EOF")
	}
	return &pb.SubmitResponse{Id: "1-" + req.GetKey()}, nil
}

// submit failed where the manager ended before it had answered, although the build was queued. A second submit made a
// second build.
func TestASubmitWhoseAnswerIsLostIsSentAgainWithItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &answers{lost: 3}
		id, err := queueJob(t.Context(), m, nil, &pb.SubmitRequest{})
		require.NoError(t, err)
		require.Len(t, m.keys, 4)
		for _, key := range m.keys {
			require.Equal(t, "1-"+key, id)
		}
		_, err = queueJob(t.Context(), m, nil, &pb.SubmitRequest{})
		require.NoError(t, err)
		require.NotEqual(t, m.keys[0], m.keys[4], "another request")

		m, began := &answers{lost: 1 << 20}, time.Now()
		_, err = queueJob(t.Context(), m, nil, &pb.SubmitRequest{})
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "error reading from server: EOF; the build may be queued: stepmux builds lists it")
		require.InDelta(t, awayLimit, time.Since(began), float64(time.Second), "long before the manager forgets the key")
	})
}

// uploads is a manager that ends in the middle of the first uploads of a project.
type uploads struct {
	answers
	ends, begun int
	takes       time.Duration // for each of the uploads, and for the first one after them
}

type upload struct {
	grpc.BidiStreamingClient[pb.KeepProjectRequest, pb.KeepProjectResponse]
	takes time.Duration
	err   error
}

func (m *uploads) KeepProject(context.Context, ...grpc.CallOption) (
	grpc.BidiStreamingClient[pb.KeepProjectRequest, pb.KeepProjectResponse], error,
) {
	m.begun++
	switch {
	case m.begun <= m.ends:
		return upload{takes: m.takes, err: status.Error(codes.Unavailable, "error reading from server: EOF")}, nil
	case m.begun == m.ends+1:
		return upload{takes: m.takes}, nil
	default:
		return upload{}, nil // the manager has the archive
	}
}

func (upload) Send(*pb.KeepProjectRequest) error { return nil }

func (u upload) Recv() (*pb.KeepProjectResponse, error) {
	_ = pause.For(context.Background(), u.takes)
	return &pb.KeepProjectResponse{}, u.err
}

// submit --project failed where the manager ended during the upload. Later it failed where the manager ended after an
// upload of more than a minute.
func TestAProjectIsSentAgainIfTheManagerEndsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, takes := range []time.Duration{0, 5 * time.Minute} {
			m := &uploads{ends: 1, takes: takes, answers: answers{lost: 2}}
			_, err := queueJob(t.Context(), m, &packed{}, &pb.SubmitRequest{})
			require.NoError(t, err)
			require.Equal(t, 4, m.begun)
			require.Len(t, m.keys, 3)
		}
		_, err := queueJob(t.Context(), &uploads{ends: 1 << 20}, &packed{}, &pb.SubmitRequest{})
		require.Equal(t, status.Error(codes.Unavailable, "error reading from server: EOF"), err, "it is not queued")
	})
}

// submit took nothing but steps, and the same file ran by run.
func TestSubmitTakesTheFilesThatRunTakes(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(sshtest.SocketDir(t), "m.sock")
	var log sshtest.Log
	cmd := exec.Command(runnertest.Manager(t), "manager", "--state", t.TempDir(), "--socket", socket)
	cmd.Stderr = &log
	runnertest.StartManager(t, cmd, sshtest.Bound, &log)
	t.Cleanup(func() { _, _ = cmd.Process.Signal(os.Interrupt), cmd.Wait() }) // it has done its work
	dir := t.TempDir()
	write := func(name, text string) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		return filepath.Join(dir, name)
	}
	submit := func(args ...string) (int, string, string) {
		return begin(t, append([]string{"submit", "--manager", socket, "--wait"}, args...)...)()
	}
	script := write("build.sh", "echo script $WHO $CI\n")
	steps := write("steps.yml", "spec: {inputs: {who: {type: string}}}\n---\n"+
		"run: [{name: t, script: 'echo steps ${{ inputs.who }}'}]\n")
	ci := write(".gitlab-ci.yml", "one:\n  script: [echo job $CI_JOB_NAME $WHO, exit 3]\n"+
		"  variables: {WHO: me}\ntwo: {parallel: 2, script: [\"true\"]}\n")
	for _, of := range []struct {
		args []string
		code int
		log  string
	}{
		{[]string{"--env", "WHO=me", script}, 0, "script me true\n"},
		{[]string{write("caf\xe9.sh", "echo hi\n")}, 0, "hi\n"},
		{[]string{write("caf\xe9.yml", "- script: echo hi\n")}, 0, "hi\n"},
		{[]string{"--input", "who=me", steps}, 0, "steps me\n"},
		{[]string{"--project", dir, "--job-name", "one", ci}, 3, "job one me\n"},
	} {
		code, out, stderr := submit(of.args...)
		require.Equal(t, of.code, code, "%v: %s", of.args, stderr)
		require.Contains(t, out, of.log)
	}
	code, out, stderr := begin(t, "builds", "--manager", socket)()
	require.Equal(t, 0, code, stderr)
	for _, name := range []string{"build.sh", "caf?.sh", "caf?.yml", "steps.yml", ".gitlab-ci.yml one"} {
		require.Contains(t, out, "  "+name+"\n")
	}
	code, _, stderr = submit("--project", dir, "--job-name", "two", ci)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "the job has 2 parallel builds, and submit queues one build")

	// It was a failure of the system, by which a script would try again.
	code, _, stderr = submit(write("latin.sh", "echo caf\xe9\n"))
	require.Equal(t, 2, code, stderr)
	require.Contains(t, stderr, "latin.sh: it cannot be sent to the manager: ")
}

// Symptom: the error did not say which of the variables it meant.
func TestAVariableOfABuildThatIsNotUTF8IsNamed(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"run", "submit"} {
		for _, flag := range []string{"--var", "--env"} {
			code, _, stderr := begin(t, command, flag, "A=caf\xe9", flag, "B=b", "build.sh")()
			require.Equal(t, 2, code)
			require.Contains(t, stderr, flag+": the value of A is not valid UTF-8, and a build on a VM can have no other")
			require.NotContains(t, stderr, "caf")
		}
	}
}

// submit proposed --job-name "stdin two: [1]" for a file that came by standard input.
func TestSubmitNamesABuildOfAParallelJobOnStandardInput(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(
		sshtest.Within(t), runnertest.Manager(t), "submit", "--format", "gitlab-ci", "--project",
		t.TempDir(), "--job-name", "two", "-")
	cmd.Stdin = strings.NewReader("two: {parallel: {matrix: [{X: [a, b]}]}, script: [\"true\"]}\n")
	said, _ := cmd.CombinedOutput()
	require.Equal(t, 2, cmd.ProcessState.ExitCode(), string(said))
	require.Contains(t, string(said), `name one, such as --job-name "two: [a]", or`)
}

// The manager reads the keys of a container in the text of the steps, also if values of inputs were put into it.
func TestTheStepsOfASubmitKeepTheKeysOfTheirContainer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "steps.yml")
	text := "spec: {inputs: {who: {type: string}}}\n---\nimage: busybox\nrun: [{script: \"true\"}]\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	reader := &jobReader{sourceFlags: &sourceFlags{inputs: []string{"who=me"}}, ctx: t.Context()}
	jobs, err := reader.files([]string{file}, false)
	require.NoError(t, err)
	steps, box, err := place.FromJob("steps.yml", (&submitFlags{}).request(jobs[0], "steps.yml").GetJob().GetSteps())
	require.NoError(t, err)
	require.Equal(t, jobs[0].own, box)
	require.Equal(t, string(jobs[0].Steps), string(steps))
}

// A pipeline that was cancelled has the exit code that says by what.
func TestTheExitCodeOfACancelledPipeline(t *testing.T) {
	of := func(status string, code int32) int {
		return pipelineCode(&pb.Pipeline{Phase: pb.Pipeline_ended, Status: status, ExitCode: code})
	}
	require.Equal(t, []int{0, 7, 1, 124, 125}, []int{
		of("success", 0), of("failure", 7), of("cancelled", 0), of("cancelled", 124), of("cancelled", 125),
	})
}
