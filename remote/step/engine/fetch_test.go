package engine

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

// withStore lets a job fetch, into a cache of its own.
func withStore(t testing.TB) func(*Config) {
	t.Helper()
	store, err := fetch.New(fetch.Config{Dir: filepath.Join(fetchtest.CacheDir(t), "cache")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return func(c *Config) { c.Fetcher = store }
}

// says is a step that prints text.
func says(text string) string {
	return "spec: {}\n---\nexec: {command: [echo, '" + text + "']}\n"
}

// serveSteps serves repositories, each with its steps on the branch main and as the tag v1.
func serveSteps(
	t testing.TB,
	repositories map[string]map[string]string,
) (s *fetchtest.GitServer, all map[string]*fetchtest.Repository) {
	t.Helper()
	root := t.TempDir()
	s = fetchtest.ServeGit(t, root)
	all = map[string]*fetchtest.Repository{}
	for name, texts := range repositories {
		for file, text := range texts {
			texts[file] = strings.ReplaceAll(text, "@HOST@", s.URL)
		}
		r := fetchtest.NewRepository(t, filepath.Join(root, name))
		r.Git("tag", "v1", r.Commit("main", fetchtest.Texts(texts)))
		all[name] = r
	}
	return s, all
}

func TestStepOfARepositoryRunsAndSaysWhereItIsFrom(t *testing.T) {
	s, all := serveSteps(t, map[string]map[string]string{"c/echo": {
		"steps/step.yml":       "spec: {}\n---\nrun: [{name: i, step: ./inner}, {name: o, step: ../other/x.yml}]\n",
		"steps/inner/step.yml": says("inner"), "other/x.yml": says("other"),
	}})
	tr := newTrial(t, "- {name: a, step: '"+s.URL+"/c/echo@v1'}\n- {name: b, script: echo local}\n", withStore(t))
	res := tr.succeed()
	require.Equal(t, "inner\nother\nlocal\n", tr.stdout.String())
	source := res.Steps[0].Source
	require.Equal(t, all["c/echo"].Git("rev-parse", "main"), source.Commit)
	require.Equal(t, "refs/tags/v1", source.ResolvedRef)
	require.Nil(t, res.Steps[1].Source)
}

func TestStepIsFetchedWhenItsTurnHasCome(t *testing.T) {
	s, _ := serveSteps(t, nil)
	res := newTrial(t, "- {name: a, script: echo ran}\n- {name: b, step: '"+s.URL+"/c/none@v1'}\n", withStore(t)).
		fail(`step "b": fetch ` + s.URL + `/c/none@v1: the server does not have it (HTTP status 404), or shows it to ` +
			`others only; check the address and the credentials`)
	require.False(t, res.Invalid)
	require.Equal(t, []string{"a success", "b failure"}, statuses(res.Steps))
}

func TestErrorsOfFetchedStepsSayWhereTheyAre(t *testing.T) {
	s, _ := serveSteps(t, map[string]map[string]string{"c/echo": {
		"steps/bad/step.yml": "{}\n---\nexec: {comand: [a]}\n",
	}})
	newTrial(t, "- {name: a, step: '"+s.URL+"/c/echo/-/bad@v1'}\n", withStore(t)).
		fail(`step "a": ` + s.URL + `/c/echo@v1 in steps/bad/step.yml:3:8: unknown key "comand", did you mean "command"?`)
	newTrial(t, "- {name: a, step: '"+s.URL+"/c/echo/-/none@v1'}\n", withStore(t)).
		fail(`step "a": find step ` + s.URL + `/c/echo@v1 in steps/none: it has neither func.yml nor step.yml: file does ` +
			`not exist`)
}

func TestBranchIsTheSameCommitForTheWholeJob(t *testing.T) {
	s, all := serveSteps(
		t,
		map[string]map[string]string{"c/echo": {"steps/step.yml": says("first"), "steps/b/step.yml": says("first")}},
	)
	moved := false
	list := "- {name: a, step: '" + s.URL + "/c/echo@main'}\n- {name: b, step: '" + s.URL + "/c/echo/-/b@main'}\n"
	tr := newTrial(t, list, withStore(t), func(c *Config) {
		c.Observe = func(r StepResult) {
			if r.Name == "a" && r.Status == Success {
				all["c/echo"].Commit("main", fetchtest.Texts(map[string]string{"steps/b/step.yml": says("second")}))
				moved = true
			}
		}
	})
	tr.succeed()
	require.True(t, moved)
	require.Equal(t, "first\nfirst\n", tr.stdout.String())
}

func TestRepositoriesThatCallEachOtherFail(t *testing.T) {
	s, _ := serveSteps(t, map[string]map[string]string{
		"c/one": {"steps/step.yml": "spec: {}\n---\nrun: [{name: next, step: '@HOST@/c/two@v1'}]\n"},
		"c/two": {"steps/step.yml": "spec: {}\n---\nrun: [{name: next, step: '@HOST@/c/one@v1'}]\n"},
	})
	res := newTrial(t, "- {name: a, step: '"+s.URL+"/c/one@v1'}\n", withStore(t)).run()
	require.Equal(t, Failure, res.Status)
	require.Contains(t, res.Message, "beyond a depth of 32")
	require.Equal(t, 2, s.Fetches())
}

func TestJobTokenIsPresentedToItsServer(t *testing.T) {
	s, _ := serveSteps(t, map[string]map[string]string{"c/private": {"steps/step.yml": says("private")}})
	s.User, s.Password = "gitlab-ci-token", "s3cr3t-t0ken"
	vars := func(url string) func(*Config) {
		return func(c *Config) {
			c.Vars = []Variable{{Key: "CI_JOB_TOKEN", Value: "s3cr3t-t0ken", Masked: true}, {Key: "CI_SERVER_URL", Value: url}}
		}
	}
	list := "- {name: a, step: '" + s.URL + "/c/private@v1'}\n"
	tr := newTrial(t, list, withStore(t), vars(s.URL))
	tr.succeed()
	require.Equal(t, "private\n", tr.stdout.String())
	res := newTrial(t, list, withStore(t), vars("http://other.example")).run()
	require.Contains(t, res.Message, "the server wants credentials (HTTP status 401)")
}

func TestPasswordInAReferenceIsMasked(t *testing.T) {
	s, _ := serveSteps(t, map[string]map[string]string{"c/private": {"steps/step.yml": says("g3heim-w0rt")}})
	s.User, s.Password = "ci", "g3heim-w0rt"
	s.Before = func(http.ResponseWriter, *http.Request) bool { return false }
	tr := newTrial(
		t,
		"- {name: a, step: '"+strings.Replace(s.URL, "//", "//ci:g3heim-w0rt@", 1)+"/c/private@v1'}\n",
		withStore(t),
	)
	tr.succeed()
	require.Equal(t, "[MASKED]\n", tr.stdout.String())
}

func TestArchiveOfTheProjectIsOneOfItsDefinition(t *testing.T) {
	inner := fetchtest.Zip(t, fetchtest.Texts(map[string]string{
		"a/step.yml": says("inner"), "out/step.yml": "spec: {}\n---\nrun: [{name: i, step: 'zip+../../s.zip'}]\n",
		"file/step.yml":   "spec: {}\n---\nrun: [{name: i, step: 'zip+file:///etc/s.zip'}]\n",
		"colon/step.yml":  "spec: {}\n---\nrun: [{name: i, step: 'zip+file:///etc/a://s.zip'}]\n",
		"colon2/step.yml": "spec: {}\n---\nrun: [{name: i, step: 'zip+/etc/a://s.zip'}]\n",
		"colon3/step.yml": "spec: {}\n---\nrun: [{name: i, step: 'zip+/etc/%/a://s.zip'}]\n",
	}))
	files := map[string]string{
		"tools/s.zip":        string(inner),
		"tools/use/step.yml": "spec: {}\n---\nrun: [{name: i, step: 'zip+../s.zip#dir=a'}]\n",
	}
	tr := newTrial(
		t,
		"- {name: a, step: 'zip+./tools/s.zip#dir=a'}\n- {name: b, step: {zip: {url: ./tools/s.zip, dir: a, file: "+
			"step.yml}}}\n- {name: c, step: ./tools/use}\n",
		withStore(t),
	).files(files)
	tr.succeed()
	require.Equal(t, strings.Repeat("inner\n", 3), tr.stdout.String())
	for _, dir := range []string{"out", "file", "colon", "colon2", "colon3"} {
		res := newTrial(t, "- {name: a, step: 'zip+./tools/s.zip#dir="+dir+"'}\n", withStore(t)).files(files).run()
		require.Contains(t, res.Message, "the step's path is outside of the fetched component", dir)
	}
}

func TestComponentIsKeptUntilTheJobHasEnded(t *testing.T) {
	dir := filepath.Join(fetchtest.CacheDir(t), "cache")
	store, err := fetch.New(fetch.Config{Dir: dir, MaxBytes: 3000})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	use := func(c *Config) { c.Fetcher = store }
	archive := func(text string) string {
		return string(
			fetchtest.Zip(t, fetchtest.Texts(map[string]string{"step.yml": says("x"), "data": strings.Repeat(text, 2000)})),
		)
	}
	files := map[string]string{"a.zip": archive("a"), "b.zip": archive("b"), "c.zip": archive("c")}
	tr := newTrial(
		t,
		"- {name: a, step: zip+./a.zip}\n- {name: b, step: zip+./b.zip}\n- {name: look, script: ls "+dir+"/v1/comp | wc "+
			"-l}\n",
		use,
	).files(files)
	tr.succeed()
	require.Equal(t, "x\nx\n2\n", tr.stdout.String())
	newTrial(t, "- {name: c, step: zip+./c.zip}\n", use).files(files).succeed()
	entries, err := os.ReadDir(filepath.Join(dir, "v1", "comp"))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}
