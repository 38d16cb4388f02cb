package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
)

func TestRunIsIdempotent(t *testing.T) {
	h := newHarness(t)
	count := filepath.Join(t.TempDir(), "count")
	req := yaml("1", "- script: echo x >> "+count+"\n")
	req.Job.Env = map[string]string{"A": "1", "B": "2", "C": "3", "D": "4"} // maps have no order on the wire
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			_, err := h.Run(t.Context(), req)
			require.NoError(t, err)
		})
	}
	wg.Wait()
	require.Equal(t, succeeded, h.end("1").GetStatus())
	h.run(req)
	// Symptom: the next manager of a build lost it if the image of its container had another name by then.
	req.Image = "registry.test/other@sha256:1"
	h.run(req)
	data, err := os.ReadFile(count)
	require.NoError(t, err)
	require.Equal(t, "x\n", string(data))
}

func TestRunRefusesAnotherJobWithTheSameID(t *testing.T) {
	h := newHarness(t)
	h.run(script("1", "echo a"))
	require.Equal(t, `job "1": there is another job with this id`, h.refused(script("1", "echo b"), codes.AlreadyExists))
	req := script("1", "echo a")
	req.Job.Timeout = durationpb.New(time.Minute)
	h.refused(req, codes.AlreadyExists)
	require.Equal(t, "a\n", h.output("1").stdout())
}

func TestRunTakesAJobInEachForm(t *testing.T) {
	h := newHarness(t)
	for id, req := range map[string]*pb.RunRequest{
		"script": script("script", "echo hi"),
		"yaml":   yaml("yaml", "run:\n- {name: a, script: echo hi}\n"),
		"twodoc": yaml("twodoc", "{}\n---\nrun:\n- {name: a, exec: {command: [echo, hi]}}\n"),
		"steps": {Id: "steps", Type: pb.RunRequest_step, Steps: []*pb.Step{
			{Name: "a", Script: `printf "$X"`, Env: map[string]string{"X": "h"}},
			{Exec: &pb.Exec{Command: []string{"echo", "i"}}},
		}},
	} {
		h.run(req)
		require.Equal(t, "hi\n", h.output(id).stdout())
		require.Equal(t, succeeded, h.end(id).GetStatus())
	}
}

//stepmux:faults service | A refused request is repeated in the error, with its secrets; names of environment variables
//stepmux:more are not checked
//stepmux:with remote/job/service.TestEnvOfARequestIsChecked
//stepmux:with remote/job/service.TestTextsThatMeanHarmAreRefusedInAFewWords
func TestRunNamesTheMistakeAndRepeatsNoSecret(t *testing.T) {
	h := newHarness(t)
	const secret = "geheim"
	published := func(t pb.RunRequest_StepType, steps ...*pb.Step) *pb.RunRequest {
		return &pb.RunRequest{Id: "1", Type: t, Steps: steps}
	}
	change := func(f func(*pb.RunRequest)) *pb.RunRequest {
		req := script("1", "echo")
		f(req)
		return req
	}
	for want, req := range map[string]*pb.RunRequest{
		"id: use 1 to 256 characters": change(func(r *pb.RunRequest) { r.Id = "../" + secret }),
		"id: use":                     change(func(r *pb.RunRequest) { r.Id = strings.Repeat("x", 257) }),
		"id: use 1":                   change(func(r *pb.RunRequest) { r.Id = "" }),
		"work_dir: use a path":        change(func(r *pb.RunRequest) { r.WorkDir = secret + "\x00" }),
		"work_dir: use":               change(func(r *pb.RunRequest) { r.WorkDir = strings.Repeat("x", 5000) }),
		`env: the variable name "a b" is not valid`: change(func(r *pb.RunRequest) {
			r.Job.Env = map[string]string{"a b": secret}
		}),
		`env["A"]: the value holds a NUL byte`: change(func(r *pb.RunRequest) {
			r.Job.Env = map[string]string{"A": secret + "\x00"}
		}),
		"timeout: use a duration": change(func(r *pb.RunRequest) {
			r.Job.Timeout = durationpb.New(-1)
		}),
		"timeout: use": change(func(r *pb.RunRequest) {
			r.Job.Timeout = &durationpb.Duration{Seconds: 1 << 62}
		}),
		"grace: use a duration": change(func(r *pb.RunRequest) {
			r.Job.Grace = durationpb.New(-1)
		}),
		"grace: it can be 1h0m0s at most": change(func(r *pb.RunRequest) {
			r.Job.Grace = durationpb.New(2 * time.Hour)
		}),
		"type: say what the job is":                         published(pb.RunRequest_unknown),
		"type: 77 is not known":                             published(77),
		"type: a job of type script has ci_script":          published(pb.RunRequest_script, &pb.Step{Script: secret}),
		"ci_script: the script is empty":                    published(pb.RunRequest_script),
		"type: a job of type step has steps, not ci_script": {Id: "1", Type: pb.RunRequest_step, CiScript: secret},
		"job: the request also has env, type, steps or ci_script": change(func(r *pb.RunRequest) {
			r.CiScript = secret
		}),
		"job: both steps and a script are given": change(func(r *pb.RunRequest) {
			r.Job.Steps = []byte(secret)
		}),
		"job: neither steps nor a script is given": script("1", ""),
		"job: neither steps":                       yaml("1", ""),
		"script: the script holds a NUL byte":      script("1", secret+"\x00"),
		"the request has fields that this step runner does not know": change(func(r *pb.RunRequest) {
			r.Job.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), secret))
		}),
		"the request has fields": change(func(r *pb.RunRequest) { // of the version before
			r.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 20, protowire.BytesType), secret))
		}),
		"steps:2:1: not valid YAML":               yaml("1", "- name: [\n"),
		"steps:1:14: the text is not valid UTF-8": yaml("1", "- script: caf\xe9\n"),
		"steps:1:4: unknown key \"scrpt\"":        yaml("1", "- {scrpt: "+secret+"}\n"),
		"steps:1:11: script must be a text": yaml(
			"1", "- script: {a: "+secret+"}\n",
		),
		"steps:1:11: step \"step_1\": script: the expression ${{ is not closed": yaml(
			"1", "- script: ${{ \""+secret+"\n",
		),
		"steps[0].step: the reference is invalid": {
			Id: "1", Type: pb.RunRequest_step, Steps: []*pb.Step{{Step: secret}},
		},
		"steps[0].inputs: script takes no inputs": {
			Id: "1", Type: pb.RunRequest_step,
			Steps: []*pb.Step{{Script: "x", Inputs: map[string]*structpb.Value{secret: structpb.NewNullValue()}}},
		},
		"steps[1].env: the variable name \"a-b\" is not valid": {
			Id: "1", Type: pb.RunRequest_step,
			Steps: []*pb.Step{{Script: "x"}, {Script: "x", Env: map[string]string{"a-b": secret}}},
		},
	} {
		message := h.refused(req, codes.InvalidArgument)
		require.True(t, strings.HasPrefix(message, want), "%q does not begin with %q", message, want)
		require.NotContains(t, message, secret)
	}
	require.Empty(t, h.list())
}

func TestMessagesNameTheFileOfTheSteps(t *testing.T) {
	h := newHarness(t)
	req := yaml("1", "- name: a\n  script: echo ${{ vars.NOPE }}\n")
	req.Job.StepsFile = "ci/job.yml"
	h.run(req)
	require.Contains(t, h.end("1").GetMessage(), `step "a": ci/job.yml:2:24: input "script": vars.NOPE was not found`)
	// A message named a line of a .gitlab-ci.yml, and meant the text that was made from it.
	req = yaml("generated", "- name: a\n  script: echo ${{ vars.NOPE }}\n")
	req.Job.StepsFile, req.Job.Generated = "ci/job.yml", true
	h.run(req)
	require.Contains(t, h.end("generated").GetMessage(), `step "a": steps:2:24: input "script": vars.NOPE was not found`)
	req = yaml("2", "- {scrpt: x}\n")
	req.Job.StepsFile = "ci/job.yml"
	require.Contains(t, h.refused(req, codes.InvalidArgument), `ci/job.yml:1:4: unknown key "scrpt"`)
	req.Job.StepsFile = strings.Repeat("x", 1<<20)
	require.Contains(t, h.refused(req, codes.InvalidArgument), "steps_file: use a path of at most ")
	_, err := h.manager.Run(t.Context(), &runnerproto.RunRequest{
		Id: "3", Steps: "{}\n---\nrun:\n- name: a\n  script: echo ${{ vars.NOPE }}\n",
	})
	require.NoError(t, err)
	require.Contains(t, h.end("3").GetMessage(), `step "a": steps:5:24: input "script": vars.NOPE was not found`)
}

func TestRunTakesALargeScriptAndALargeEnvironment(t *testing.T) {
	h := newHarness(t)
	req := script("1", strings.Repeat("# a comment of some length\n", 10<<20/27)+"echo ${#BIG}")
	req.Job.Env = map[string]string{"BIG": strings.Repeat("x", 100<<10)}
	h.run(req)
	require.Equal(t, fmt.Sprintln(100<<10), h.output("1").stdout())
}

//stepmux:faults input | More jobs than may run
func TestRunIsBoundedInJobs(t *testing.T) {
	h := newHarness(t, func(c *job.Config) { c.MaxJobs = 1 })
	req := script("1", "sleep 4730")
	req.Job.Grace = durationpb.New(time.Millisecond)
	h.run(req)
	require.Contains(t, h.refused(script("2", "echo"), codes.ResourceExhausted), "too many jobs")
}

func TestServersEnvironmentIsNotTheJobs(t *testing.T) {
	t.Setenv("CI_JOB_TOKEN", "leak")
	t.Setenv("LANG", "C.UTF-8")
	h := newHarness(t)
	req := yaml("1", "- script: env\n")
	req.Job.Env = map[string]string{"ASKED": "for"}
	h.run(req)
	out := h.output("1").stdout()
	require.NotContains(t, out, "leak")
	require.Contains(t, out, "ASKED=for\n")
	require.Contains(t, out, "LANG=C.UTF-8\n")
	require.Contains(t, out, "PATH=")
}

func TestManyJobsAtOnce(t *testing.T) {
	h := newHarness(t)
	const jobs = 80
	var wg sync.WaitGroup
	for i := range jobs {
		wg.Go(func() {
			id := fmt.Sprint(i)
			_, err := h.Run(t.Context(), yaml(id, "- script: echo $0 "+id+"; echo err "+id+" >&2\n"))
			require.NoError(t, err)
			o := h.output(id)
			require.True(t, strings.HasSuffix(o.stdout(), "sh "+id+"\n"))
			require.Equal(t, "err "+id+"\n", o.stderr())
			require.Equal(t, succeeded, h.end(id).GetStatus())
		})
	}
	wg.Wait()
	require.Len(t, h.list(), jobs)
}
