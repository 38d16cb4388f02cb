package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/inspect"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// example is a user of examples/sources.
type example struct {
	t       *testing.T
	sources *fetchtest.Sources
	program string
	dir     string // the directory of the user
	vars    []string
}

func newExample(t *testing.T) *example {
	t.Helper()
	files, err := filepath.Abs("../../examples/sources")
	require.NoError(t, err)
	project := filepath.Join(t.TempDir(), "project")
	require.NoError(t, os.CopyFS(project, os.DirFS(files)))
	s := fetchtest.ServeSources(t, t.TempDir(), os.DirFS(files))
	return &example{
		t: t, sources: s, program: runnertest.Manager(t), dir: fetchtest.CacheDir(t),
		vars: []string{
			project + "/job.yml", "--var", "PROJECT=" + project, "--var", "GIT=" + s.Git, "--var", "ZIP=" + s.Zip,
			"--var", "IMAGE=" + s.Image,
		},
	}
}

// run runs stepmux and returns its output and exit code.
func (e *example) run(args ...string) (stdout, stderr string, code int) {
	e.t.Helper()
	cmd := exec.Command(e.program, args...)
	cmd.Dir = e.dir
	// Without isolation, which hides the project: it is in /tmp.
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + e.dir, "TMPDIR=" + sshtest.SocketDir(e.t), vmconfig.LevelVar + "=off",
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) {
		require.NoError(e.t, err)
	}
	return out.String(), said.String(), cmd.ProcessState.ExitCode()
}

// well is run for a command that must succeed.
func (e *example) well(args ...string) string {
	e.t.Helper()
	stdout, stderr, code := e.run(args...)
	require.Zero(e.t, code, "%s%s", stdout, stderr)
	return stdout
}

func (e *example) trace(name string) *trace.Trace {
	e.t.Helper()
	t, err := trace.Read(filepath.Join(e.dir, name))
	require.NoError(e.t, err)
	return t
}

const inTheEnd = "in the end image(zip(git(local(you))))\n"

func TestExampleOfAllSourcesIsRunAndReplayed(t *testing.T) {
	e := newExample(t)
	out := e.well(append([]string{"local", "--output-file", "trace.json", "--provenance", "provenance.json"},
		e.vars...)...)
	require.Contains(t, out, inTheEnd)
	first := e.trace("trace.json")
	kinds := []string{}
	for _, s := range first.Identity.Steps {
		kinds = append(kinds, s.Component.Kind)
	}
	require.Equal(t, []string{trace.Local, trace.Git, trace.Zip, trace.OCI, trace.Builtin}, kinds)
	commit := first.Identity.Steps[1].Component.Digest[trace.GitCommit]
	require.Equal(t, e.sources.Repository.Git("rev-parse", "main"), commit)

	shown := e.well("trace", "show", "trace.json")
	require.Contains(t, shown, "git "+e.sources.Git+"@main ("+commit+") in steps/step.yml")

	var provenance struct {
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct {
					URI    string
					Digest map[string]string
				}
			}
		}
	}
	data, err := os.ReadFile(filepath.Join(e.dir, "provenance.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &provenance))
	found := map[string]map[string]string{}
	for _, d := range provenance.Predicate.BuildDefinition.ResolvedDependencies {
		uri, _, _ := strings.Cut(d.URI, "?")
		found[uri] = d.Digest
	}
	require.Equal(t, commit, found["git+"+e.sources.Git+"@refs/heads/main"]["gitCommit"])
	require.Contains(t, found, e.sources.Zip)
	require.Contains(t, found, "pkg:oci/echo@sha256%3A"+first.Identity.Steps[3].Component.Digest[trace.SHA256])

	// New commits on the branch, and another tag and archive, do not affect the replay.
	other := fetchtest.Texts(map[string]string{
		"steps/step.yml": "spec: {}\n---\nexec: {command: [echo, other]}\n",
		"step.yml":       "spec: {}\n---\nexec: {command: [echo, other]}\n",
	})
	e.sources.Repository.Commit("main", other)
	e.sources.Replace(t, other, other)
	out = e.well("replay", "trace.json", "--output-file", "again.json")
	require.Contains(t, out, inTheEnd)
	e.well("replay", "trace.json", "--offline")
	require.Equal(t, first.ID, e.trace("again.json").ID)
	require.Empty(t, e.well("trace", "diff", "trace.json", "again.json"))

	// A missing archive is reported before anything runs. The commit still exists.
	out, stderr, code := e.run("replay", "trace.json", "--cache-dir", filepath.Join(e.dir, "empty"))
	require.Equal(t, exitRefused, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "step zip: "+e.sources.Zip)
	require.NotContains(t, stderr, "step git:")
}

func TestExampleOfAllSourcesLeavesTheSameTraceOnVMs(t *testing.T) {
	e := newExample(t)
	e.well(append([]string{"local", "--output-file", "trace.json"}, e.vars...)...)
	first := e.trace("trace.json")
	vm := sshtest.OpenSSH(t)
	for name, where := range map[string][]string{
		"embedded": nil,
		"openssh": {
			"--instance", "ssh://" + vm.User + "@" + vm.Addr, "--identity", vm.IdentityFile, "--known-hosts", vm.KnownHosts,
			"--runner-command", runnertest.Command(t)[0],
		},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"run", "--output-file", name + ".json", "--provenance", name + ".provenance.json"}, where...)
			require.Contains(t, e.well(append(args, e.vars...)...), inTheEnd)
			requireSameSteps(t, first, e.trace(name+".json"))
			data, err := os.ReadFile(filepath.Join(e.dir, name+".provenance.json"))
			require.NoError(t, err)
			require.Contains(t, string(data), "git+"+e.sources.Git+"@refs/heads/main")
			require.Contains(t, e.well("replay", name+".json"), inTheEnd)
		})
	}
}

// requireSameSteps requires that two traces have the same job and the same steps, except for the
// environment of the machine.
func requireSameSteps(t *testing.T, a, b *trace.Trace) {
	t.Helper()
	for _, tr := range []*trace.Trace{a, b} {
		tr.Identity.Job.Source = trace.Source{}
		tr.Identity.Job.Env, tr.Identity.Job.OSEnv = nil, nil
		tr.Identity.Runtime.Runner.Digest = nil // the VM's end is a program of its own
		for i := range tr.Identity.Steps {
			tr.Identity.Steps[i].Env = nil
		}
	}
	c, err := inspect.Compare(a, b, inspect.Ignore{})
	require.NoError(t, err)
	require.Empty(t, c.Differences)
	require.Len(t, a.Identity.Steps, len(b.Identity.Steps))
}
