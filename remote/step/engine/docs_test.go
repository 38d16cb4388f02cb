package engine

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// example is a job of a page, with the files it needs and the expected result.
type example struct {
	job    string
	files  map[string]string
	output *string
	err    string
}

// examples reads the examples of a page. One begins with a block whose first line is "# job.yml"; blocks
// of other files follow, and blocks of the languages output and error.
func examples(t *testing.T, page string) []*example {
	t.Helper()
	data, err := os.ReadFile(page)
	require.NoError(t, err)
	var all []*example
	for i, block := range strings.Split(string(data), "\n```") {
		if i%2 == 0 {
			continue
		}
		language, text, found := strings.Cut(block, "\n")
		require.True(t, found)
		text += "\n"
		first, _, _ := strings.Cut(text, "\n")
		name, isFile := strings.CutPrefix(first, "# ")
		switch {
		case name == "job.yml" && isFile:
			all = append(all, &example{job: text, files: map[string]string{}})
		case language == "output":
			all[len(all)-1].output = &text
		case language == "error":
			all[len(all)-1].err = strings.TrimSpace(text)
		case isFile:
			all[len(all)-1].files[name] = text
		default:
			t.Fatalf("a block is none of an example: %s", text)
		}
	}
	return all
}

// archives returns the files, with those in a directory that is called like an archive in one.
func (e *example) archives(t *testing.T) map[string]string {
	t.Helper()
	files, inside := map[string]string{}, map[string]map[string]string{}
	for name, text := range e.files {
		archive, path, found := strings.Cut(name, ".zip/")
		if !found {
			files[name] = text
			continue
		}
		if inside[archive] == nil {
			inside[archive] = map[string]string{}
		}
		inside[archive][path] = text
	}
	for archive, texts := range inside {
		files[archive+".zip"] = string(fetchtest.Zip(t, fetchtest.Texts(texts)))
	}
	return files
}

func TestExamplesOfTheLanguagePageAreRight(t *testing.T) {
	all := examples(t, "../../../docs/language.md")
	require.Greater(t, len(all), 10)
	for _, e := range all {
		t.Run(strings.ReplaceAll(e.job, "\n", " "), func(t *testing.T) {
			require.True(t, e.output != nil || e.err != "", "the example says nothing of what comes of it")
			if _, err := lang.Parse("job.yml", []byte(e.job)); err != nil {
				require.EqualError(t, err, e.err)
				return
			}
			tr := newTrial(t, e.job, func(c *Config) {
				c.Vars = []Variable{{Key: "NAME", Value: "World"}, {Key: "TOKEN", Value: "secret-token", Masked: true}}
				c.Env = map[string]string{"TARGET": "release"}
			}, withStore(t)).files(e.archives(t))
			res := tr.run()
			require.Equal(t, e.err, res.Message)
			if e.output != nil {
				require.Equal(t, *e.output, tr.stdout.String())
			}
		})
	}
}
