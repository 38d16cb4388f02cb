package doctor

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/gitlabdoor"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
)

func TestAGitLabServerIsExaminedByItsRunner(t *testing.T) {
	t.Parallel()
	fake := gitlabtest.New(gitlabtest.Config{})
	server := httptest.NewServer(fake)
	t.Cleanup(func() {
		fake.Close()
		server.Close()
	})
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(gitlabtest.RunnerToken), 0o600))
	cfg := gitlabdoor.DoorConfig{
		Name: "lab", URL: server.URL, TokenFile: file, Token: func() (string, error) { return gitlabtest.RunnerToken, nil },
	}
	statuses := func(cfg gitlabdoor.DoorConfig) map[string]Status {
		all := map[string]Status{}
		for _, f := range ExamineGitLab(t.Context(), cfg).Findings {
			all[f.Check] = f.Status
			require.True(t, f.Status != Fail || f.Change != "", "%+v", f)
		}
		return all
	}
	require.Equal(t, map[string]Status{checkURL: OK, checkToken: OK, checkAnswer: OK}, statuses(cfg))
	for _, call := range fake.Calls() {
		require.Equal(t, "runners/verify", call.Path, "no job is taken")
	}

	fake.Revoke()
	require.Equal(t, map[string]Status{checkURL: OK, checkToken: OK, checkAnswer: Fail}, statuses(cfg))
	other := cfg
	other.URL = server.URL + "/api/v4"
	require.Equal(t, map[string]Status{checkURL: Fail, checkToken: OK, checkAnswer: Skip}, statuses(other))
	other = cfg
	other.Token = func() (string, error) { return "", errors.New("it cannot be read") }
	require.Equal(t, map[string]Status{checkURL: OK, checkToken: Fail, checkAnswer: Skip}, statuses(other))
	other = cfg
	other.URL = "http://127.0.0.1:1"
	require.Equal(t, Fail, statuses(other)[checkAnswer])
}
