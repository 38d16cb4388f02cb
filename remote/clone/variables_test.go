package clone

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// set returns a change that adds variables to the environment.
func set(vars ...string) func(*Config) {
	return func(c *Config) { c.Env = append(c.Env[:len(c.Env):len(c.Env)], vars...) }
}

func TestWithoutACheckoutTheCommitIsOnlyFetched(t *testing.T) {
	tr := newTrial(t)
	commit := tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	require.Empty(t, tr.clone(set("GIT_CHECKOUT=false")))
	tr.has("a", "")
	text, err := os.ReadFile(filepath.Join(tr.cfg.Dir, ".git", "FETCH_HEAD"))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), commit), "%s", text)
	require.Equal(t, commit, tr.clone(set("GIT_CHECKOUT=1")))
	tr.has("a", "1")
}

// GIT_CLEAN_FLAGS are for files of an earlier clone: those that are in a new directory, as caches, stay.
func TestFilesAreCleanedAsTheVariableSays(t *testing.T) {
	tr := newTrial(t)
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	tr.put("cached/x", "in a new directory")
	tr.clone()
	tr.has("cached/x", "in a new directory")
	tr.put("other", "x")
	tr.clone(set("GIT_CLEAN_FLAGS=none"), func(c *Config) { c.Clean = true })
	tr.has("other", "x")
	tr.clone(set("GIT_CLEAN_FLAGS=-ffdx -e cached/"), func(c *Config) { c.Clean = true })
	tr.has("other", "")
	tr.has("cached/x", "in a new directory")
	tr.clone(func(c *Config) { c.Clean = true })
	tr.has("cached/x", "")
}

func TestFlagsOfTheFetchAreAdded(t *testing.T) {
	tr := newTrial(t)
	tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	tr.repo.Git("tag", "v1")
	tr.clone(set("GIT_FETCH_EXTRA_FLAGS=--tags --quiet"))
	g := &git{cfg: &tr.cfg}
	tag, err := g.output(t.Context(), "tag")
	require.NoError(t, err)
	require.Equal(t, "v1", tag)
	_, err = tr.try(set("GIT_FETCH_EXTRA_FLAGS=--no-such-flag"))
	require.ErrorContains(t, err, "no-such-flag")
}

// withSubmodules commits two submodules whose URLs begin with a text.
func (tr *trial) withSubmodules(base string) {
	files, list := fetchtest.Texts(map[string]string{"a": "1"}), ""
	for _, name := range []string{"one", "two"} {
		sub := fetchtest.NewRepository(tr.t, filepath.Join(tr.root, "p", name))
		sub.Commit("main", fetchtest.Texts(map[string]string{"s": "old"}))
		at := sub.Commit("main", fetchtest.Texts(map[string]string{"s": name}))
		list += "[submodule \"" + name + "\"]\n\tpath = " + name + "\n\turl = " + base + name + "\n"
		files[name] = fetchtest.File{Submodule: at}
	}
	files[".gitmodules"] = fetchtest.File{Content: list}
	tr.repo.Commit("main", files)
}

func TestSubmodulesAreThoseOfTheVariables(t *testing.T) {
	tr := newTrial(t)
	tr.withSubmodules("../")
	normal := func(c *Config) { c.Submodules, c.Depth = Normal, 0 }
	tr.clone(normal, set("GIT_SUBMODULE_PATHS=one", "GIT_SUBMODULE_DEPTH=1"))
	tr.has("one/s", "one")
	tr.has("two/s", "")
	g := &git{cfg: &Config{Dir: filepath.Join(tr.cfg.Dir, "one"), Env: tr.cfg.Env, URL: tr.cfg.URL, Output: &tr.said}}
	count, err := g.output(t.Context(), "rev-list", "--count", "HEAD")
	require.NoError(t, err)
	require.Equal(t, "1", count, "the depth is that of the variable")
	tr.clone(normal, set("GIT_SUBMODULE_PATHS=:(exclude)one", "GIT_SUBMODULE_UPDATE_FLAGS=--jobs 4"))
	tr.has("two/s", "two")
	_, err = tr.try(normal, set("GIT_SUBMODULE_UPDATE_FLAGS=--no-such-flag"))
	require.Error(t, err)
}

func TestSubmodulesBySSHComeByHTTPSIfTheVariableSaysSo(t *testing.T) {
	for _, base := range []string{"git@127.0.0.1:p/", "ssh://git@127.0.0.1/p/", "ssh://git@ssh.example.com:2222/p/"} {
		tr := newTrial(t)
		tr.withSubmodules(base)
		normal := func(c *Config) { c.Submodules = Normal }
		_, err := tr.try(normal)
		require.ErrorContains(t, err, "git submodule")
		vars := []string{"GIT_SUBMODULE_FORCE_HTTPS=true"}
		if strings.Contains(base, "2222") {
			vars = append(vars, "CI_SERVER_SHELL_SSH_HOST=ssh.example.com", "CI_SERVER_SHELL_SSH_PORT=2222")
		}
		tr.clone(normal, set(vars...))
		tr.has("one/s", "one")
	}
}

func TestACloneIsTriedAgainAsOftenAsTheVariableSays(t *testing.T) {
	tr := newTrial(t)
	commit := tr.repo.Commit("main", fetchtest.Texts(map[string]string{"a": "1"}))
	var refused atomic.Int64
	tr.server.Before = func(w http.ResponseWriter, _ *http.Request) bool {
		if refused.Add(1) > 2 {
			return false
		}
		http.Error(w, "later", http.StatusServiceUnavailable)
		return true
	}
	_, err := tr.try()
	require.ErrorContains(t, err, "git fetch")
	refused.Store(0)
	require.Equal(t, commit, tr.clone(set("GET_SOURCES_ATTEMPTS=3")))
	require.Contains(t, tr.said.String(), "attempt 3 of 3")
}

func TestWrongVariablesAreNamed(t *testing.T) {
	tr := newTrial(t)
	for _, wrong := range []string{
		"GIT_CHECKOUT=maybe", "GIT_SUBMODULE_DEPTH=-1", "GET_SOURCES_ATTEMPTS=11", "GIT_SUBMODULE_FORCE_HTTPS=ja",
	} {
		_, err := tr.try(set(wrong))
		name, _, _ := strings.Cut(wrong, "=")
		require.ErrorContains(t, err, "the variable "+name+" is ")
	}
}

// A server whose certificate the machine does not know is trusted by the file that the job brings, and only there.
func TestTheServerIsTrustedByTheFileOfAuthorities(t *testing.T) {
	tr := newTrial(t)
	tr.withSubmodules("../")
	secure := httptest.NewTLSServer(tr.server.Config.Handler)
	t.Cleanup(secure.Close)
	tr.cfg.URL = secure.URL + "/p/main"
	_, err := tr.try()
	require.ErrorContains(t, err, "certificate")
	file := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	require.NoError(t, os.WriteFile(file, text, 0o600))
	tr.clone(set("CI_SERVER_TLS_CA_FILE="+file), func(c *Config) { c.Submodules = Normal })
	tr.has("a", "1")
	tr.has("one/s", "one")
}
