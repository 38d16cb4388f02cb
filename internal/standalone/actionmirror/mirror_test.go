package actionmirror

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

func TestMirrorHasTheActionsOfAFileAndThoseThatTheyUse(t *testing.T) {
	root := t.TempDir()
	server := fetchtest.ServeGit(t, root)
	commits := map[string]string{}
	for name, text := range map[string]string{
		"o/outer":       "runs:\n  using: composite\n  steps:\n    - uses: o/inner/sub@v1\n    - uses: ./local\n",
		"o/inner":       "runs: {using: node20, main: x.js}\n",
		"o/used-by-own": "runs: {using: node20, main: x.js}\n",
	} {
		r := fetchtest.NewRepository(t, filepath.Join(root, name))
		commits[name] = strings.TrimSpace(r.Commit("main", fetchtest.Texts(map[string]string{
			"action.yml": text, "sub/action.yml": text,
		})))
		r.Git("tag", "v1", "main")
	}
	workflow := "jobs:\n" +
		"  a: {steps: [{uses: o/outer@v1}, {uses: 'docker://x'}, {uses: ./own}, {uses: ./made}, {run: x}]}\n" +
		"  b: {steps: [{uses: 'o/inner@" +
		commits["o/inner"] + "'}]}\n"
	uses, err := Uses("w.yml", []byte(workflow), standalone.GitHub)
	require.NoError(t, err)
	require.Equal(t, []string{"./made", "./own", "docker://x", "o/inner@" + commits["o/inner"], "o/outer@v1"}, uses)
	dir, project := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(project, "own"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(project, "own", "action.yml"), []byte(
		"runs: {using: composite, steps: [{uses: o/used-by-own@v1}, {uses: ./own}]}"), 0o600))
	got := map[string]string{}
	for range 2 { // the second time it is there
		require.NoError(t, Fill(t.Context(), server.URL, dir, project, uses, nil, func(a Action) { got[a.Uses] = a.Commit }))
	}
	require.Equal(t, map[string]string{
		"o/inner@" + commits["o/inner"]: commits["o/inner"], "o/outer@v1": commits["o/outer"],
		"o/inner/sub@v1": commits["o/inner"], "o/used-by-own@v1": commits["o/used-by-own"],
	}, got)
	for _, name := range []string{"o/outer", "o/inner"} {
		_, err := os.Stat(filepath.Join(dir, name, "objects"))
		require.NoError(t, err)
	}
	long := fetchtest.NewRepository(t, filepath.Join(root, "o/long"))
	long.Git("tag", "v1", strings.TrimSpace(long.Commit("main", fetchtest.Texts(map[string]string{
		"action.yml": "runs: {using: node20, main: x.js}\n#" + strings.Repeat("x", 2<<20),
	}))))
	err = Fill(t.Context(), server.URL, dir, project, []string{"o/long@v1"}, nil, func(Action) {})
	require.ErrorContains(t, err, "bring the action o/long@v1: git cat-file: ")
	err = Fill(t.Context(), server.URL, dir, project, []string{"o/missing@v1"}, nil, func(Action) {})
	require.ErrorContains(t, err, "bring the action o/missing@v1: git fetch: ")
	err = Fill(t.Context(), server.URL, dir, project, []string{"o/x@--upload-pack=touch"}, nil, func(Action) {})
	require.ErrorContains(t, err, "the action is not valid")
}

func TestActionsOfStepsAreFoundWhereverTheyStand(t *testing.T) {
	uses, err := Uses("job.yml", []byte("- {name: a, action: a/b@v1}\n- name: b\n  run: [{name: c, action: c/d/e@v2}]\n"),
		standalone.Steps)
	require.NoError(t, err)
	require.Equal(t, []string{"a/b@v1", "c/d/e@v2"}, uses)
	uses, err = Uses("x/action.yml", []byte("runs: {using: composite, steps: [{uses: a/b@v1}]}"), standalone.Steps)
	require.NoError(t, err)
	require.Equal(t, []string{"a/b@v1"}, uses)
}

// Symptom: git-remote-http held the output open, so that no signal ended a download from a silent server.
func TestADownloadFromASilentServerEndsWithItsContext(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	asked := make(chan net.Conn, 1)
	go func() {
		conn, err := silent.Accept()
		if err == nil {
			asked <- conn
		}
	}()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	ended := make(chan error, 1)
	go func() {
		ended <- Fill(ctx, "http://"+silent.Addr().String(), t.TempDir(), ".", []string{"o/a@v1"}, nil, func(Action) {})
	}()
	var conn net.Conn
	select {
	case conn = <-asked:
	case err := <-ended:
		require.NoError(t, err, "it ended before it asked")
	}
	defer conn.Close()
	cancel(stop)
	require.ErrorIs(t, <-ended, stop)
	_, err = io.Copy(io.Discard, conn) // git has hung up: its programs have ended, too
	require.NoError(t, err)
}
