package gitlabci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files of testdata/real use the same keys as files of real projects.
func TestFilesOfRealShapes(t *testing.T) {
	dir := filepath.Join("testdata", "real")
	read := func(name string, given ...Variable) *File {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		file, err := Read(name, text, Config{
			Open:       func(path string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, path)) },
			List:       func() ([]string, error) { return []string{"ci/setup.yml", "go.yml"}, nil },
			Changed:    func(string) ([]string, error) { return []string{"packages/api/x.js"}, nil },
			ProjectDir: "/p", Given: given,
		})
		require.NoError(t, err)
		require.Empty(t, file.Check(nil))
		return file
	}
	main := []Variable{{"CI_COMMIT_BRANCH", "main"}, {"CI_DEFAULT_BRANCH", "main"}}
	for _, c := range []struct {
		file, job string
		given     []Variable
		script    string
		vars      map[string]string
		notices   []string // parts of them
		silent    string   // no part of them
	}{
		{
			file: "go.yml", job: "test", given: main,
			script: "mkdir -p \"$GOPATH\"\ngo vet ./...\nif [ -n \"$RACE\" ]; then\n  go test -race ./...\nfi\n",
			vars:   map[string]string{"GOPATH": "/p/.go", "PUBLISH": "no"},
			notices: []string{
				`not done here, but by a server or runner: artifacts, cache, coverage, image, include: template ` +
					`"Jobs/SAST.gitlab-ci.yml", include: project "platform/ci" "/go/lint.yml"`,
			},
			silent: "workflow",
		},
		{
			file: "go.yml", job: "goreleaser", given: []Variable{{"CI_COMMIT_TAG", "v1.2.3"}},
			script: "mkdir -p \"$GOPATH\"\ngoreleaser release --clean",
			vars:   map[string]string{"PUBLISH": "yes"}, silent: "rules",
		},
		{
			file: "go.yml", job: "goreleaser", given: main, script: "mkdir -p \"$GOPATH\"\ngoreleaser release --clean",
			notices: []string{"would not have this job"},
		},
		{
			file: "node.yml", job: "unit tests: [api, 20]", given: []Variable{{"CI_COMMIT_BRANCH", "Fix/x"}},
			script: "npm ci --no-audit\necho ready\ncd \"packages/$PACKAGE\"\nnpm test -- $EXTRA",
			vars: map[string]string{
				"NODE_VERSION": "20", "CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "5",
				"npm_config_cache": "/p/.npm",
			},
			notices: []string{"image, retry"}, silent: "would not",
		},
		{
			file: "node.yml", job: "unit tests: [web, 22]", given: []Variable{{"CI_COMMIT_BRANCH", "Fix/x"}},
			script:  "npm ci --no-audit\necho ready\ncd \"packages/$PACKAGE\"\nnpm test -- $EXTRA",
			notices: []string{"would not have"},
		},
		{
			file: "node.yml", job: "e2e 2/3", script: "npm ci --no-audit\necho ready\nnpx playwright test " +
				"--shard=\"$CI_NODE_INDEX/$CI_NODE_TOTAL\"",
			vars: map[string]string{"CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "3"}, notices: []string{"image, needs, services"},
			silent: "retry",
		},
		{
			file: "node.yml", job: "pages", script: "npm ci --no-audit\necho ready\nnpm run docs",
			notices: []string{"artifacts, environment, image, pages, retry", "this job, by its only and except"},
		},
		{
			file: "infra.yml", job: "apply prod", given: main, script: "cd \"$TF_ROOT\"\nterraform apply plan",
			vars:    map[string]string{"TF_ROOT": "env/prod", "TF_IN_AUTOMATION": "true"},
			notices: []string{"when: manual", "dependencies, environment, id_tokens, image, resource_group, timeout"},
			silent:  "allow_failure",
		},
		{file: "infra.yml", job: "modules", notices: []string{"the job starts another pipeline", "would not have this job"}},
	} {
		j, err := read(c.file, c.given...).Job(c.job)
		require.NoError(t, err, c.job)
		require.Equal(t, c.script, script(j), c.job)
		v := values(j)
		for name, want := range c.vars {
			require.Equal(t, want, v[name], "%s: %s", c.job, name)
		}
		notices := strings.Join(j.Notices, "\n")
		for _, want := range c.notices {
			require.Contains(t, notices, want, c.job)
		}
		if c.silent != "" {
			require.NotContains(t, notices, c.silent, c.job)
		}
	}
}
