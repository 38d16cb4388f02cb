package lang

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

func TestReferencesAreRead(t *testing.T) {
	git := func(url, rev, path, file string) *pb.Reference {
		return &pb.Reference{Protocol: pb.Reference_git, Url: url, Rev: rev, Path: path, File: file}
	}
	for text, want := range map[string]*pb.Reference{
		".":                {Protocol: pb.Reference_local, Path: "."},
		"..":               {Protocol: pb.Reference_local, Path: ".."},
		"./a":              {Protocol: pb.Reference_local, Path: "./a"},
		"../a/":            {Protocol: pb.Reference_local, Path: "../a"},
		"./a.yml":          {Protocol: pb.Reference_local, Path: ".", File: "a.yml"},
		"/a/b.yaml":        {Protocol: pb.Reference_local, Path: "/a", File: "b.yaml"},
		"/":                {Protocol: pb.Reference_local, Path: "/"},
		"/a.yml":           {Protocol: pb.Reference_local, Path: "/", File: "a.yml"},
		"builtin://script": {Protocol: pb.Reference_builtin, Path: "script"},
		"dist://script":    {Protocol: pb.Reference_builtin, Path: "script"},
		"gitlab.com/gitlab-org/components/steps/legacy/script@v1.0": {Protocol: pb.Reference_builtin, Path: "legacy/script"},

		"example.com/a/b@v1":           git("https://example.com/a/b", "v1", "steps", ""),
		"example.com/a/b@feature/x":    git("https://example.com/a/b", "feature/x", "steps", ""),
		"http://example.com/a@v1":      git("http://example.com/a", "v1", "steps", ""),
		"example.com/a/-/sub/x.yml@v1": git("https://example.com/a", "v1", "steps/sub", "x.yml"),
		"u:p@example.com/a@v1":         git("https://u:p@example.com/a", "v1", "steps", ""),
		"registry.example.com:5000/a/b:1": {
			Protocol: pb.Reference_oci, Registry: "registry.example.com:5000",
			Repository: "a/b", Tag: "1",
		},
		"registry.example.com/a:1 dir/func.yml": {
			Protocol: pb.Reference_oci, Registry: "registry.example.com",
			Repository: "a", Tag: "1", Path: "dir", File: "func.yml",
		},
		"zip+https://example.com/s.zip#sha256=0f&dir=a&file=b.yml": {
			Protocol: pb.Reference_zip, Url: "https://example.com/s.zip", Digest: "sha256:0f", Path: "a", File: "b.yml",
		},
		"zip+file:///tmp/s.zip":       {Protocol: pb.Reference_zip, Url: "file:///tmp/s.zip"},
		"zip+./tools/s.zip#dir=a":     {Protocol: pb.Reference_zip, Url: "./tools/s.zip", Path: "a"},
		"zip+../s.zip":                {Protocol: pb.Reference_zip, Url: "../s.zip"},
		"zip+/tmp/s.zip":              {Protocol: pb.Reference_zip, Url: "/tmp/s.zip"},
		"zip+https://a.b/s.zip?x=y@#": {Protocol: pb.Reference_zip, Url: "https://a.b/s.zip?x=y@"},
		"r.b/a/b@sha256:0f":           {Protocol: pb.Reference_oci, Registry: "r.b", Repository: "a/b", Digest: "sha256:0f"},
		"r.b:5000/a:1@sha256:0f d/e": {
			Protocol: pb.Reference_oci, Registry: "r.b:5000", Repository: "a", Tag: "1",
			Digest: "sha256:0f", Path: "d/e",
		},
		"example.com/a/b/c@v1": {
			Protocol: pb.Reference_git, Url: "https://example.com/a/b/c", Rev: "v1",
			Path: "steps", Open: true,
		},
		"http://u:p@a.b/c/d/e@v1": {
			Protocol: pb.Reference_git, Url: "http://u:p@a.b/c/d/e", Rev: "v1", Path: "steps",
			Open: true,
		},
		"example.com/a/b/c.git@v1":     git("https://example.com/a/b/c.git", "v1", "steps", ""),
		"example.com/a/b/c/-/d/x@v1":   git("https://example.com/a/b/c", "v1", "steps/d/x", ""),
		"example.com/a/b/c/-/x.yml@v1": git("https://example.com/a/b/c", "v1", "steps", "x.yml"),
	} {
		got, err := ParseReference(text)
		require.NoError(t, err, text)
		require.Equal(t, want.String(), got.String(), text)
	}
}

func TestReferencesThatMeanHarmAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "the reference is empty",
		"build":                             "the reference is invalid",
		"-oProxyCommand=x@v1":               "it begins with -",
		"a.b/c\n@v1":                        "a control character",
		"a.b/c":                             "no revision",
		"a.b/c@":                            "the revision of the reference is invalid",
		"a.b/c@-x":                          "the revision of the reference is invalid",
		"a.b/c@--upload-pack=touch x":       "the revision of the reference is invalid",
		"a.b/c@a..b":                        "the revision of the reference is invalid",
		"a.b/c@a@{1}":                       "the revision of the reference is invalid",
		"a.b/c/-/../../etc@v1":              ".. leads out of the repository",
		"ext::sh -c touch% x@v1":            "the protocol of the reference is not supported",
		"ssh://a.b/c@v1":                    "the protocol of the reference is not supported",
		"file:///etc@v1":                    "the protocol of the reference is not supported",
		"zip+ftp://a.b/c.zip":               "the protocol of the archive is not supported",
		"zip+https://a.b/c.zip#sha256=xyz":  "is not in hexadecimal",
		"zip+https://a.b/c.zip#dir=../a":    ".. leads out of the repository",
		"zip+https://a.b/c.zip#dir=/a":      ".. leads out of the repository",
		"zip+https://a.b/c.zip#file=a/b":    ".. leads out of the repository",
		"zip+https://a.b/c.zip#mode=1":      "after # there can be",
		"registry.example.com/a:1 ../x.yml": ".. leads out of the repository",
		"registry.example.com/a:":           "an image is written as",
		"registry.example.com/a@sha256:xyz": "is not in hexadecimal",
		"registry.example.com/a@sha256:":    "is not in hexadecimal",
		"a.b/c/../../d@v1":                  ".. leads out of the repository",
		"zip+steps.zip":                     "the protocol of the archive is not supported",
		"zip+":                              "the protocol of the archive is not supported",
	} {
		_, err := ParseReference(text)
		require.ErrorContains(t, err, want, text)
	}
}

func TestLongReferencesAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"{git: {url: 'ext::sh -c x', rev: v1}}":                           "the protocol of the reference is not supported",
		"{git: {url: a.b/c, rev: '--upload-pack=x'}}":                     "the revision of the reference is invalid",
		"{git: {url: '-x', rev: v1}}":                                     "begins with -",
		"{git: {url: a.b/c, rev: v1, dir: ../x}}":                         ".. leads out of the repository",
		"{git: {url: a.b/c, rev: v1, file: ../x.yml}}":                    ".. leads out of the repository",
		"{oci: {registry: r.example.com, repository: a, tag: 'a b'}}":     "an image is written as",
		"{git: {url: 'ssh://a.b/c', rev: v1}}":                            "the repository of the reference is invalid",
		"{git: {url: a.b/c, rev: '${{ jobs.x }}'}}":                       "jobs was not found",
		"{git: {url: a.b/c, rev: ''}}":                                    "rev is empty",
		"{git: {url: a.b/c, rev: v1}, oci: {registry: r}}":                "oci has no repository",
		"{git: {url: a.b/c, rev: v1, dir: \"a\\u0001\"}}":                 "a control character",
		"{oci: {registry: r.example.com, repository: a, tag: t, dir: /}}": ".. leads out of the repository",
	} {
		_, err := Parse("j", []byte("- step: "+text+"\n"))
		require.ErrorContains(t, err, want, text)
	}
}

func TestLongReferencesOfArchivesAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"{git: {url: a.b/c, rev: v1}, zip: {url: ./x.zip}}": "the reference has both git and zip",
		"{zip: {dir: x}}":                              "zip has no url",
		"{zip: {url: ./x.zip, sha256: xyz}}":           "is not in hexadecimal",
		"{zip: {url: x.zip}}":                          "the protocol of the archive is not supported",
		"{zip: {url: 'https://a.b/x.zip', rev: v1}}":   "unknown key",
		"{zip: {url: 'https://a.b/x.zip', dir: ../x}}": ".. leads out of the repository",
	} {
		_, err := Parse("j", []byte("- step: "+text+"\n"))
		require.ErrorContains(t, err, want, text)
	}
}

func TestDynamicReferencesAreResolvedAndCheckedLikeAnyOther(t *testing.T) {
	def, err := Parse("j", []byte(`
- step: ${{ vars.REF }}
- step: {git: {url: a.b/c, rev: "${{ vars.REV }}"}}
`))
	require.NoError(t, err)
	texts := map[string]string{"${{ vars.REF }}": "./x", "${{ vars.REV }}": "-x"}
	eval := func(template string) (string, error) {
		if text, ok := texts[template]; ok {
			return text, nil
		}
		return template, nil
	}
	short, long := def.GetSteps()[0].GetReference(), def.GetSteps()[1].GetReference()
	require.Equal(t, pb.Reference_dynamic, short.GetProtocol())
	got, err := Resolve(short, eval)
	require.NoError(t, err)
	require.Equal(t, pb.Reference_local, got.GetProtocol())

	require.Equal(t, pb.Reference_dynamic, long.GetProtocol())
	_, err = Resolve(long, eval)
	require.ErrorContains(t, err, "the revision of the reference is invalid")
	texts["${{ vars.REV }}"] = "v1"
	got, err = Resolve(long, eval)
	require.NoError(t, err)
	require.Equal(t, "https://a.b/c@v1", Describe(got))

	def, err = Parse("j", []byte(`- step: {zip: {url: "${{ vars.REF }}/s.zip", sha256: "0f", dir: d}}`))
	require.NoError(t, err)
	texts["${{ vars.REF }}/s.zip"] = "./x/s.zip"
	got, err = Resolve(def.GetSteps()[0].GetReference(), eval)
	require.NoError(t, err)
	require.Equal(t,
		(&pb.Reference{Protocol: pb.Reference_zip, Url: "./x/s.zip", Digest: "sha256:0f", Path: "d"}).String(), got.String())

	broken := errors.New("broken")
	_, err = Resolve(short, func(string) (string, error) { return "", broken })
	require.ErrorIs(t, err, broken)
}

func TestDescribeHasNoCredentials(t *testing.T) {
	for text, want := range map[string]string{
		"user:geheim@example.com/a@v1":          "https://example.com/a@v1",
		"zip+https://user:geheim@a.b/s.zip#x=":  "",
		"zip+https://user:geheim@a.b/s.zip":     "https://a.b/s.zip",
		"./a/b.yml":                             "a/b.yml",
		"registry.example.com/a:1 dir/func.yml": "registry.example.com/a:1",
		"registry.example.com/a:1@sha256:0f":    "registry.example.com/a:1@sha256:0f",
		"zip+https://a.b/s.zip?sig=geheim":      "https://a.b/s.zip",
	} {
		ref, err := ParseReference(text)
		if want == "" {
			require.NotContains(t, err.Error(), "geheim")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, Describe(ref))
	}
}

func FuzzParseReference(f *testing.F) {
	for _, seed := range []string{
		"./a.yml", "a.b/c/-/d@v1", "r.b/a:1 x.yml", "zip+https://a/b#sha256=0", "u:p@a/b@c",
		"a/b", "::", "/",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, err := ParseReference(text)
		if err != nil {
			return
		}
		require.NotEqual(t, pb.Reference_protocol_unspecified, ref.GetProtocol())
		require.False(t, strings.HasPrefix(ref.GetRev(), "-"))
		require.False(t, strings.HasPrefix(ref.GetUrl(), "-"))
		require.NotContains(t, ref.GetUrl(), "::")
		if ref.GetProtocol() != pb.Reference_local && ref.GetProtocol() != pb.Reference_builtin {
			require.False(t, hasDots(ref.GetPath()))
			require.NotContains(t, ref.GetFile(), "/")
		}
	})
}

func TestReferenceTableOfTheCases(t *testing.T) {
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	data, err := os.ReadFile(filepath.Join(root, "engine", "501-ref-table.json"))
	require.NoError(t, err)
	var c struct {
		Rows []struct {
			Ref       string
			Want      map[string]string
			WantError string `json:"want_error"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &c))
	for _, row := range c.Rows {
		t.Run(row.Ref, func(t *testing.T) {
			ref, err := ParseReference(row.Ref)
			if row.WantError != "" {
				require.ErrorContains(t, err, row.WantError)
				return
			}
			require.NoError(t, err)
			got := map[string]string{
				"protocol": ref.GetProtocol().String(), "path": ref.GetPath(), "file": ref.GetFile(), "url": ref.GetUrl(),
				"rev":      ref.GetRev(),
				"registry": ref.GetRegistry(), "repository": ref.GetRepository(), "tag": ref.GetTag(), "digest": ref.GetDigest(),
			}
			for key, want := range row.Want {
				if key != "note" {
					require.Equal(t, want, got[key], key)
				}
			}
		})
	}
}

// The rows are steps of a list and definitions of a step, alone.
func TestSchemaTableOfTheCases(t *testing.T) {
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	data, err := os.ReadFile(filepath.Join(root, "engine", "903-step-schema-table.json"))
	require.NoError(t, err)
	var c struct {
		Rows []struct {
			Doc string
			OK  bool
		}
	}
	require.NoError(t, json.Unmarshal(data, &c))
	for _, row := range c.Rows {
		t.Run(row.Doc, func(t *testing.T) {
			text := "spec: {}\n---\n" + row.Doc
			if strings.HasPrefix(row.Doc, "name:") {
				text = "spec: {}\n---\nrun:\n  - " + strings.ReplaceAll(strings.TrimSpace(row.Doc), "\n", "\n    ")
			}
			_, err := ParseStep("step.yml", []byte(text))
			require.Equal(t, row.OK, err == nil, "%v", err)
		})
	}
}
