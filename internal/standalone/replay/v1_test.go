package replay

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone/inspect"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// testdata/v1 has traces that the last version of stepmux to write steptrace/v1 left, and the project they are of.
func TestTracesOfTheFirstVersionAreReplayed(t *testing.T) {
	for file, said := range map[string]string{
		"job.json":       "two saw fixed yes",
		"gitlab-ci.json": "top/x",
		"blueprint.json": "hello you yes",
		"json.json":      "json",
	} {
		t.Run(file, func(t *testing.T) {
			tr := newTrial(t)
			root := os.DirFS("testdata/v1/project")
			require.NoError(t, fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				text, err := fs.ReadFile(root, name)
				tr.file(name, string(text))
				return err
			}))
			old, err := trace.Read(filepath.Join("testdata/v1", file))
			require.NoError(t, err)
			require.Equal(t, "steptrace/v1", old.Schema)
			p, err := tr.prepare(old, func(c *Config) {
				c.Runtime = IgnoreRuntime
				if file == "job.json" {
					c.Secrets = map[string]string{"TOKEN": "glpat-abcdef123456"}
				}
			})
			require.NoError(t, err)
			result, err := p.Run(t.Context(), t.Context(), old, 1, inspect.Ignore{Runtime: true}, tr.config(), nil)
			require.NoError(t, err)
			tr.requireSame(result)
			require.Contains(t, tr.log.String(), said)
		})
	}
}
