package action

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/npmtest"
	"github.com/stepmux/stepmux/internal/testing/racefree"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// repository makes a repository of actions, and returns its commit.
func repository(t *testing.T, mirror, name, tag string, files map[string]string) string {
	t.Helper()
	r := fetchtest.NewRepository(t, filepath.Join(mirror, name))
	commit := r.Commit("main", fetchtest.Texts(files))
	r.Git("tag", tag, "main")
	return strings.TrimSpace(commit)
}

const composite = "runs:\n  using: composite\n  steps:\n"

func TestActionsInAListOfStepsPassOutputsAndEnvironmentOn(t *testing.T) {
	tr := newTrial(t)
	tr.file("a/action.yml", "inputs: {who-to-greet: {default: x}}\noutputs: {said: {value: '${{ "+
		"steps.s.outputs.said }}'}}\n"+
		composite+`    - id: s
      shell: bash
      run: |
        echo "said=hi ${{ inputs.who-to-greet }}" >> "$GITHUB_OUTPUT"
        echo "LATER=env" >> "$GITHUB_ENV"
        echo "$PWD/tools" >> "$GITHUB_PATH"
`)
	tr.file("tools/own.sh", "#!/bin/sh\necho own program\n")
	tr.steps(`run:
  - {name: a, action: ./a, inputs: {who-to-greet: "${{ 1 + 1 }}"}}
  - {name: b, script: 'echo "$LATER ${{ steps.a.outputs.said }}"; own.sh'}
  - {name: c, action: ./a}
`)
	res := tr.succeed()
	require.Contains(t, tr.log.String(), "env hi 2\nown program\n")
	require.Equal(t, map[string]string{"said": "hi x"}, texts(res.Steps[2].Outputs))
	require.Equal(t, "env", res.Exports["LATER"].Text())
}

func TestPostStagesOfAListRunAtTheEndOfTheJobInReverse(t *testing.T) {
	needs(t, "node")
	tr := newTrial(t)
	for _, name := range []string{"a", "b"} {
		tr.file(name+"/action.yml", "inputs: {x: {}}\nruns: {using: node20, main: m.js, post: p.js}\n")
		tr.file(name+"/m.js", `require("fs").appendFileSync(process.env.GITHUB_STATE, "s=`+name+`\n")`)
		tr.file(name+"/p.js", `console.log("post", process.env.STATE_s, process.env.INPUT_X);
process.exitCode = 7 * (process.env.INPUT_X == "bad")`)
	}
	tr.steps("- {name: a, action: ./a, inputs: {x: '1'}}\n- {name: b, action: ./b, inputs: {x: '2'}}\n- {name: c, " +
		"script: echo between}\n")
	res := tr.succeed()
	require.Equal(t, "between\npost b 2\npost a 1\n", tr.log.String())
	require.Equal(t, engine.Success, res.Steps[0].Steps[1].Status)

	tr.steps("- {name: a, action: ./a, inputs: {x: bad}}\n")
	res = tr.fail(`step "post": exec: exit status 7`)
	require.Equal(t, 7, res.ExitCode)
	require.Equal(t, engine.Success, res.Steps[0].Status)
}

func TestPostStagesRunAfterTheJobHasFailedOrWasStopped(t *testing.T) {
	needs(t, "node")
	tr := newTrial(t)
	tr.file("a/action.yml", "runs: {using: node20, main: m.js, post: p.js, post-if: '!success()'}\n")
	tr.file("a/m.js", "")
	tr.file("a/p.js", `console.log("after all")`)
	tr.steps("- {name: a, action: ./a}\n- {name: b, script: exit 3}\n")
	require.Equal(t, 3, tr.fail("exit status 3").ExitCode)
	require.Contains(t, tr.log.String(), "after all")

	tr.workflow("- uses: ./a\n- run: exit 4\n- if: cancelled()\n  run: echo not\n")
	require.Equal(t, 4, tr.fail("exit status 4").ExitCode)
	require.Equal(t, 2, strings.Count(tr.log.String(), "after all"))

	tr.workflow("- uses: ./a\n- run: echo begun; exec sleep 1000\n- run: echo never\n- if: always()\n  run: echo " +
		"always\n- if: cancelled()\n  run: echo was cancelled\n")
	res := tr.runWith(func(r *engine.Runner) { tr.log.On("begun", func() { r.Stop("no longer wanted", time.Minute) }) })
	require.Equal(t, engine.Cancelled, res.Status, res.Message)
	require.Equal(t, "no longer wanted", res.Message)
	require.Contains(t, tr.log.String(), "always\nwas cancelled\nafter all")
	require.NotContains(t, tr.log.String(), "never")
}

func TestStoppedActionGetsSIGINTBeforeSIGTERM(t *testing.T) {
	tr := newTrial(t)
	tr.workflow(`- shell: perl {0}
  run: |
    $| = 1; my @got;
    $SIG{INT} = sub { print "INT\n" }; $SIG{TERM} = sub { print "TERM\n"; exit 1 };
    print "begun\n"; sleep 1000 while 1;
`)
	needs(t, "perl")
	// Of the grace, a quarter is left after SIGTERM: time for perl on a busy machine.
	res := tr.runWith(func(r *engine.Runner) { tr.log.On("begun", func() { r.Stop("stop", 8*time.Second) }) })
	require.Equal(t, engine.Cancelled, res.Status, res.Message)
	require.Equal(t, "begun\nINT\nTERM\n", tr.log.String())
}

func TestRemoteActionsNestAndAreRecordedByTheirCommit(t *testing.T) {
	mirror := t.TempDir()
	inner := repository(t, mirror, "octo/inner", "v2", map[string]string{
		"sub/dir/action.yml": composite + "    - {shell: bash, run: 'cat \"$GITHUB_ACTION_PATH/text\"; " +
			"echo \"$GITHUB_ACTION_REPOSITORY\"'}\n",
		"sub/dir/text": "inner text\n",
	})
	outer := repository(t, mirror, "octo/outer", "v1", map[string]string{
		"action.yml": composite + "    - uses: octo/inner/sub/dir@v2\n",
	})
	tr := newTrial(t)
	tr.remotes(mirror)
	tr.workflow("- uses: octo/outer@v1\n")
	res := tr.succeed()
	require.Contains(t, tr.log.String(), "inner text\nocto/inner\n")
	step := res.Steps[0].Steps[0]
	require.Equal(t, outer, step.Source.Commit)
	require.Equal(t, inner, step.Steps[0].Source.Commit)
	recorded := tr.trace.Identity.Steps[0].Steps[0]
	require.Equal(t, trace.Git, recorded.Component.Kind)
	require.Equal(t, "https://github.com/octo/outer", recorded.Component.Location)
	require.Equal(t, inner, recorded.Steps[0].Component.Digest[trace.GitCommit])

	tr.action.RequirePinned = true
	tr.fail(`the action octo/outer@v1 is not pinned: write the full commit in place of "v1"`)
	tr.workflow("- uses: octo/outer@" + outer + "\n")
	tr.fail(`the action octo/inner/sub/dir@v2 is not pinned`)
	tr.steps("- {name: a, action: 'octo/inner/sub/dir@" + inner + "'}\n")
	tr.succeed()
}

// A reference that begins with $/ is to the repository of the file that has it, whatever is in the project.
func TestActionsOfTheSameRepository(t *testing.T) {
	mirror := t.TempDir()
	says := func(text string) string {
		return composite + "    - {shell: bash, run: 'echo \"" + text + " $GITHUB_ACTION_REPOSITORY\"'}\n"
	}
	commit := repository(t, mirror, "octo/tools", "v1", map[string]string{
		"sub/action.yml": composite + "    - uses: $/lib\n    - uses: ./lib\n    - uses: $//nested/\n",
		"lib/action.yml": says("tool"), "nested/action.yml": composite + "    - uses: $/lib\n",
	})
	tr := newTrial(t)
	tr.remotes(mirror)
	tr.file("lib/action.yml", says("project"))
	tr.file("local/action.yml", composite+"    - uses: $/lib\n")
	tr.workflow("- uses: octo/tools/sub@v1\n- uses: $/local\n- uses: $/lib\n")
	res := tr.succeed()
	require.Contains(t, tr.log.String(), "tool octo/tools\nproject \ntool octo/tools\nproject \nproject \n")
	require.Equal(t, commit, res.Steps[0].Steps[0].Steps[0].Source.Commit)
	tr.workflow("- uses: octo/tools/none@v1\n")
	tr.fail("none")
	for _, text := range []string{"$/", "$/../x", "$x"} {
		tr.workflow("- uses: " + text + "\n")
		tr.fail("uses: the action is not valid")
	}
}

// The pre stage of an action ran, and no post stage after it, if a later action could not be fetched.
func TestNoStageRunsIfAnActionIsUnavailable(t *testing.T) {
	mirror := t.TempDir()
	repository(t, mirror, "octo/pre", "v1", map[string]string{
		"action.yml": "runs: {using: node20, pre: a.js, main: a.js, post: a.js}\n", "a.js": "",
	})
	tr := newTrial(t)
	tr.remotes(mirror)
	tr.file("node.sh", "#!/bin/sh\necho a stage runs\n")
	tr.action.Node = filepath.Join(tr.place.WorkDir, "node.sh")
	tr.workflow("- uses: octo/pre@v1\n- uses: octo/none@v1\n")
	tr.fail("workflow:6: fetch the action octo/none@v1")
	require.NotContains(t, tr.log.String(), "a stage runs")
}

func TestUnavailableActionsFailTheirStep(t *testing.T) {
	mirror := t.TempDir()
	repository(t, mirror, "octo/empty", "v1", map[string]string{"README.md": "x"})
	tr := newTrial(t)
	tr.remotes(mirror)
	tr.file("circle/action.yml", composite+"    - uses: ./circle\n")
	tr.file("node/action.yml", "runs: {using: node20, main: dist/missing.js}\n")
	tr.file("away/action.yml", "runs: {using: node20, main: ../../x.js}\n")
	tr.file("bad/action.yml", composite+"    - {shell: bash, run: 'echo ${{ nope.x }}'}\n")
	for step, want := range map[string]string{
		"octo/none@v1":    "workflow:5: fetch the action octo/none@v1",
		"octo/empty@v9":   "fetch the action octo/empty@v9",
		"octo/empty@v1":   "find the action octo/empty@v1: it has no action.yml, action.yaml or Dockerfile",
		"octo/empty":      "write owner/repository@revision",
		"octo/empty@-x":   "write owner/repository@revision",
		"./missing":       "workflow:5: find the action ./missing",
		"./circle":        "beyond a depth of 32; does one of them call itself?",
		"./node":          `run the action ./node: the action's program "dist/missing.js" is missing; was it built?`,
		"./away":          `the action's program "../../x.js" is missing; was it built?`,
		"./bad":           "bad/action.yml:4: run: Unrecognized named-value: 'nope'",
		"docker://x/../y": "",
	} {
		if strings.HasPrefix(step, "docker") {
			continue
		}
		if step == "./node" || step == "./away" {
			if _, err := exec.LookPath("node"); err != nil {
				continue
			}
		}
		tr.workflow("- uses: " + step + "\n")
		tr.fail(want)
	}
}

// Symptom: a machine without node or docker was the script's failure, with exit code 1.
func TestAMachineWithoutTheProgramOfAnActionIsAFaultOfTheSystem(t *testing.T) {
	for want, change := range map[string]func(*Config) string{
		"node was not found: install Node.js 20 or newer": func(*Config) string { return "./node" },
		"neither docker nor podman is in PATH: install":   func(*Config) string { return "./docker" },
		"install it, or name another with --node": func(c *Config) string {
			c.Node = "/none/node"
			return "./node"
		},
		"install it, or name another with --docker": func(c *Config) string {
			c.Docker = "/none/docker"
			return "./docker"
		},
	} {
		tr := newTrial(t)
		tr.cfg.RunnerEnv = []string{"PATH=" + t.TempDir()}
		tr.file("node/action.yml", "runs: {using: node20, main: m.js}\n")
		tr.file("node/m.js", "")
		tr.file("docker/action.yml", "runs: {using: docker, image: 'docker://none'}\n")
		action := change(&tr.action)
		tr.steps("- {name: a, action: " + action + "}\n")
		res := tr.run()
		require.Equal(t, engine.Failure, res.Status)
		require.Contains(t, res.Message, want)
		require.True(t, res.System, res.Message)
	}
}

func TestMissingNodeIsToldWithItsRemedy(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.RunnerEnv = []string{"PATH=" + t.TempDir()}
	tr.file("a/action.yml", "runs: {using: node20, main: m.js}\n")
	tr.file("a/m.js", "")
	tr.steps("- {name: a, action: ./a}\n")
	tr.fail("run the action ./a: node was not found: install Node.js 20 or newer, name it with --node or STEP_RUNNER_NODE")

	cache := t.TempDir()
	for _, version := range []string{"9.1.0", "24.2.0", "20.19.1"} {
		program := filepath.Join(cache, "node", version, strings.ToLower(architecture()), "bin", "node")
		require.NoError(t, os.MkdirAll(filepath.Dir(program), 0o755))
		require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo v"+version+
			" || echo node "+version+"\n"), 0o755))
	}
	tr.cfg.Env = map[string]string{"RUNNER_TOOL_CACHE": cache, "PATH": os.Getenv("PATH")}
	tr.succeed()
	require.Equal(t, "node 24.2.0\n", tr.log.String())
	ran := tr.trace.Identity.Steps[0].Exec.Program.Digest[trace.SHA256]
	require.Equal(t, "v24.2.0", tr.trace.Volatile.Versions[ran])
}

//stepmux:faults input | An action replaces a command file by a link, a FIFO or 1 GiB
func TestStepCanOnlyHarmItself(t *testing.T) {
	for script, want := range map[string]string{
		`rm "$GITHUB_OUTPUT"; ln -s /etc/passwd "$GITHUB_OUTPUT"`: "symbolic link",
		`rm "$GITHUB_ENV"; mkfifo "$GITHUB_ENV"`:                  "no regular file",
		`truncate -s 1G "$GITHUB_STATE"`:                          "the limit is",
		`echo "::set-env name=LD_PRELOAD::/x.so"`:                 "set-env",
		`echo "::add-path::/evil"`:                                "add-path",
		`echo "::stop-commands::"`:                                "stop-commands",
		`printf 'a<<E\nx\n' >> "$GITHUB_ENV"`:                     "delimiter not found 'E'",
		`echo ::set-output::x`:                                    "name is missing",
		`rm -r "$(dirname "$GITHUB_OUTPUT")"`:                     "the step has removed it",
		`printf 'a=\377' > "$GITHUB_OUTPUT"`:                      "successfully: the command file is not valid UTF-8",
		`printf 'a=b\nc' > "$GITHUB_OUTPUT"`:                      "'output' successfully: line 2: invalid format",
		`seq 2000 >> "$GITHUB_PATH"`:                              "'path' successfully: the steps put more than 1000",
		`for n in 1 2 3 4 5 6 7 8 9; do echo "::save-state name=$n::$(yes | head -c 1000000 | tr '\n' x)"; done`: "" +
			"the job's values have more than 8388608 bytes in all",
	} {
		tr := newTrial(t)
		tr.workflow("- run: |\n    " + script + "\n- if: failure()\n  run: echo \"next [$LD_PRELOAD]\"; echo ok=1 >> " +
			"$GITHUB_OUTPUT\n")
		tr.fail(want)
		require.Contains(t, tr.log.String(), "next []", script)
	}
}

// The files of a step that has not used them become those of the next one. It must not be told apart from new ones.
func TestNextStepHasCommandFilesOfItsOwn(t *testing.T) {
	tr := newTrial(t)
	tr.workflow(`- id: unused
  run: |
    stat -c %i "$GITHUB_OUTPUT" > inode; touch "$(dirname "$GITHUB_OUTPUT")/more"
- id: again
  run: |
    [ "$(stat -c %i "$GITHUB_OUTPUT")" = "$(cat inode)" ] && echo reused
    ls "$(dirname "$GITHUB_OUTPUT")"
    mkfifo begin1 end1 begin2 end2
    { read x < begin1; echo leaked=1; echo > end1; } >> "$GITHUB_OUTPUT" &
    { read x < begin2; echo leaked=1 >> "$GITHUB_STATE" || echo > end2; } 2> /dev/null &
    ln "$GITHUB_ENV" env
    chmod 400 "$GITHUB_PATH"
- id: open
  run: |
    for n in 1 2; do echo > begin$n; read x < end$n; done
    echo LEAKED=1 >> env
    stat -c %a "$GITHUB_PATH"
    echo own=1 >> "$GITHUB_OUTPUT"
- id: written
  run: echo "[$LEAKED] [$(cat "$GITHUB_OUTPUT")]"
`)
	res := tr.succeed()
	require.Equal(t, "reused\nenv\noutput\npath\nscript\nstate\nstep_summary\n600\n[] []\n", tr.log.String())
	require.Empty(t, texts(res.Steps[0].Steps[1].Outputs))
	require.Equal(t, map[string]string{"own": "1"}, texts(res.Steps[0].Steps[2].Outputs))
}

func TestUnsupportedContextsAndVariablesAreEmpty(t *testing.T) {
	tr := newTrial(t)
	tr.workflow(`- run: |
    echo "LD_LIBRARY_PATH=/own/lib" >> "$GITHUB_ENV"
    echo "[${{ needs.a.result }}${{ strategy.job-index }}${{ job.container.id }}${{ job.services.db.id }}]"
    echo "[$ACTIONS_CACHE_URL$ACTIONS_RESULTS_URL$ACTIONS_RUNTIME_TOKEN$ACTIONS_ID_TOKEN_REQUEST_URL]"
    echo "::echo::on"
    echo "::set-output name=a::b"
- run: echo "$LD_LIBRARY_PATH"
`)
	tr.succeed()
	require.Equal(t, "[]\n[]\n/own/lib\n", tr.log.String(), "of the commands nothing is shown")
}

// The context job has the properties that the caller knows, and the status, of which nobody else knows.
func TestTheContextJobHasTheContainersAndTheFileOfTheWorkflow(t *testing.T) {
	tr := newTrial(t)
	tr.file("a/action.yml", "runs: {using: composite, steps: [{shell: sh, run: 'echo \"in ${{ job.container.id }}\"'}]}\n")
	tr.cfg.Vars = []engine.Variable{{Key: pb.JobContext, Value: `{"status":"x","workflow_sha":"c0","container":{"id":"c1",
"network":"n1"},"services":{"db":{"id":"s1","network":"n1","ports":{"5432":"5432"}}}}`}}
	tr.workflow(`- run: |
    echo "${{ job.status }} ${{ job.container.id }} ${{ job.container.network }} ${{ job.workflow_sha }}"
    echo "${{ job.services.db.ports['5432'] }} ${{ job.services.db.ports[5432] }} [${{ job.check_run_id }}]"
    echo "${{ toJSON(vars) }}"
- uses: ./a
`)
	tr.succeed()
	require.Equal(t, "success c1 n1 c0\n5432 5432 []\n{}\nin c1\n", tr.log.String())
	require.Contains(t, tr.trace.Identity.Job.Vars, pb.JobContext)
	tr.cfg.Vars[0].Value = "no JSON"
	tr.workflow("- run: echo \"${{ job.status }} [${{ job.container.id }}]\"\n")
	tr.succeed()
	require.Contains(t, tr.log.String(), "in c1\nsuccess []\n")
	tr.workflow("- run: echo no\n")
	tr.succeed()
	require.NotContains(t, tr.trace.Identity.Job.Vars, pb.JobContext, "no expression names it")
}

func TestVariablesThatChangeProgramsAreNotPassedOn(t *testing.T) {
	tr := newTrial(t)
	tr.workflow("- run: printf 'GIT_CONFIG_COUNT=1\\nnode_options=x\\nKEPT=yes\\n' >> \"$GITHUB_ENV\"\n" +
		"- run: echo \"[$GIT_CONFIG_COUNT$node_options] $KEPT\"\n")
	res := tr.succeed()
	require.Contains(t, tr.log.String(), "[] yes\n")
	require.Len(t, res.Steps[0].Steps[0].Annotations, 2)
}

func TestMaskThatIsTooShortIsTold(t *testing.T) {
	tr := newTrial(t)
	tr.workflow("- run: echo ::add-mask::ab\n")
	require.Contains(t, tr.succeed().Steps[0].Steps[0].Warnings[0], "too short to be masked")
}

func TestOutputsAndSummariesWithSecretsAreMasked(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.Vars = []engine.Variable{{Key: "TOKEN", Value: "geheim-1234", Masked: true}, {Key: "LEVEL", Value: "low"}}
	tr.workflow(`- id: a
  env: {T: "${{ secrets.TOKEN }}"}
  run: |
    echo "x=$T" >> $GITHUB_OUTPUT; echo "sum $T" >> $GITHUB_STEP_SUMMARY; echo "::warning::is $T"
- run: echo "${{ steps.a.outputs.x }} ${{ vars.LEVEL }} [${{ vars.TOKEN }}] [${{ github.token }}]"
`)
	res := tr.succeed()
	require.Contains(t, tr.log.String(), "Warning: is [MASKED]\n[MASKED] low [] []\n")
	require.Equal(t, "sum [MASKED]\n", res.Steps[0].Steps[0].Summary)
	require.Equal(t, "is [MASKED]", res.Steps[0].Steps[0].Annotations[0].Message)
	require.True(t, res.Steps[0].Steps[0].Outputs["x"].Sensitive())
}

func TestTokenReachesOnlyTheInputThatAsksForIt(t *testing.T) {
	needs(t, "node")
	tr := newTrial(t)
	tr.cfg.Vars = []engine.Variable{{Key: "GITHUB_TOKEN", Value: "ghp-12345678", Masked: true}}
	tr.file("a/action.yml", "inputs: {token: {default: '${{ github.token }}'}}\nruns: {using: node20, main: m.js}\n")
	tr.file("b/action.yml", "inputs: {other: {default: '${{ github.server_url }}'}}\nruns: {using: node20, main: m.js}\n")
	for _, dir := range []string{"a", "b"} {
		tr.file(dir+"/m.js", `console.log("`+dir+`", Object.entries(process.env)
.filter(([k, v]) => v.includes("ghp-12345678")).map(([k]) => k).join())`)
	}
	tr.workflow("- uses: ./a\n- uses: ./b\n")
	tr.succeed()
	require.Contains(t, tr.log.String(), "a INPUT_TOKEN\nb \n")
	require.Contains(t, tr.trace.Identity.Job.Vars, "GITHUB_TOKEN")
	tr.workflow("- uses: ./b\n")
	tr.succeed()
	require.NotContains(t, tr.trace.Identity.Job.Vars, "GITHUB_TOKEN")
}

// A program that reports steps finds them in the log by the marks: each step with its result, between them the output
// of both streams as the steps have written it, and outside of them what belongs to no step.
func TestMarksTellWhereEachStepBeginsAndEnds(t *testing.T) {
	tr := newTrial(t)
	tr.steps(`[{"name": "job", "step": "builtin://github/job", "inputs": {"marks": "t0ken", "workflow": "` +
		strings.ReplaceAll(`on: push
jobs:
  test:
    steps:
    - run: for i in 1 2 3; do echo out $i; echo err $i >&2; done
    - {run: printf unfinished; exit 3, continue-on-error: true}
    - {run: echo no, if: false}
    - run: exit 4
    - {run: echo always, if: always()}
    - uses: ./own
      if: always()
`, "\n", "\\n") + `"}}]`)
	tr.file(
		"own/action.yml",
		"runs: {using: composite, steps: [{run: echo inner, shell: sh}, {run: echo more, shell: sh}]}\n",
	)
	tr.fail("exit status 4")
	require.Equal(t, `##[step:t0ken] 0 begin
out 1
err 1
out 2
err 2
out 3
err 3
##[step:t0ken] 0 success
##[step:t0ken] 1 begin
unfinished##[step:t0ken] 1 success
##[step:t0ken] 2 begin
##[step:t0ken] 2 skipped
##[step:t0ken] 3 begin
##[step:t0ken] 3 failure
##[step:t0ken] 4 begin
always
##[step:t0ken] 4 success
##[step:t0ken] 5 begin
inner
more
##[step:t0ken] 5 success
`, tr.log.String())
}

// Actions that name no server come from that of the job, also those that other actions use.
func TestActionsComeFromTheServerOfTheJob(t *testing.T) {
	tr := newTrial(t)
	tr.steps(`[{"name": "job", "step": "builtin://github/job", "inputs": {"actions": "https://git.invalid:3000", ` +
		`"workflow": "on: push\njobs: {a: {steps: [{uses: o/r@v1}]}}"}}]`)
	tr.remotes(t.TempDir())
	tr.fail("git.invalid")
}

func TestHashFilesIsThatOfGitHub(t *testing.T) {
	tr := newTrial(t)
	tr.file("a/go.sum", "one\n")
	tr.file("b/c/go.sum", "two\n")
	tr.file("b/c/other", "three\n")
	tr.workflow("- run: echo \"[${{ hashFiles('**/go.sum') }}] [${{ hashFiles('b/**', '!**/other') }}] [${{ " +
		"hashFiles('none') }}]\"\n")
	tr.succeed()
	out, err := exec.Command("sh", "-c", "cd \"$1\" && { sha256sum <a/go.sum; sha256sum <b/c/go.sum; } | cut -c1-64 | "+
		"xxd -r -p | sha256sum | cut -c1-64", "sh", tr.place.WorkDir).Output()
	if err == nil && len(strings.TrimSpace(string(out))) == 64 {
		require.Contains(t, tr.log.String(), "["+strings.TrimSpace(string(out))+"]")
	}
	require.Contains(t, tr.log.String(), "] []\n")
	tr.workflow("- run: echo ${{ hashFiles('../x') }}\n")
	tr.fail("hashFiles: the pattern \"../x\" has a part . or .., which GitHub does not allow")
}

func TestTimeLimitOfAStepEndsIt(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.Grace = 100 * time.Millisecond
	tr.workflow("- id: slow\n  timeout-minutes: 0.003\n  run: exec sleep 1000\n- if: always()\n  run: echo ${{ " +
		"steps.slow.outcome }}\n")
	tr.fail(`step "slow": timeout: the step "slow" ran for longer than 180ms`)
	require.Contains(t, tr.log.String(), "failure\n")
}

//stepmux:faults input | An action prints a million commands, or a command of 4 MiB
//stepmux:with remote/step/action.TestMemoryOfAScannerIsBounded
func TestMillionCommandsTakeLittleMemory(t *testing.T) {
	racefree.Only(t)
	tr := newTrial(t)
	tr.workflow("- run: yes '::debug::text' | head -n 1000000\n- run: yes '::warning::' | head -n 100000\n" +
		"- continue-on-error: true\n  run: yes '::set-output::x' | head -n 100000\n")
	tr.place.Stdout = io.Discard
	require.NoError(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)) // the peak counts from now on
	before := peak(t)
	res := tr.succeed()
	require.Less(t, len(res.Steps[0].Steps[2].Message), 4096)
	grown := peak(t) - before
	t.Logf("grew by %d KiB", grown)
	require.Less(t, grown, 128<<10, "KiB; to keep them would take more than 240 MiB")
}

// peak is the most memory that this process has had, in KiB.
func peak(t *testing.T) (kib int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	_, err = fmt.Sscanf(rest, "%d kB", &kib)
	require.NoError(t, err)
	return kib
}

func TestContextsComeFromTheVariablesOfAPipeline(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.Vars = []engine.Variable{
		{Key: "CI_PROJECT_PATH", Value: "group/project"},
		{Key: "CI_COMMIT_SHA", Value: "abc"},
		{Key: "CI_COMMIT_TAG", Value: "v1"},
		{Key: "CI_PIPELINE_SOURCE", Value: "web"},
		{Key: "GITHUB_ACTOR", Value: "me"},
	}
	tr.workflow("- run: echo ${{ join(github.*, ' ') != '' }} ${{ github.repository }} ${{ github.sha }} ${{ " +
		"github.ref }} " +
		"${{ github.event_name }} ${{ github.actor }} ${{ github.event.ref }} $GITHUB_REF_TYPE ${{ runner.os }} " +
		"${{ job.status }} $GITHUB_REPOSITORY_OWNER; cat $GITHUB_EVENT_PATH\n")
	tr.succeed()
	require.Contains(t, tr.log.String(), "true group/project abc refs/tags/v1 workflow_dispatch me refs/tags/v1 "+
		"tag Linux success group\n{\n") // the owner was empty: a registry/owner/image had no owner
	require.Contains(t, slices.Sorted(keys(tr.trace.Identity.Job.Vars)), "CI_COMMIT_TAG")
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// A workflow's own CI was overwritten. As ProcessInvoker of actions/runner has it, CI is true if nobody set it.
func TestWorkflowCanReplaceCI(t *testing.T) {
	tr := newTrial(t)
	tr.workflow("- run: echo [$CI]\n- {run: 'echo [$CI]', env: {CI: false}}\n- run: echo CI= >> $GITHUB_ENV\n" +
		"- run: echo [$CI]\n")
	tr.succeed()
	require.Equal(t, "[true]\n[false]\n[]\n", tr.log.String())
}

// A condition did not see the env of its own step. StepsRunner of actions/runner evaluates that first.
func TestConditionSeesTheEnvOfItsStep(t *testing.T) {
	tr := newTrial(t)
	tr.workflow(`
- {if: env.A == 'x', env: {A: "${{ vars.NAME }}"}, run: echo seen}
- {if: env.A == 'x', run: echo leaked}
- {if: false, env: {A: "${{ fromJSON('{') }}"}, run: echo not}
- {if: always(), env: {A: "${{ fromJSON('{') }}"}, run: echo not, continue-on-error: true}
`)
	tr.cfg.Vars = []engine.Variable{{Key: "NAME", Value: "x"}}
	tr.succeed()
	require.Equal(t, "seen\n", tr.log.String())
}

// The time limit of a step ended the post stages of the actions in it, which run at the end of the job.
func TestTimeLimitOfAStepIsNotThatOfPostStages(t *testing.T) {
	tr := newTrial(t)
	bin := t.TempDir() // node itself needs more than the limits below on a busy machine
	require.NoError(t, os.WriteFile(filepath.Join(bin, "node"), []byte(
		"#!/bin/sh\ncase $1 in --version) echo v20.1.0 ;; */p.js) echo post ;; esac\n"), 0o755))
	tr.cfg.Env = map[string]string{"PATH": bin + ":" + os.Getenv("PATH")}
	tr.file("a/action.yml", "runs: {using: node20, main: m.js, post: p.js}\n")
	tr.file("a/m.js", "")
	tr.file("a/p.js", "")
	tr.file("c/action.yml", composite+"    - uses: ./a\n    - {run: sleep 1000, shell: sh}\n")
	tr.workflow("- {uses: ./c, timeout-minutes: 0.05, continue-on-error: true}\n")
	tr.succeed()
	require.Equal(t, "post\n", tr.log.String())

	tr.steps("- {name: l, timeout: 3s, run: [{name: a, action: ./a}, {name: s, script: exec sleep 1000}]}\n")
	tr.fail(`step "l": step "s": timeout: the step "l" ran for longer than 3s`)
	tr.steps("- {name: a, action: ./a, timeout: 2s}\n- {name: b, script: sleep 2.1}\n")
	tr.succeed()
	require.Equal(t, "post\npost\npost\n", tr.log.String())
}

// Zero is no limit, as on GitHub. It was an error, and NaN a limit that had passed.
func TestATimeLimitOfZeroIsNone(t *testing.T) {
	tr := newTrial(t)
	tr.workflow("- {run: echo on, timeout-minutes: 0}\n")
	tr.succeed()
	for _, text := range []string{"NaN", "-1", "1e7", "soon"} {
		tr.workflow("- {run: echo on, timeout-minutes: \"" + text + "\"}\n")
		tr.fail("timeout-minutes is \"" + text + "\"; write a positive number, or 0 for no limit")
	}
}

// All names with GITHUB_ and RUNNER_ were refused, but workflows have variables of their own with such names.
func TestStepsCanSetVariablesThatTheRunnerDoesNotSet(t *testing.T) {
	tr := newTrial(t)
	tr.workflow("- run: echo GITHUB_SHA_SHORT=abc >> $GITHUB_ENV; echo RUNNER_LABEL=own >> $GITHUB_ENV\n" +
		"- run: echo $GITHUB_SHA_SHORT $RUNNER_LABEL ${{ env.GITHUB_SHA_SHORT }}\n")
	tr.succeed()
	require.Equal(t, "abc own abc\n", tr.log.String())

	tr.workflow(`
- run: env | sed -n 's/^\(GITHUB_[A-Z_]*\|RUNNER_[A-Z_]*\)=.*/\1=of-a-step/p' >> $GITHUB_ENV
- run: echo any of them ${{ contains(join(env.*), 'of-a-step') }}
`)
	tr.succeed()
	require.Contains(t, tr.log.String(), `can't store "GITHUB_WORKSPACE" in GITHUB_ENV: the runner sets this variable`)
	require.Contains(t, tr.log.String(), "any of them false\n")
}

// With blanks, or by .*, all of the variables were none.
func TestWholeContextsOfVariablesAreFoundHoweverTheyAreWritten(t *testing.T) {
	tr := newTrial(t)
	tr.cfg.Vars = []engine.Variable{{Key: "LEVEL", Value: "low"}}
	tr.workflow(`
- run: echo "${{ toJSON( vars ) }}"
- run: echo "${{ join(vars.*) }}"
- run: echo "${{ vars [ format('LE{0}', 'VEL') ] }}"
`)
	tr.succeed()
	require.Equal(t, "{\n  LEVEL: low\n}\nlow\nlow\n", tr.log.String())
}

// The paths of the command files were missing in the context, so that "github.env" was an empty text.
func TestScriptsFindTheirCommandFilesInTheContext(t *testing.T) {
	tr := newTrial(t)
	tr.workflow(`
- run: echo A=b >> ${{ github.env }}; echo c=d >> "${{ github.output }}"; echo ${{ github.action }}
  id: x
- run: echo $A ${{ steps.x.outputs.c }}; [ "${{ github.path }}" = "$GITHUB_PATH" ] && echo same
`)
	tr.succeed()
	require.Equal(t, "x\nb d\nsame\n", tr.log.String())
}

// Symptom: of an action with when: always, or with if: always(), no step of its own ran after a cancel, and it
// succeeded.
func TestActionThatAlwaysRunsHasItsStepsRunAfterAStop(t *testing.T) {
	for name, steps := range map[string]string{
		"list": "- {name: a, script: echo begun; exec sleep 1000}\n- {name: b, action: ./c, when: always}\n",
		"job": "- {name: a, script: echo begun; exec sleep 1000}\n- {name: b, step: 'builtin://github/job', when: always, " +
			"inputs: {workflow: 'jobs: {x: {steps: [{uses: ./c}]}}'}}\n",
		"workflow": "",
	} {
		tr := newTrial(t)
		tr.file("c/action.yml", composite+"    - {shell: sh, run: echo first}\n"+
			"    - {shell: sh, if: success(), run: exit 4}\n    - {shell: sh, if: failure(), run: echo last}\n")
		if tr.workflow("- run: echo begun; exec sleep 1000\n- {if: always(), uses: ./c}\n"); steps != "" {
			tr.steps(steps)
		}
		res := tr.runWith(func(r *engine.Runner) { tr.log.On("begun", func() { r.Stop("no longer wanted", time.Minute) }) })
		require.Equal(t, engine.Cancelled, res.Status, name)
		require.Equal(t, "begun\nfirst\nlast\n", tr.log.String(), name)
	}
}

// Symptom: an action whose step was stopped counted as one that had succeeded.
func TestActionWhoseStepIsStoppedIsCancelled(t *testing.T) {
	tr := newTrial(t)
	tr.file("c/action.yml", composite+"    - {shell: sh, run: echo begun; exec sleep 1000}\n")
	tr.workflow("- {id: c, uses: ./c}\n- {if: always(), run: 'echo ${{ steps.c.outcome }}'}\n")
	res := tr.runWith(func(r *engine.Runner) { tr.log.On("begun", func() { r.Stop("no longer wanted", time.Minute) }) })
	require.Equal(t, engine.Cancelled, res.Steps[0].Steps[0].Status)
	require.Equal(t, "begun\ncancelled\n", tr.log.String())
}

// Symptom: actions such as actions/cache/restore and github/codeql-action/init, whose program is ../dist/index.js, were
// refused.
func TestProgramOfAnActionMayBeBesideItsDirectory(t *testing.T) {
	mirror := t.TempDir()
	repository(t, mirror, "octo/many", "v1", map[string]string{
		"a/action.yml": "runs: {using: node20, main: ../dist/a.js, post: ../dist/post.js}\n",
		"b/action.yml": "runs: {using: docker, image: ../Dockerfile}\n",
		"c/action.yml": "runs: {using: node20, main: ../../c.js}\n",
		"d/action.yml": "runs: {using: docker, image: ../../Dockerfile}\n",
		"dist/a.js":    "", "dist/post.js": "", "Dockerfile": "",
	})
	tr := newTrial(t)
	tr.remotes(mirror)
	fakeDocker(tr)
	tr.file("node.sh", "#!/bin/sh\n[ -f \"$1\" ] && echo \"${1##*/}\"\n")
	tr.action.Node = filepath.Join(tr.place.WorkDir, "node.sh")
	tr.file("own/e/action.yml", "runs: {using: node20, main: ../e.js}\n")
	tr.file("own/e.js", "")
	tr.workflow("- uses: octo/many/a@v1\n- uses: octo/many/b@v1\n- uses: ./own/e\n").succeed()
	require.Regexp(t, `^a\.js\nbuild .*\nrun .*\ne\.js\npost\.js\n$`, tr.log.String())

	tr.workflow("- uses: octo/many/c@v1\n").fail(`the action's program "../../c.js" is not a file of the action`)
	tr.workflow("- uses: octo/many/d@v1\n").fail(`image "../../Dockerfile" is neither a Dockerfile of the action`)
}

// stoppingFetcher stops the job as soon as that fetches an action.
type stoppingFetcher struct{ stop func() }

func (f *stoppingFetcher) Fetch(
	ctx context.Context, _ *pb.Reference, _ component.Credentials,
) (*component.Component, error) {
	f.stop()
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// Symptom: a job that was cancelled, or whose time was over, while its actions were fetched had failed by its script.
func TestStopWhileActionsAreFetchedIsAStop(t *testing.T) {
	tr := newTrial(t)
	f := &stoppingFetcher{}
	tr.cfg.Fetcher = f
	tr.workflow("- uses: octo/a@v1\n")
	res := tr.runWith(func(r *engine.Runner) { f.stop = func() { r.Stop("no longer wanted", time.Minute) } })
	require.Equal(t, engine.Cancelled, res.Status, res.Message)
	require.Equal(t, "no longer wanted", res.Message)

	f.stop = func() {}
	tr.cfg.Timeout = 100 * time.Millisecond
	res = tr.steps("- {name: a, action: octo/a@v1}\n").run()
	require.Equal(t, engine.Failure, res.Status)
	require.True(t, res.TimedOut, res.Message)
}

// Symptom: after a failure a step with if: ${{ always() }} && true was skipped. As on GitHub, the text around the
// expression makes it true, and its status function is found all the same.
func TestStatusFunctionCountsInATextAroundIt(t *testing.T) {
	tr := newTrial(t)
	tr.workflow("- run: exit 3\n- {if: '${{ failure() }} && ${{ false }}', run: echo runs}\n" +
		"- {if: '!${{ github.ref }}', run: echo does not}\n")
	tr.fail("exit status 3")
	require.Equal(t, "runs\n", tr.log.String())
}

// The real client says that a variable is missing. We say why, and the remedy.
func TestAnActionThatAsksForAnOIDCTokenIsToldTheRemedy(t *testing.T) {
	needs(t, "node")
	packages, err := npmtest.Install(t.TempDir(), map[string]string{"core": "@actions/core@1.11.1"})
	if err != nil {
		t.Skip(err)
	}
	tr := newTrial(t)
	tr.file("a/action.yml", "runs: {using: node20, main: m.js}\n")
	tr.file("a/m.js", "const core = require("+strconv.Quote(filepath.Join(packages, "node_modules/core"))+")\n"+
		"core.getIDToken().catch(e => core.setFailed(e.message))\n")
	tr.workflow("- uses: ./a\n")
	res := tr.fail("")
	require.Contains(t, tr.log.String(), "Unable to get ACTIONS_ID_TOKEN_REQUEST_URL env variable")
	require.Equal(t,
		[]string{"there is no OIDC service, so getting a token fails; pass a secret (--var NAME --mask NAME)"},
		res.Steps[0].Steps[0].Warnings)
}

// Symptom: a PowerShell script went on after an error, and its last program's exit code was lost.
func TestPowerShellScriptEndsWithItsFirstError(t *testing.T) {
	tr := newTrial(t)
	tr.file("tools/pwsh.sh", "#!/bin/sh\ncat \"$(echo \"$*\" | grep -o '/[^ ]*script[.]ps1')\"\n")
	dir := filepath.Join(tr.place.WorkDir, "tools")
	require.NoError(t, os.Rename(filepath.Join(dir, "pwsh.sh"), filepath.Join(dir, "pwsh")))
	tr.cfg.RunnerEnv = append(tr.cfg.RunnerEnv, "PATH="+dir+":"+os.Getenv("PATH"))
	tr.workflow("- {shell: pwsh, run: Get-Item a}\n").succeed()
	const whole = "$ErrorActionPreference = 'stop'\nGet-Item a\n" +
		"if (Test-Path variable:LASTEXITCODE) { exit $LASTEXITCODE }\n"
	require.Equal(t, whole, tr.log.String())

	// PowerShell runs only files with the extension .ps1.
	tr.workflow("- {shell: 'pwsh -NoProfile -File {0}', run: Get-Item a}\n").succeed()
	require.Equal(t, whole+whole, tr.log.String())
}

// Symptom: internal error of the step runner: index out of range.
func TestCompositeActionHasNoOtherStages(t *testing.T) {
	tr := newTrial(t)
	tr.file("c/action.yml", "runs: {using: composite, pre: a.js, post: b.js, steps: [{run: echo runs, shell: sh}]}\n")
	tr.steps("- {name: a, action: ./c}\n").succeed()
	require.Equal(t, "runs\n", tr.log.String())
}

// Symptom: steps.a could not be read any more: a key is not valid UTF-8.
func TestNameOfAnOutputThatIsNoTextIsNoHarm(t *testing.T) {
	tr := newTrial(t)
	tr.file("node.sh", "#!/bin/sh\nprintf '::set-output name=\\377::1\\n::set-output name=x::2\\n'\n")
	tr.action.Node = filepath.Join(tr.place.WorkDir, "node.sh")
	tr.file("a/action.yml", "runs: {using: node20, main: m.js}\n")
	tr.file("a/m.js", "")
	tr.steps("- {name: a, action: ./a}\n- {name: b, script: 'echo ${{ steps.a.outputs.x }}'}\n").succeed()
	require.Equal(t, "2\n", tr.log.String())
}

// Symptom: steps that run although the job has failed kept outputs and summaries in memory without a bound.
func TestResultsOfAllStepsAreBoundedTogether(t *testing.T) {
	racefree.Only(t)
	tr := newTrial(t)
	var steps strings.Builder
	for i := range 10 {
		fmt.Fprintf(&steps, "- {id: s%d, if: always(), run: '(printf a=; yes | tr -d \"\\n\" | head -c 8000000) >> "+
			"$GITHUB_OUTPUT; yes | head -c 1000000 > $GITHUB_STEP_SUMMARY; echo ::notice::x'}\n", i)
	}
	tr.workflow(steps.String() + "- {if: always(), run: 'echo \"[${{ steps.s3.outputs.a }}]\"'}\n")
	res := tr.fail("the outputs, exports and saved states of the job's steps have more than 33554432 bytes in all")
	all := res.Steps[0].Steps
	for i, s := range all[:10] {
		require.Equal(t, i < 3, len(s.Outputs) > 0, i)
		require.Equal(t, i < 9, s.Summary != "", i)
		require.Equal(t, i < 9, len(s.Annotations) > 0, i)
	}
	require.Contains(t, all[9].Warnings, "the summary and the annotations are left out: the job has too many")
	require.Equal(t, engine.Success, all[10].Status)
	require.Contains(t, tr.log.String(), "[]\n")
}
