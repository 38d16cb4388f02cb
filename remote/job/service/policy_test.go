package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/step/engine"
)

//stepmux:faults manager | The operating system's environment is the last layer of a step's environment
func TestManagersJobsHaveTheEnvironmentThatGitLabDocuments(t *testing.T) {
	t.Setenv("STEPMUX_TEST_PLAIN", "of the machine")
	t.Setenv("STEPMUX_TEST_TOKEN", "geheim")
	const show = `- {name: a, script: 'echo "[$STEPMUX_TEST_PLAIN$STEPMUX_TEST_TOKEN]"'}` + "\n"
	h := newHarness(t)
	h.runManaged(managed("theirs", show))
	require.Equal(t, "Running step \"a\"\n[of the machine]\n", h.logs(h.manager, "theirs", 0, ""))

	req := managed("overridden", show)
	req.Env = map[string]string{"STEPMUX_TEST_PLAIN": "of the request"}
	h.runManaged(req)
	require.Equal(t, "Running step \"a\"\n[of the request]\n", h.logs(h.manager, "overridden", 0, ""))

	// Our own service passes the variables that its caller asks for.
	for id, c := range map[string]struct {
		pass []string
		want string
	}{
		"nothing": {nil, "[]\n"},
		"all":     {[]string{"all"}, "[of the machine]\n"},
		"token":   {[]string{"STEPMUX_TEST_TOKEN"}, "[geheim]\n"},
	} {
		req := yaml(id, show)
		req.Job.PassEnv = c.pass
		h.run(req)
		require.Equal(t, c.want, h.output(id).stdout())
	}
	wrong := yaml("wrong", show)
	wrong.Job.PassEnv = []string{"all", "A=B"}
	require.Contains(t, h.refused(wrong, codes.InvalidArgument), "pass-env: the variable name")
	wrong = yaml("wrong", show)
	wrong.Job.UnsafeExports = "keep"
	require.Contains(t, h.refused(wrong, codes.InvalidArgument), `unsafe-exports: "keep" is not known`)
}

func TestPolicyOfTheServerCountsForAllJobs(t *testing.T) {
	t.Setenv("STEPMUX_TEST_PLAIN", "of the machine")
	h := newHarness(t, func(c *job.Config) {
		c.Policy = engine.Policy{PassEnv: []string{"none", "HOME"}, UnsafeExports: "refuse"}
	})
	const steps = "- {name: a, script: 'echo \"[$STEPMUX_TEST_PLAIN]$HOME\"; " +
		"echo ''{\"name\":\"LD_PRELOAD\",\"value\":\"x\"}'' > ${{ export_file }}'}\n"
	h.runManaged(managed("theirs", steps))
	require.Equal(t, "Running step \"a\"\n[]"+os.Getenv("HOME")+"\n", h.logs(h.manager, "theirs", 0, ""))
	require.Contains(t, h.status("theirs").GetMessage(), `export "LD_PRELOAD": this variable changes`)
	req := yaml("ours", steps)
	req.Job.PassEnv, req.Job.UnsafeExports = []string{"all"}, "allow"
	h.run(req)
	require.Equal(t, "[]"+os.Getenv("HOME")+"\n", h.output("ours").stdout())
	require.Equal(t, pb.JobState_failed, h.end("ours").GetStatus())
}

//stepmux:faults manager | A newer manager's keys do not fail a job; warnings are in its log
func TestManagersLogHasTheWarningsOfAJob(t *testing.T) {
	h := newHarness(t)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "use"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "use", "step.yml"), []byte(
		"spec: {inputs: {v: {type: string}}, newer: 1}\n---\n"+
			"exec: {command: [printf, 'got %s', '${{ inputs.v }}']}\n"), 0o600))
	req := managed("1", `
- name: use
  step: ./use
  inputs: {v: "${{ vars.PW }}"}
  retry: 2
- name: unsafe
  script: echo '{"name":"LD_PRELOAD","value":"/x.so"}' > ${{ export_file }}
- {name: after, script: 'echo "[$LD_PRELOAD]"'}
`)
	req.Job.BuildDir, req.Job.Variables = dir, []*runnerproto.Variable{hidden("PW", "geheim")}
	h.runManaged(req)
	log := h.logs(h.manager, "1", 0, "")
	require.Equal(t, runnerproto.Status_success, h.status("1").GetStatus(), log)
	require.NotContains(t, log, "geheim")
	want := []string{
		`Running step "use"`, `Warning: steps:8:3: unknown key "retry"`, "got [MASKED]",
		`Warning: step "use": use/step.yml:1:37: unknown key "newer"`,
		`Warning: step "use": input "v": its value comes from a masked variable`,
		`Running step "unsafe"`, `Warning: step "unsafe": the export LD_PRELOAD was dropped`, `Running step "after"`, "[]",
	}
	lines := strings.Split(strings.TrimSpace(log), "\n")
	require.Len(t, lines, len(want), log)
	for i, line := range lines {
		require.True(t, strings.HasPrefix(line, want[i]), "%q does not begin with %q", line, want[i])
	}

	// A reference that is not understood may mean other code.
	strange := managed("2", "- {name: a, step: {git: {url: 'https://example.com/a', rev: main, verify: key}}}\n")
	_, err := h.manager.Run(t.Context(), strange)
	require.ErrorContains(t, err, `unknown key "verify"`)
	// Our own service, whose manager is of our version, is strict.
	refused := h.refused(yaml("3", "- {name: a, script: x, retry: 2}\n"), codes.InvalidArgument)
	require.Contains(t, refused, `unknown key "retry"`)
}

func TestManyNewerKeysAreFewWarnings(t *testing.T) {
	h := newHarness(t)
	h.runManaged(managed("1", strings.Repeat("- {script: 'true', retry: 2}\n", 60)))
	log := h.logs(h.manager, "1", 0, "")
	require.Equal(t, 20, strings.Count(log, `unknown key "retry"`))
	require.Contains(t, log, "there are more unknown keys, which are ignored")
}

func TestBriefFollowersGetTheWarnings(t *testing.T) {
	h := newHarness(t)
	h.run(yaml("1", "- {name: a, script: 'echo ''{\"name\":\"LD_PRELOAD\",\"value\":\"x\"}'' > ${{ export_file }}'}\n"))
	stream, err := h.Follow(t.Context(), &pb.FollowRequest{Id: "1", Brief: true})
	require.NoError(t, err)
	var warnings []string
	for range 2 { // running, success
		msg, err := stream.Recv()
		require.NoError(t, err)
		warnings = append(warnings, msg.GetResult().GetWarnings()...)
	}
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "the export LD_PRELOAD was dropped")
}
