package replay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/trace"
)

func TestStepsOfAFetchedStepAreRepeatedWithIt(t *testing.T) {
	root := t.TempDir()
	server := fetchtest.ServeGit(t, root)
	r := fetchtest.NewRepository(t, filepath.Join(root, "c/nest"))
	r.Commit("main", fetchtest.Texts(map[string]string{
		"steps/step.yml": "spec: {}\n---\nrun:\n- {name: inner, step: ./inner}\n- {name: script, script: 'cat ${{ " +
			"step_dir }}/text'}\n",
		"steps/text": "a text\n", "steps/inner/step.yml": "spec: {}\n---\nexec: {command: [echo, inner]}\n",
	}))
	tr := newTrial(t)
	first := tr.record("- {name: a, step: '" + server.URL + "/c/nest@main'}\n")
	require.Equal(t, trace.Success, first.Identity.Status, "%s", first.Volatile.Message)
	require.Len(t, first.Identity.Steps[0].Steps, 2)
	elsewhere := newTrial(t) // another project, another cache
	elsewhere.requireSame(elsewhere.replay(first))
	require.Contains(t, elsewhere.log.String(), "inner\na text\n")
}

func TestArchiveOfTheProjectIsRepeatedWhereTheProjectIs(t *testing.T) {
	archive := fetchtest.Zip(
		t,
		fetchtest.Texts(map[string]string{"step.yml": "spec: {}\n---\nexec: {command: [echo, zipped]}\n"}),
	)
	tr, elsewhere := newTrial(t), newTrial(t)
	for _, project := range []*trial{tr, elsewhere} {
		project.file("steps.zip", string(archive))
	}
	first := tr.record("- {name: a, step: 'zip+./steps.zip'}\n- {name: b, step: {zip: {url: ./steps.zip}}}\n")
	require.Equal(t, trace.Success, first.Identity.Status, "%s", first.Volatile.Message)
	elsewhere.requireSame(elsewhere.replay(first))
	elsewhere.file("steps.zip", string(fetchtest.Zip(t, fetchtest.Texts(map[string]string{"step.yml": "other"}))))
	require.Contains(t, elsewhere.refused(first), "digest")
	require.NoError(t, os.Remove(filepath.Join(elsewhere.work, "steps.zip")))
	require.Contains(t, elsewhere.refused(first), "no such file")
}

func TestPrivateStepIsRepeatedOnlyWithCredentialsThatItsServerAccepts(t *testing.T) {
	const token = "glcbt-abcdef123456"
	root := t.TempDir()
	server := fetchtest.ServeGit(t, root)
	server.User, server.Password = "gitlab-ci-token", token
	r := fetchtest.NewRepository(t, filepath.Join(root, "c/echo"))
	r.Commit(
		"main",
		fetchtest.Texts(map[string]string{"steps/step.yml": "spec: {}\n---\nexec: {command: [echo, private]}\n"}),
	)
	tr := newTrial(t)
	tr.vars = []engine.Variable{
		{Key: "CI_SERVER_URL", Value: server.URL},
		{Key: "CI_JOB_TOKEN", Value: token, Masked: true},
	}
	first := tr.record("- {name: a, step: '" + server.URL + "/c/echo@main'}\n")
	require.Equal(t, trace.Success, first.Identity.Status, "%s", first.Volatile.Message)
	give := func(token string) func(*Config) {
		return func(c *Config) {
			c.Secrets = map[string]string{"CI_JOB_TOKEN": token, "CI_SERVER_URL": server.URL}
		}
	}
	tr.requireSame(tr.replay(first, give(token)))
	require.Contains(t, tr.log.String(), "private")

	require.Contains(t, tr.refused(first), "wants credentials")
	why := tr.refused(first, give("glcbt-wrong-wrong"))
	require.Contains(t, why, "refuses the credentials")
	require.NotContains(t, why, "glcbt")
	why = tr.refused(
		first,
		give(token),
		func(c *Config) { c.Store = tr.store(func(s *fetch.Config) { s.Offline = true }) },
	)
	require.Contains(t, why, "offline")
}

func TestSensitiveInputIsAskedFor(t *testing.T) {
	tr := newTrial(t)
	tr.inputs = map[string]string{"key": "the-key-12345", "list": `["one-secret", 2]`}
	first := tr.record(`spec: {inputs: {key: {type: string, sensitive: true}, list: {type: array, sensitive: true}}}
---
run:
  - {name: a, script: "echo '${{ inputs.key }} ${{ inputs.list }}' | wc -c; echo '${{ inputs.key }}'"}
`)
	_, err := tr.prepare(first)
	missing := (*MissingError)(nil)
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []string{"key", "list"}, missing.Names)
	tr.requireSame(tr.replay(first, func(c *Config) {
		c.Secrets = map[string]string{"key": "the-key-12345", "list": `["one-secret",2]`}
	}))
	require.NotContains(t, tr.log.String(), "the-key")
	_, err = tr.prepare(
		first,
		func(c *Config) { c.Secrets = map[string]string{"key": "the-key-12345", "list": "one-secret"} },
	)
	require.ErrorIs(t, err, ErrTrace)
	require.NotContains(t, err.Error(), "one-secret")
}

func TestPasswordInAReferenceIsGivenByItsPlace(t *testing.T) {
	const password = "pass-word-12345"
	root := t.TempDir()
	server := fetchtest.ServeGit(t, root)
	server.User, server.Password = "me", password
	r := fetchtest.NewRepository(t, filepath.Join(root, "c/echo"))
	r.Commit(
		"main",
		fetchtest.Texts(map[string]string{"steps/step.yml": "spec: {}\n---\nexec: {command: [echo, private]}\n"}),
	)
	tr := newTrial(t)
	ref := "http://me:" + password + "@" + server.Host + "/c/echo@main"
	text := "- {name: a, step: '" + ref + "'}\n"
	second := tr.record(text)
	require.Equal(t, trace.Success, second.Identity.Status, "%s", second.Volatile.Message)
	for _, recorded := range []*trace.Trace{second, firstVersion(t, second)} {
		_, err := tr.prepare(recorded)
		missing := (*MissingError)(nil)
		require.ErrorAs(t, err, &missing)
		secrets := map[string]string{}
		for _, name := range missing.Names {
			switch name {
			case "/job/text":
				secrets[name] = text
			case "/job/definition/steps/0/reference/url":
				secrets[name] = strings.TrimSuffix(ref, "@main")
			default:
				secrets[name] = ref
			}
		}
		tr.requireSame(tr.replay(recorded, func(c *Config) { c.Secrets = secrets }))
		require.Contains(t, tr.log.String(), "private")
	}
}
