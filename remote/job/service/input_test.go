package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// bystander starts a job that other jobs must not harm. requireUnharmed lets it go on, and requires that it succeeds.
func (h *harness) bystander() (requireUnharmed func()) {
	h.t.Helper()
	gate := filepath.Join(h.t.TempDir(), "gate")
	h.run(script("bystander", "echo up; until [ -e "+gate+" ]; do sleep 0.01; done; echo over"))
	h.awaitOutput("bystander", len("up\n"))
	return func() {
		h.t.Helper()
		require.NoError(h.t, os.WriteFile(gate, nil, 0o600))
		require.Equal(h.t, "up\nover\n", h.output("bystander").stdout())
		require.Equal(h.t, succeeded, h.end("bystander").GetStatus())
	}
}

//stepmux:faults service | A request over 4 MiB is refused
func TestRequestOfAlmost64MiBIsTakenAndALargerOneRefused(t *testing.T) {
	racefree.Only(t)
	h := newHarness(t)
	requireUnharmed := h.bystander()
	conn, err := grpc.NewClient("unix:"+h.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(2*maxMessage)))
	require.NoError(t, err)
	defer conn.Close()
	client := pb.NewStepRunnerClient(conn)
	const begin = "echo hi; exit\n"
	_, err = client.Run(t.Context(), script("large", begin+strings.Repeat("#", maxMessage-1000)))
	require.NoError(t, err)
	require.Equal(t, "hi\n", h.output("large").stdout())
	_, err = client.Run(t.Context(), script("too-large", begin+strings.Repeat("#", maxMessage)))
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.Less(t, len(status.Convert(err).Message()), 1000)
	require.Empty(t, h.list("too-large"))
	requireUnharmed()
}

//stepmux:faults input | Texts made to exhaust their reader: aliases of aliases, endless nesting, 10 MB
//stepmux:with remote/step/lang.TestParseIsBounded
func TestTextsThatMeanHarmAreRefusedInAFewWords(t *testing.T) {
	racefree.Only(t)
	h := newHarness(t)
	requireUnharmed := h.bystander()
	bomb := "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n"
	for i := range "123456789" {
		from, to := string(rune('0'+i)), string(rune('1'+i))
		bomb += "a" + to + ": &a" + to + " [" + strings.Repeat("*a"+from+", ", 9) + "]\n"
	}
	for name, text := range map[string]string{
		"aliases of aliases": bomb + "run: [{step: ./x, inputs: {v: *a9}}]\n",
		"many large aliases": "- {script: &a " + strings.Repeat("x", 100_000) + "}\n" +
			strings.Repeat("- {script: *a}\n", 9_000),
		"an alias of itself":  "run: &a [{run: *a}]\n",
		"10 MB":               "- script: " + strings.Repeat("x", 10<<20),
		"10 MB of brackets":   strings.Repeat("[", 10<<20),
		"deep brackets":       strings.Repeat("[", 1_000_000),
		"deep keys":           strings.Repeat("{a: ", 200_000),
		"too many steps":      strings.Repeat("- {script: x}\n", 20_000),
		"too many documents":  strings.Repeat("---\n{}\n", 100_000),
		"a NUL":               "- script: a\x00b\n",
		"another control":     "- script: a\x1bb\n",
		"deep expression":     "- script: ${{ " + strings.Repeat("(", 10_000) + " }}\n",
		"endless expression":  "- script: ${{ " + strings.Repeat("1 + ", 100_000) + "\n",
		"expression of a key": "- {\"${{ 'a' }}\": 1}\n",
		"an unknown tag":      "- script: !!python/object/apply:os.system [id]\n",
		"a merge key":         "- {<<: &a {script: x}, name: y}\n",
		"keys that collide":   "- {script: x, script: y}\n",
		"nothing but colons":  strings.Repeat(":", 100_000),
	} {
		_, err := h.Run(t.Context(), yaml("1", text))
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		message := status.Convert(err).Message()
		require.True(t, strings.HasPrefix(message, "steps"), "%s: %s", name, message)
		require.Less(t, len(message), 1000, name)
		_, err = h.manager.Run(t.Context(), &runnerproto.RunRequest{Id: "1", Steps: text})
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		require.Less(t, len(status.Convert(err).Message()), 1000, name)
	}
	require.Len(t, h.list(), 1)
	requireUnharmed()
}

//stepmux:faults input | A job that removes, replaces or floods its own files, or kills its init or step runner
//stepmux:with remote/step/engine.TestOutputFileThatWasReplacedIsNotRead
func TestJobsThatMisbehaveFailByTheirCauseAndHarmNoOther(t *testing.T) {
	h := newHarness(t)
	requireUnharmed := h.bystander()
	// Each gets it as its output or its export file.
	replaced := func(how, kind string) string {
		return "- {name: a, script: 'f=${{ " + kind + "_file }}; rm $f; " + how + "'}\n"
	}
	for name, c := range map[string]struct{ steps, want string }{
		"no such variable": {
			"- {name: a, script: 'echo ${{ vars.NOPE }}'}", "steps:1:35: input \"script\": vars.NOPE was not found",
		},
		"no such environment": {"- {name: a, script: 'echo ${{ env.NOPE }}'}", "env.NOPE was not found"},
		"output file removed": {replaced("true", "output"), "read output file: the step has removed it"},
		"output file a directory": {
			replaced("mkdir $f", "output"), "read output file: the step has replaced it by something that is no regular file",
		},
		"output file a pipe": {
			replaced("mkfifo $f", "output"), "read output file: the step has replaced it by something that is no regular file",
		},
		"output file a link": {
			replaced("ln -s /etc/passwd $f", "output"), "read output file: the step has replaced it by a symbolic link",
		},
		"output file a device": {
			replaced("ln -s /dev/zero $f", "output"), "read output file: the step has replaced it by a symbolic link",
		},
		"output file huge": {
			replaced("truncate -s 9M $f", "output"), "read output file: the file has 9437184 bytes, the limit is 8388608",
		},
		"output not UTF-8": {replaced(`printf "\377" > $f`, "output"), "read output file: the text is not valid UTF-8"},
		"output nonsense": {
			replaced("head -c 100000 /dev/urandom | base64 > $f", "output"), "read output file: line 1: the line must be JSON",
		},
		"export file removed": {replaced("true", "export"), "read export file: the step has removed it"},
		"export file a directory": {
			replaced("mkdir $f", "export"), "read export file: the step has replaced it by something that is no regular file",
		},
		"export file a pipe": {
			replaced("mkfifo $f", "export"), "read export file: the step has replaced it by something that is no regular file",
		},
		"export file a link": {
			replaced("ln -s /etc/passwd $f", "export"), "read export file: the step has replaced it by a symbolic link",
		},
		"export huge": {
			replaced("truncate -s 9M $f", "export"), "read export file: the file has 9437184 bytes, the limit is 8388608",
		},
		"NUL exported":          {replaced(`echo "{\"name\":\"A\",\"value\":\"a\\u0000b\"}" > $f`, "export"), "NUL"},
		"name that is none":     {replaced(`echo "{\"name\":\"A=B\",\"value\":\"x\"}" > $f`, "export"), `export "A=B"`},
		"NUL in an argument":    {`- {name: a, exec: {command: [echo, "a\0b"]}}`, "NUL"},
		"NUL in an environment": {`- {name: a, script: x, env: {A: "${{ \"a\\u0000b\" }}"}}`, "NUL"},
		"directory of files gone": {
			"- {name: a, script: 'rm -r $(dirname ${{ output_file }})'}", "read output file: the step has removed it",
		},
		"init killed": {
			"- {name: a, script: 'kill -9 $PPID; sleep 4744'}", "the command's init process ended first",
		},
		"group killed":           {"- {name: a, script: 'kill -9 0'}", "exit status 137"},
		"work directory removed": {"- {name: a, script: 'rmdir $PWD'}\n- {name: b, script: echo}", `step "b": start`},
		"a circle of two":        {"- {name: a, step: ./x}", "the steps call each other beyond a depth of 32"},
		"a program that is none": {"- {name: a, exec: {command: [./x]}}", "not executable"},
		"a job directory of files": {
			"- {name: a, script: 'cd ..; rm -rf work; mkdir step-2'}\n- {name: b, script: 'echo ${{ output_file }}'}",
			"create directory for outputs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := *h
			h.t = t
			id := strings.ReplaceAll(name, " ", "-")
			req := yaml(id, c.steps)
			if strings.Contains(c.steps, "./x") {
				req.WorkDir = t.TempDir()
				for dir, other := range map[string]string{"x": "y", "y": "x"} {
					require.NoError(t, os.Mkdir(filepath.Join(req.GetWorkDir(), dir), 0o700))
					require.NoError(t, os.WriteFile(filepath.Join(req.GetWorkDir(), dir, "step.yml"),
						[]byte("{}\n---\nrun: [{name: one, step: ../"+other+"}, {name: two, step: ../"+other+"}]\n"), 0o600))
				}
			}
			if _, err := h.Run(t.Context(), req); err != nil { // what can be told at once is
				require.Equal(t, codes.InvalidArgument, status.Code(err))
				require.ErrorContains(t, err, c.want)
				return
			}
			last := h.end(id)
			require.Equal(t, pb.JobState_failed, last.GetStatus())
			require.Contains(t, last.GetMessage(), c.want)
			require.Less(t, len(last.GetMessage()), 10_000)
		})
	}
	requireUnharmed()
}
