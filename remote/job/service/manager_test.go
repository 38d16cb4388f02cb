package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
)

// managed is a request as the manager sends it, for the steps in run.
func managed(id, run string) *runnerproto.RunRequest {
	return &runnerproto.RunRequest{
		Id:      id,
		WorkDir: "builds/group/project",
		Env:     map[string]string{"FOO": "bar", "BAZ": "blammo"},
		Job:     &runnerproto.Job{BuildDir: "builds/group/project"},
		Steps:   "{}\n---\nrun:\n" + run,
	}
}

// hidden is a variable that is masked.
func hidden(key, value string) *runnerproto.Variable {
	return &runnerproto.Variable{Key: key, Value: value, Masked: true}
}

func (h *harness) runManaged(req *runnerproto.RunRequest) {
	h.t.Helper()
	_, err := h.manager.Run(h.t.Context(), req)
	require.NoError(h.t, err)
}

// logs reads the log from offset by FollowLogs, to its end or until text has come.
func (h *harness) logs(client runnerproto.StepRunnerClient, id string, offset int64, text string) string {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	stream, err := client.FollowLogs(ctx, &runnerproto.FollowLogsRequest{Id: id, Offset: offset})
	require.NoError(h.t, err)
	return readLogs(h.t, stream, text)
}

// readLogs reads a stream to its end, or until it has sent text.
func readLogs(t testing.TB, stream grpc.ServerStreamingClient[runnerproto.FollowLogsResponse], text string) string {
	t.Helper()
	var all strings.Builder
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		require.NoError(t, err)
		require.NotEmpty(t, piece.GetData())
		require.LessOrEqual(t, len(piece.GetData()), maxPiece)
		all.Write(piece.GetData())
		if text != "" && strings.Contains(all.String(), text) {
			return all.String()
		}
	}
}

// status returns the Status of one job.
func (h *harness) status(id string) *runnerproto.Status {
	h.t.Helper()
	resp, err := h.manager.Status(h.t.Context(), &runnerproto.StatusRequest{Id: id})
	require.NoError(h.t, err)
	require.Len(h.t, resp.GetJobs(), 1)
	return resp.GetJobs()[0]
}

//stepmux:faults manager | The service, its messages and their field numbers; unknown fields are skipped
func TestManagersServiceHasTheNamesAndNumbersTheManagerExpects(t *testing.T) {
	h := newHarness(t)
	var methods, fields []string
	service := runnerproto.File_runnerproto_runner_proto.Services().Get(0)
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		methods = append(methods,
			fmt.Sprintf("%s(%s) %s %t", m.FullName(), m.Input().Name(), m.Output().Name(), m.IsStreamingServer()))
	}
	require.ElementsMatch(t, []string{
		"proto.StepRunner.Run(RunRequest) RunResponse false",
		"proto.StepRunner.FollowLogs(FollowLogsRequest) FollowLogsResponse true",
		"proto.StepRunner.Status(StatusRequest) StatusResponse false",
		"proto.StepRunner.Close(CloseRequest) CloseResponse false",
		"proto.StepRunner.Cancel(CancelRequest) CancelResponse false",
	}, methods)
	messages := runnerproto.File_runnerproto_runner_proto.Messages()
	for i := range messages.Len() {
		for j := range messages.Get(i).Fields().Len() {
			f := messages.Get(i).Fields().Get(j)
			kind := f.Kind().String()
			switch {
			case f.IsMap():
				kind = "map of " + f.MapKey().Kind().String() + " to " + f.MapValue().Kind().String()
			case f.Message() != nil:
				kind = string(f.Message().Name())
			}
			if f.IsList() {
				kind = "repeated " + kind
			}
			fields = append(fields, fmt.Sprintf("%s.%s=%d %s", messages.Get(i).Name(), f.Name(), f.Number(), kind))
		}
	}
	require.ElementsMatch(t, []string{
		"RunRequest.id=1 string", "RunRequest.work_dir=2 string", "RunRequest.env=3 map of string to string",
		"RunRequest.job=5 Job", "RunRequest.steps=6 string",
		"Job.variables=1 repeated Variable", "Job.build_dir=4 string",
		"Variable.key=1 string", "Variable.value=2 string", "Variable.file=3 bool", "Variable.masked=4 bool",
		"FollowLogsRequest.id=1 string", "FollowLogsRequest.offset=2 int64", "FollowLogsResponse.data=1 bytes",
		"StatusRequest.id=1 string", "StatusResponse.jobs=1 repeated Status",
		"Status.id=1 string", "Status.message=2 string", "Status.status=3 enum",
		"Status.start_time=5 Timestamp", "Status.end_time=6 Timestamp",
		"CloseRequest.id=1 string", "CancelRequest.id=1 string",
	}, fields)
	for name, number := range map[string]protoreflect.EnumNumber{
		"unspecified": 0, "running": 1, "success": 2, "failure": 3, "cancelled": 4,
	} {
		require.Equal(t, number, runnerproto.Status_State(0).Descriptor().Values().ByName(protoreflect.Name(name)).Number())
	}

	// What a newer manager sends beyond that is skipped.
	req := managed("1", "- {name: a, script: echo hi}\n")
	more := protowire.AppendString(protowire.AppendTag(nil, 4, protowire.BytesType), "masking")
	more = protowire.AppendVarint(protowire.AppendTag(more, 99, protowire.VarintType), 7)
	req.ProtoReflect().SetUnknown(more)
	req.GetJob().ProtoReflect().SetUnknown(more)
	h.runManaged(req)
	require.Equal(t, "Running step \"a\"\nhi\n", h.logs(h.manager, "1", 0, ""))
	stat := h.status("1")
	require.Equal(t, runnerproto.Status_success, stat.GetStatus())
	require.Empty(t, stat.GetMessage())
	require.False(t, stat.GetEndTime().AsTime().Before(stat.GetStartTime().AsTime()))
}

//stepmux:faults manager | Steps as two documents in one text; an id sent twice is one job; a client may be there before
//stepmux:more the server
//stepmux:with remote/job/service.TestManagerSeesTheMarkerAsTheFirstLineOnStderrAndCanConnectThen
func TestManagersStepsAreTwoDocumentsAndTheSameIDTwiceIsOneJob(t *testing.T) {
	h := newHarness(t)
	count := filepath.Join(t.TempDir(), "count")
	req := managed("1", "- {name: a, script: echo x >> "+count+"}\n")
	req.Job.Variables = []*runnerproto.Variable{hidden("TOKEN", "geheim")}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			_, err := h.manager.Run(t.Context(), req, grpc.WaitForReady(true))
			require.NoError(t, err)
		})
	}
	wg.Wait()
	h.logs(h.manager, "1", 0, "")
	h.runManaged(req)
	data, err := os.ReadFile(count)
	require.NoError(t, err)
	require.Equal(t, "x\n", string(data))

	req.Steps = "{}\n---\nrun: [{name: b, script: echo geheim}]"
	_, err = h.manager.Run(t.Context(), req)
	require.Equal(t, codes.AlreadyExists, status.Code(err))
	require.NotContains(t, err.Error(), "geheim")

	for id, text := range map[string]string{
		"json":      `{}` + "\n---\n" + `{"run":[{"name":"a","script":"echo hi"}]}`,
		"null spec": "spec:\n---\nrun: [{name: a, script: echo hi}]",
		"no spec":   "run: [{name: a, script: echo hi}]",
	} {
		id = strings.ReplaceAll(id, " ", "-")
		h.runManaged(&runnerproto.RunRequest{Id: id, Steps: text})
		require.Equal(t, "Running step \"a\"\nhi\n", h.logs(h.manager, id, 0, ""))
	}
}

// Symptom: steps that ran locally, as a list or as the run of one document, were refused here.
//
//stepmux:faults service | A job that runs locally is refused by the server for a step without a name
func TestManagersStepsGetTheNamesThatALocalJobGives(t *testing.T) {
	h := newHarness(t)
	h.runManaged(managed("1", "- script: echo hi\n- run: [{script: echo inner}]\n- {name: last, script: 'true'}\n"))
	require.Equal(t, "Running step \"step_1\"\nhi\nRunning step \"step_1\"\ninner\nRunning step \"last\"\n",
		h.logs(h.manager, "1", 0, ""))
}

//stepmux:faults manager | Relative directories are relative to the server's
func TestManagersDirectoriesAreRelativeToTheServers(t *testing.T) {
	base := t.TempDir()
	h := newHarness(t, func(c *job.Config) { c.WorkBase = base })
	for id, c := range map[string]struct{ work, build, want string }{
		"both":     {"builds/a", "builds/b/project", "builds/b/project"},
		"work-dir": {"builds/c", "", "builds/c"},
	} {
		req := managed(id, "- {name: a, script: pwd}\n")
		req.WorkDir, req.Job.BuildDir = c.work, c.build
		h.runManaged(req)
		require.Equal(t, "Running step \"a\"\n"+filepath.Join(base, c.want)+"\n", h.logs(h.manager, id, 0, ""))
		require.DirExists(t, filepath.Join(base, c.want))
	}
	require.NoDirExists(t, filepath.Join(base, "builds/a"))
}

//stepmux:faults manager | A failure's message ends in `exit status N`; the log from offset 0 has all output, also after
//stepmux:more the job's end, and ends only when the state is final
func TestManagerGetsTheExitCodeAtTheEndOfTheMessageAndAllLogsBeforeTheFinalState(t *testing.T) {
	h := newHarness(t)
	for id, c := range map[string]struct{ script, message string }{
		"exit":   {"echo out; echo err >&2; exit 42", "exit status 42"},
		"signal": {"kill -9 $$", "exit status 137"},
		"shell":  {"exec /no/such/program", "exit status 127"},
		// It takes a while to end after its last output: there is much to remove.
		"slow": {"touch $(seq 500); exit 3", "exit status 3"},
	} {
		req := managed(id, "- {name: a, script: "+c.script+"}\n")
		if id == "slow" {
			req.WorkDir, req.Job.BuildDir = "", "" // one that goes with the job
		}
		h.runManaged(req)
		log := h.logs(h.manager, id, 0, "")
		stat := h.status(id) // with the end of the logs
		require.Equal(t, runnerproto.Status_failure, stat.GetStatus())
		require.True(t, strings.HasSuffix(stat.GetMessage(), c.message), stat.GetMessage())
		if id == "exit" {
			require.ElementsMatch(t, []string{`Running step "a"`, "out", "err", ""}, strings.Split(log, "\n"))
			require.Equal(t, log, h.logs(h.manager, id, 0, ""), "from 0 it is everything again")
		}
	}
}

//stepmux:faults manager | The log begins with a line of the server
//stepmux:with remote/job.TestMergedLogHasBothStreamsInOrderAndNamesTheSteps
func TestOnlyTheManagersLogBeginsWithOurBytes(t *testing.T) {
	h := newHarness(t)
	const stamped = "2026-01-02T03:04:05.000006Z 00O looks masked already\n"
	printf := strings.ReplaceAll(stamped, "\n", `\n`)
	h.runManaged(managed("1",
		"- {name: first, script: 'printf \""+printf+"\"'}\n- {name: second, script: printf 'a\\r\\n\\0' >&2}\n"))
	require.Equal(
		t,
		"Running step \"first\"\n"+stamped+"Running step \"second\"\na\r\n\x00",
		h.logs(h.manager, "1", 0, ""),
	)
	o := h.output("1")
	require.Equal(t, stamped, o.stdout())
	require.Equal(t, "a\r\n\x00", o.stderr())
}

func TestFollowLogsContinuesFromAnyOffset(t *testing.T) {
	h := newHarness(t)
	h.runManaged(managed("1",
		"- {name: a, script: 'for i in $(seq 1 1000); do echo line $i; echo err $i >&2; done; head -c 200000 /dev/zero'}\n"))
	whole := h.logs(h.manager, "1", 0, "")
	require.Greater(t, len(whole), 210_000)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		at := r.IntN(len(whole) + 1)
		require.Equal(t, whole[at:], h.logs(h.manager, "1", int64(at), ""))
	}
	for code, req := range map[codes.Code]*runnerproto.FollowLogsRequest{
		codes.InvalidArgument: {Id: "1", Offset: -1},
		codes.OutOfRange:      {Id: "1", Offset: int64(len(whole)) + 1},
		codes.NotFound:        {Id: "../1"},
	} {
		stream, err := h.manager.FollowLogs(t.Context(), req)
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, code, status.Code(err))
	}
}

func TestFollowLogsSendsBytesAtOnceAndIsWokenByItsContext(t *testing.T) {
	h := newHarness(t)
	h.runManaged(managed("1", "- {name: a, script: printf prompt; sleep 4741}\n"))
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := h.manager.FollowLogs(ctx, &runnerproto.FollowLogsRequest{Id: "1"})
	require.NoError(t, err)
	require.Equal(t, "Running step \"a\"\nprompt", readLogs(t, stream, "prompt"))
	cancel()
	_, err = stream.Recv()
	require.Equal(t, codes.Canceled, status.Code(err))
	awaitReturn(t, "(*manager).FollowLogs(")
	require.Equal(t, runnerproto.Status_running, h.status("1").GetStatus())
}

func TestJobsAreTheSameInBothServices(t *testing.T) {
	h := newHarness(t)
	h.run(script("ours", "echo hi"))
	h.runManaged(managed("theirs", "- {name: a, script: echo hi}\n"))
	require.Equal(t, "hi\n", h.output("ours").stdout())
	require.Equal(t, "hi\n", h.output("theirs").stdout())
	require.Len(t, h.list(), 2)
	resp, err := h.manager.Status(t.Context(), &runnerproto.StatusRequest{})
	require.NoError(t, err)
	require.Len(t, resp.GetJobs(), 2)
	require.Equal(t, "ours", resp.GetJobs()[0].GetId())
	require.Equal(t, codes.AlreadyExists, status.Code(func() error {
		_, err := h.manager.Run(t.Context(), managed("ours", "- {name: a, script: echo hi}\n"))
		return err
	}()))

	stream, err := h.manager.FollowLogs(t.Context(), &runnerproto.FollowLogsRequest{Id: "ours"})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	_, err = h.manager.Status(t.Context(), &runnerproto.StatusRequest{Id: "nope"})
	require.Equal(t, codes.NotFound, status.Code(err))
}

func TestManagersCancelKeepsTheJobAndCloseRemovesIt(t *testing.T) {
	h := newHarness(t, func(c *job.Config) { c.Grace = patience })
	const trap = "\"trap 'echo cleanup; exit 0' TERM; echo ready; sleep 4742 & wait\""
	h.runManaged(managed("1", "- {name: a, script: "+trap+"}\n"))
	h.logs(h.manager, "1", 0, "ready\n")
	for range 2 {
		_, err := h.manager.Cancel(t.Context(), &runnerproto.CancelRequest{Id: "1"})
		require.NoError(t, err)
		require.Equal(t, "Running step \"a\"\nready\ncleanup\n", h.logs(h.manager, "1", 0, ""))
		require.Equal(t, runnerproto.Status_cancelled, h.status("1").GetStatus())
	}

	h.runManaged(managed("2", "- {name: a, script: "+trap+"}\n"))
	h.logs(h.manager, "2", 0, "ready\n")
	stream, err := h.manager.FollowLogs(t.Context(), &runnerproto.FollowLogsRequest{Id: "2"})
	require.NoError(t, err)
	readLogs(t, stream, "ready\n") // it follows the job before that is closed
	for _, id := range []string{"1", "2", "2", "nope", "../../etc"} {
		_, err := h.manager.Close(t.Context(), &runnerproto.CloseRequest{Id: id})
		require.NoError(t, err)
		_, err = h.manager.Status(t.Context(), &runnerproto.StatusRequest{Id: id})
		require.Equal(t, codes.NotFound, status.Code(err), "its Close has returned")
	}
	require.Equal(t, "cleanup\n", readLogs(t, stream, ""))
	require.Empty(t, h.list())
}

func TestManagersVariables(t *testing.T) {
	dir := t.TempDir()
	h := newHarness(t, func(c *job.Config) { c.Dir = dir })
	req := managed("1", `
- name: a
  script: |
    cat `+dir+`/jobs/*/vars/KUBECONFIG
    echo glpat-abcdef123456 >&2
    printf glpat-abcdef123456 | base64
    env | grep -c -e TOKEN -e KUBECONFIG || true
- name: b
  exec: {command: [./glpat-abcdef123456]}
`)
	req.Job.Variables = []*runnerproto.Variable{
		hidden("TOKEN", "glpat-abcdef123456"),
		{Key: "KUBECONFIG", Value: "in a file, and plain\n", File: true},
		hidden("PIN", "123"),
	}
	h.runManaged(req)
	log := h.logs(h.manager, "1", 0, "")
	stat := h.status("1")
	require.NotContains(t, log+stat.GetMessage()+h.list()[0].GetMessage()+h.output("1").stderr(), "glpat")
	_, last := h.follow("1")
	require.NotContains(t, last.String(), "glpat")
	require.Contains(t, stat.GetMessage(), "[MASKED]")
	require.True(t, strings.HasSuffix(stat.GetMessage(), "exit status 127"), stat.GetMessage())
	require.Equal(t, "in a file, and plain\n[MASKED]\n0\n", h.output("1").stdout())
	require.Contains(t, log, "Variable PIN is not masked")
}

func TestManagersRunNamesTheMistakeAndRepeatsNoSecret(t *testing.T) {
	h := newHarness(t)
	const secret = "geheim"
	change := func(f func(*runnerproto.RunRequest)) *runnerproto.RunRequest {
		req := managed("1", "- {name: a, script: echo}\n")
		req.Job.Variables = []*runnerproto.Variable{hidden("TOKEN", secret), hidden("OTHER", secret)}
		f(req)
		return req
	}
	key := func(key string) *runnerproto.RunRequest {
		return change(func(r *runnerproto.RunRequest) { r.Job.Variables[1].Key = key })
	}
	for _, c := range []struct {
		want string
		req  *runnerproto.RunRequest
	}{
		{"id: use 1 to 256 characters", change(func(r *runnerproto.RunRequest) { r.Id = "../" + secret })},
		{"id: use 1 to 256 characters", change(func(r *runnerproto.RunRequest) { r.Id = "" })},
		{"work_dir: use a path", change(func(r *runnerproto.RunRequest) { r.WorkDir = secret + "\x00" })},
		{
			"job.build_dir: use a path",
			change(func(r *runnerproto.RunRequest) { r.Job.BuildDir = strings.Repeat(secret, 1000) }),
		},
		{
			"env: the variable name",
			change(func(r *runnerproto.RunRequest) { r.Env = map[string]string{"A-B=" + secret: secret} }),
		},
		{"job.variables[1].key: use letters", key("../" + secret)},
		{"job.variables[1].key: use letters", key("/etc/" + secret)},
		{"job.variables[1].key: use letters", key("1" + secret)},
		{"job.variables[1].key: use letters", key("")},
		{"job.variables[1].key: use letters", key(strings.Repeat("x", 256))},
		{"steps: the text is empty", change(func(r *runnerproto.RunRequest) { r.Steps = "" })},
		{"steps:3:1: there are no steps", change(func(r *runnerproto.RunRequest) { r.Steps = "{}\n---\n{}" })},
		{"steps:2:1: not valid YAML", change(func(r *runnerproto.RunRequest) { r.Steps = "run: [" + secret })},
		{"steps:1:8: unknown key", change(func(r *runnerproto.RunRequest) { r.Steps = "run: [{scrpt: " + secret + "}]" })},
	} {
		_, err := h.manager.Run(t.Context(), c.req)
		require.Equal(t, codes.InvalidArgument, status.Code(err), c.want)
		message := status.Convert(err).Message()
		require.True(t, strings.HasPrefix(message, c.want), "%q does not begin with %q", message, c.want)
		require.NotContains(t, message, secret)
	}
	require.Empty(t, h.list())
	require.Equal(t, codes.NotFound, status.Code(h.followIO(t.Context(), &pb.FollowIORequest{Id: "1"}, 0).err))
}
