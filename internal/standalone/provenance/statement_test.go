package provenance

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	link "github.com/in-toto/attestation/go/predicates/link/v0"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

const secret = "glpat-abcdef123456"

var (
	sum   = strings.Repeat("0a", 32)
	other = strings.Repeat("0b", 32)
)

// sample is a trace of a job that has one of everything, and a secret everywhere.
func sample(t testing.TB) *trace.Trace {
	t.Helper()
	s := mask.NewSalt()
	plain, err := expr.New(map[string]any{"a": []any{1, "b"}})
	require.NoError(t, err)
	hidden, err := expr.New(secret)
	require.NoError(t, err)
	exec := func(code int) *trace.Exec {
		return &trace.Exec{
			Argv:    []mask.Text{{Value: "bash"}, s.Text("echo " + secret)},
			WorkDir: mask.Text{Value: "@work/sub"}, ExitCode: &code,
			Program: &trace.Program{Path: mask.Text{Value: "/usr/bin/b c"}, Digest: trace.Digest{trace.SHA256: sum}},
			Interpreter: &trace.Program{
				Path:   mask.Text{Value: "@cache/" + sum + "/run"},
				Digest: trace.Digest{trace.SHA256: sum},
			},
		}
	}
	step := func(name string, c *trace.Component) trace.Step {
		step := trace.Step{
			Name: name, Kind: trace.KindExec, Status: trace.Success, Component: c, Exec: exec(0),
			Env:     mask.Texts{"TOKEN": s.Text(secret), "PATH": {Value: "/usr/bin"}},
			Outputs: mask.Values{"said": {Value: plain}, "secret": s.Value(hidden)},
		}
		step.Reference.Text.Value = "./" + name
		step.Logs.Stdout.SHA256, step.Logs.Stderr.SHA256 = sum, other
		return step
	}
	digest := func(kinds ...string) trace.Digest {
		d := trace.Digest{trace.SHA256Tree: other}
		for _, kind := range kinds {
			d[kind] = sum
			if kind == trace.GitCommit || kind == trace.GitTree {
				d[kind] = strings.Repeat("0c", 20)
			}
		}
		return d
	}
	steps := []trace.Step{
		step(
			"local",
			&trace.Component{Kind: trace.Local, Location: "@work/a b", File: "step.yml", Digest: digest(trace.SHA256)},
		),
		step(
			"git",
			&trace.Component{
				Kind:        trace.Git,
				Location:    "https://h/g/p",
				Version:     "main",
				ResolvedRef: "refs/heads/main",
				Digest:      digest(trace.GitCommit, trace.GitTree),
			},
		),
		step(
			"git256",
			&trace.Component{
				Kind:     trace.Git,
				Location: "https://h/g/q",
				Version:  "v1",
				Digest:   trace.Digest{trace.SHA256Tree: sum, trace.GitCommit: sum},
			},
		),
		step("zip", &trace.Component{Kind: trace.Zip, Location: "https://h/a.zip", Digest: digest(trace.SHA256)}),
		step("oci", &trace.Component{Kind: trace.OCI, Location: "h:5000/g/echo", Version: "1", Digest: digest(trace.SHA256)}),
		step("script", &trace.Component{Kind: trace.Builtin, Location: "script"}),
		{
			Name: "outer", Kind: trace.KindSteps, Status: trace.Failure, Component: &trace.Component{Kind: trace.Inline},
			Steps: []trace.Step{
				step(
					"local",
					&trace.Component{Kind: trace.Local, Location: "@work/a b", File: "step.yml", Digest: digest(trace.SHA256)},
				),
			},
		},
		{Name: "never", Status: trace.Skipped},
	}
	steps[5].Exec.ExitCode = new(3)
	runtime := trace.Runtime{OS: "linux", Arch: "amd64"}
	runtime.Runner.Version, runtime.Runner.Digest = "1.2", trace.Digest{trace.SHA256: sum}
	return &trace.Trace{
		Identity: trace.Identity{
			Job: trace.Job{
				Source: trace.Source{Kind: "gitlab-ci", JobName: "build", Digest: trace.Digest{trace.SHA256: sum}},
				Vars: map[string]trace.Variable{
					"PLAIN": {
						Value: mask.Text{Value: "p"},
					}, "TOKEN": {Value: s.Text(secret), Masked: true}, "HOLDS": {Value: s.Text("x" + secret)},
				},
				Env:    mask.Texts{"A": {Value: "b"}},
				OSEnv:  mask.Texts{"PATH": {Value: "/usr/bin"}},
				Inputs: mask.Values{"plain": {Value: plain}, "hidden": s.Value(hidden)},
			},
			Runtime: runtime,
			Steps:   steps, Status: trace.Failure,
		},
		Volatile: trace.Volatile{
			TraceID: "0f0f",
			Started: time.Unix(1700000000, 5).UTC(),
			Ended:   time.Unix(1700000002, 0).UTC(),
		},
		Secrets: s,
	}
}

// requireSecretless requires that nothing of a secret is in data.
func requireSecretless(t testing.TB, tr *trace.Trace, data []byte) {
	t.Helper()
	require.NotContains(t, string(data), secret)
	for _, text := range []string{secret, "x" + secret, "echo " + secret} {
		require.NotContains(t, string(data), tr.Secrets.Sum(text))
	}
	require.NotContains(t, string(data), "hmac")
}

// requireStatement requires that data is a statement by the rules of in-toto's specification, and reads its predicate
// into what is known of its type.
func requireStatement(t testing.TB, data []byte, kind string, predicate proto.Message) *intoto.Statement {
	t.Helper()
	s := &intoto.Statement{}
	require.NoError(t, protojson.Unmarshal(data, s), "%s", data) // nothing that is unknown
	require.NoError(t, s.Validate())
	require.Equal(t, "https://in-toto.io/Statement/v1", s.GetType())
	require.Equal(t, kind, s.GetPredicateType())
	names := map[string]bool{}
	for _, r := range s.GetSubject() {
		requireResource(t, r)
		require.NotEmpty(t, r.GetDigest())
		require.False(t, names[r.GetName()], "the names of subjects differ")
		names[r.GetName()] = true
	}
	inner, err := protojson.Marshal(s.GetPredicate())
	require.NoError(t, err)
	require.NoError(t, protojson.Unmarshal(inner, predicate), "%s", inner)
	return s
}

var digestForms = map[string]*regexp.Regexp{
	"sha256": regexp.MustCompile(`^[0-9a-f]{64}$`), "sha256tree": regexp.MustCompile(`^[0-9a-f]{64}$`),
	"gitCommit": regexp.MustCompile(`^[0-9a-f]{40}$`), "gitTree": regexp.MustCompile(`^[0-9a-f]{40}$`),
}

// requireResource requires that r is a ResourceDescriptor by its specification. It is stricter than the library.
func requireResource(t testing.TB, r *intoto.ResourceDescriptor) {
	t.Helper()
	require.NoError(t, r.Validate())
	require.True(
		t,
		r.GetUri() != "" || len(r.GetDigest()) > 0 || len(r.GetContent()) > 0,
		"%v has neither uri nor digest nor content",
		r,
	)
	for kind, digest := range r.GetDigest() {
		require.Contains(t, digestForms, kind)
		require.Regexp(t, digestForms[kind], digest)
	}
	if r.GetUri() != "" {
		u, err := url.Parse(r.GetUri())
		require.NoError(t, err)
		require.True(t, u.IsAbs(), "%s", r.GetUri())
		require.Nil(t, u.User)
	}
}

func TestProvenanceIsByTheRulesOfItsSchema(t *testing.T) {
	tr := sample(t)
	data, err := Statement(tr, Config{TraceName: "trace.json", TraceDigest: sum})
	require.NoError(t, err)
	requireSecretless(t, tr, data)
	p := &slsa.Provenance{}
	s := requireStatement(t, data, "https://slsa.dev/provenance/v1", p)
	require.NoError(t, p.Validate())
	require.Equal(t, "trace.json", s.GetSubject()[0].GetName())

	build := p.GetBuildDefinition()
	typeURI, err := url.Parse(build.GetBuildType())
	require.NoError(t, err)
	require.True(t, typeURI.IsAbs())
	external := build.GetExternalParameters().AsMap()
	require.Equal(
		t,
		map[string]any{"kind": "gitlab-ci", "job_name": "build", "digest": map[string]any{"sha256": sum}},
		external["source"],
	)
	require.Equal(t, map[string]any{"PLAIN": "p"}, external["vars"])
	require.Equal(t, []any{"HOLDS", "TOKEN"}, external["masked_vars"])
	require.Equal(t, map[string]any{"name": "local", "reference": "./local"}, external["steps"].([]any)[0])
	require.Equal(
		t,
		map[string]any{"plain": map[string]any{"a": []any{1.0, "b"}}, "hidden": "[MASKED]"},
		external["inputs"],
	)
	internal := build.GetInternalParameters().AsMap()
	require.Equal(t, []any{"PATH"}, internal["os_env"])

	uris := map[string]map[string]string{}
	for _, r := range build.GetResolvedDependencies() {
		requireResource(t, r)
		require.NotContains(t, uris, r.GetUri(), "each is there once")
		uris[r.GetUri()] = r.GetDigest()
	}
	require.Equal(t, map[string]map[string]string{
		"file:a%20b":          {"sha256tree": other},
		"file:a%20b/step.yml": {"sha256": sum},
		"git+https://h/g/p@refs/heads/main": {
			"sha256tree": other,
			"gitCommit":  strings.Repeat("0c", 20),
			"gitTree":    strings.Repeat("0c", 20),
		},
		"git+https://h/g/q@v1": {"sha256tree": sum},
		"https://h/a.zip":      {"sha256tree": other, "sha256": sum},
		"pkg:oci/echo@sha256%3A" + sum + "?repository_url=h%3A5000%2Fg%2Fecho&tag=1": {"sha256tree": other, "sha256": sum},
		"file:///usr/bin/b%20c": {"sha256": sum},
	}, uris)

	run := p.GetRunDetails()
	require.Equal(t, DefaultBuilder, run.GetBuilder().GetId())
	require.Equal(t, "0f0f", run.GetMetadata().GetInvocationId())
	for _, r := range run.GetByproducts() {
		requireResource(t, r)
	}
	var raw struct {
		Predicate struct {
			RunDetails struct {
				Metadata map[string]string
			}
		}
	}
	require.NoError(t, json.Unmarshal(data, &raw))
	for _, key := range []string{"startedOn", "finishedOn"} {
		at, err := time.Parse(time.RFC3339Nano, raw.Predicate.RunDetails.Metadata[key])
		require.NoError(t, err)
		require.Equal(t, time.UTC, at.Location())
	}
	again, err := Statement(tr, Config{TraceName: "trace.json", TraceDigest: sum})
	require.NoError(t, err)
	require.Equal(t, data, again)
}

func TestLinksAreByTheRulesOfTheirSchema(t *testing.T) {
	tr := sample(t)
	links, err := Links(tr, nil)
	require.NoError(t, err)
	require.Len(t, links, 7, "one for each command")
	files := map[string]bool{}
	names := []string{}
	for _, l := range links {
		requireSecretless(t, tr, l.Data)
		require.False(t, files[l.File])
		files[l.File] = true
		p := &link.Link{}
		requireStatement(t, l.Data, "https://in-toto.io/attestation/link/v0.3", p)
		names = append(names, p.GetName())
		require.Equal(t, []string{"bash", "[MASKED]"}, p.GetCommand())
		seen := map[string]bool{}
		for _, m := range p.GetMaterials() {
			requireResource(t, m)
			require.NotEmpty(t, m.GetName())
			require.NotEmpty(t, m.GetDigest())
			require.False(t, seen[m.GetName()], "the names of materials differ")
			seen[m.GetName()] = true
		}
		by := p.GetByproducts().AsMap()
		require.Equal(t, "sha256:"+sum, by["stdout"])
		require.Equal(t, by["return-value"], by["exit_code"])
		require.Equal(t, []any{"PATH", "TOKEN"}, p.GetEnvironment().AsMap()["variables"])
		if p.GetName() == "script" {
			require.InDelta(t, 3, by["exit_code"], 0)
		}
	}
	require.Equal(t, []string{"local", "git", "git256", "zip", "oci", "script", "outer/local"}, names)
	require.Contains(t, files, "007-outer-local.link.json")
}

func TestNamesOfATraceThatMeansHarmLeadNowhere(t *testing.T) {
	tr := sample(t)
	tr.Identity.Steps = tr.Identity.Steps[:1]
	tr.Identity.Steps[0].Name = "../../etc/" + strings.Repeat("x", 300)
	tr.Identity.Steps[0].Component.Digest = trace.Digest{"sha256": "../x", "sha256tree": "ABC", "md5": "x"}
	tr.Identity.Steps[0].Exec.Program.Digest = trace.Digest{"sha256": "no"}
	tr.Identity.Steps[0].Logs.Stdout.SHA256 = "no"
	links, err := Links(tr, nil)
	require.NoError(t, err)
	require.Regexp(t, `^001-_etc_x+\.link\.json$`, links[0].File)
	require.Less(t, len(links[0].File), 200)
	p := &link.Link{}
	requireStatement(t, links[0].Data, LinkType, p)
	require.Empty(t, p.GetMaterials(), "what has no digest is none")
	data, err := Statement(tr, Config{TraceName: "t", TraceDigest: sum})
	require.NoError(t, err)
	requireStatement(t, data, SLSA, &slsa.Provenance{})
}

// Symptom: a signed link of a deeply nested step got a name that is too long for a file, and one of two links replaced
// the other.
//
//stepmux:faults fetch | Two signed links have the same file name, or one that no file can have
func TestSignedLinksHaveNamesThatFilesCanHave(t *testing.T) {
	signer, _ := newSigner(t, "ed25519")
	deep := func(levels int) *trace.Trace {
		tr := sample(t)
		step := tr.Identity.Steps[0]
		step.Name = "name"
		for range levels {
			step = trace.Step{Name: strings.Repeat("x", 60), Steps: []trace.Step{step}}
		}
		tr.Identity.Steps = []trace.Step{step}
		return tr
	}
	links, err := Links(deep(3), signer)
	require.NoError(t, err)
	require.Regexp(t, `^(x{60}\.){3}name\.[0-9a-f]{8}\.link$`, links[0].File, "in-toto finds a link by the whole name")
	_, err = Links(deep(4), signer)
	require.EqualError(t, err, `step "`+strings.Repeat("x", 60)+`.xxx": the file name of its link would have 262 bytes, `+
		`and can have 255; shorten the names of the steps`)
	_, err = Links(deep(4), nil)
	require.NoError(t, err, "the names of other links are cut")

	tr := sample(t)
	tr.Identity.Steps = []trace.Step{tr.Identity.Steps[0], tr.Identity.Steps[0]}
	tr.Identity.Steps[0].Name, tr.Identity.Steps[1].Name = "a/b", "a b"
	_, err = Links(tr, signer)
	require.ErrorContains(t, err,
		`step "a b": the link of this step would have the file name of that of step "a/b", "a_b.`)
	_, err = Links(tr, nil)
	require.NoError(t, err, "the names of other links have numbers")
}

func TestBuilderMustBeAURI(t *testing.T) {
	for _, id := range []string{"x", "/x", ":", "https://user:pass@h/"} {
		_, err := Statement(sample(t), Config{Builder: id, TraceName: "t", TraceDigest: sum})
		require.ErrorContains(t, err, "builder")
	}
	data, err := Statement(sample(t), Config{Builder: "https://ci.example.com/x", TraceName: "t", TraceDigest: sum})
	require.NoError(t, err)
	p := &slsa.Provenance{}
	requireStatement(t, data, SLSA, p)
	require.Equal(t, "https://ci.example.com/x", p.GetRunDetails().GetBuilder().GetId())
	_, err = Statement(sample(t), Config{TraceName: "t", TraceDigest: "none"})
	require.Error(t, err)
}

func TestSubjectsAreFilesOfTheDirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "dist"), 0o755))
	for _, name := range []string{"dist/a.tar", "dist/b.tar", "c"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "dist/fifo.tar"), 0o600))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	found, err := Subjects(dir, []string{"dist/*.tar", "dist/a.tar", "c"})
	require.NoError(t, err)
	require.Len(t, found, 3)
	require.Equal(t, "c", found[0].Name)
	require.Equal(t, "dist/a.tar", found[1].Name)
	for _, pattern := range []string{"nothing", "dist", "out", "../*", "/etc/passwd", "[", "dist/fifo.tar"} {
		_, err := Subjects(dir, []string{pattern})
		require.ErrorContains(t, err, "subject", pattern)
	}
	data, err := Statement(sample(t), Config{TraceName: "t", TraceDigest: sum, Subjects: found})
	require.NoError(t, err)
	require.Len(t, requireStatement(t, data, SLSA, &slsa.Provenance{}).GetSubject(), 3)
}
