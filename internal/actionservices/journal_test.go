package actionservices_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/actionservices"
)

// resumable is a job whose uploads outlive the process.
var resumable = actionservices.Job{Run: "1", Name: "a", Key: "key-of-the-job-1", Began: time.Unix(1e9, 0)}

// process starts services that share a directory with others, and begins the job there.
func process(t *testing.T, dir string) (c caller, s *actionservices.Server, end func() bool) {
	s, url := serve(t, actionservices.Config{Dir: dir, Resume: true, Secret: []byte("x")})
	token, end := s.Begin(resumable)
	return caller{t, url, token}, s, end
}

// at returns a signed URL for another process.
func (c caller) at(signed string) string { return c.url + signed[strings.Index(signed, "/uploads"):] }

// text returns the content of an artifact.
func (c caller) text(name string) string {
	_, said := c.do("POST", artifactService+"GetSignedArtifactURL", []byte(`{"name":"`+name+`"}`))
	answer, err := http.Get(said["signed_url"].(string))
	require.NoError(c.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(c.t, err)
	return string(text)
}

const list = `<BlockList><Latest>z</Latest><Latest>x</Latest><Latest>y</Latest></BlockList>`

// A process that is killed loses no piece that it has acknowledged. Nothing is left when the job has ended.
func TestAnUploadGoesOnInTheNextProcess(t *testing.T) {
	dir := t.TempDir()
	first, _, _ := process(t, dir)
	to := first.upload("a")
	other := first.upload("other")
	for block, text := range map[string]string{"x": "one", "y": "two"} {
		status, _ := first.do("PUT", to+"&comp=block&blockid="+block, []byte(text))
		require.Equal(t, http.StatusCreated, status)
	}
	status, _ := first.do("PUT", other+"&comp=appendblock", []byte("123"))
	require.Equal(t, http.StatusCreated, status)

	second, _, _ := process(t, dir) // the first was killed
	status, _ = second.do("PUT", second.at(to)+"&comp=block&blockid=z", []byte("zero"))
	require.Equal(t, http.StatusCreated, status)
	status, said := second.do("PUT", second.at(to)+"&comp=blocklist", []byte(list))
	require.Equal(t, http.StatusCreated, status, said)

	third, s, end := process(t, dir)
	status, said = third.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"a","size":10}`))
	require.Equal(t, http.StatusOK, status, said)
	require.Equal(t, "zeroonetwo", third.text("a"))
	s.Leave(third.token)
	end() // as when another process has the job: it removes nothing
	fourth, _, end := process(t, dir)
	status, _ = fourth.do("PUT", fourth.at(other)+"&comp=appendblock", []byte("456"))
	require.Equal(t, http.StatusCreated, status)
	status, said = fourth.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"other","size":6}`))
	require.Equal(t, http.StatusOK, status, said)
	require.Equal(t, "123456", fourth.text("other"))
	_ = fourth.upload("more")
	end()
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 2, "the artifacts")
}

// A piece that the journal lacks is missing, and an upload of another boot is gone.
func TestAJournalThatIsCutOrOldIsTold(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(string) string
		want int
	}{
		"whole":  {func(text string) string { return text }, http.StatusOK},
		"cut":    {func(text string) string { return text[:len(text)-3] }, http.StatusBadRequest},
		"lines":  {func(text string) string { return text + "{x" }, http.StatusOK},
		"lies":   {func(text string) string { return text + `{"from":5,"to":-1}` + "\n" }, http.StatusNotFound},
		"reboot": {func(text string) string { return strings.Replace(text, `ot":"`, `ot":"0`, 1) }, http.StatusNotFound},
		"empty":  {func(string) string { return "" }, http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first, _, _ := process(t, dir)
			to := first.upload("a")
			for _, text := range []string{"one", "two"} {
				status, _ := first.do("PUT", to+"&comp=appendblock", []byte(text))
				require.Equal(t, http.StatusCreated, status)
			}
			journals, err := filepath.Glob(filepath.Join(dir, "*.log"))
			require.NoError(t, err)
			require.Len(t, journals, 1)
			text, err := os.ReadFile(journals[0])
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(journals[0], []byte(test.edit(string(text))), 0o600))
			second, s, end := process(t, dir)
			status, said := second.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"a","size":6}`))
			require.Equal(t, test.want, status, said)
			end()
			names, err := filepath.Glob(filepath.Join(dir, "*"))
			require.NoError(t, err)
			require.Len(t, names, map[bool]int{true: 1}[status == http.StatusOK])

			first, _, _ = process(t, dir)
			_ = first.upload("old")
			s.Sweep()
			day := time.Now().Add(-25 * time.Hour)
			journals, err = filepath.Glob(filepath.Join(dir, "*.log"))
			require.NoError(t, err)
			require.Len(t, journals, 1)
			require.NoError(t, os.Chtimes(journals[0], day, day))
			s.Sweep()
			left, err := filepath.Glob(filepath.Join(dir, "*"))
			require.NoError(t, err)
			require.Equal(t, names, left)
		})
	}
}
