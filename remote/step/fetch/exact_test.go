package fetch

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// exactly fetches c again into s, for the same reference.
func exactly(t testing.TB, s *Store, text string, want Source) (*Component, error) {
	t.Helper()
	c, err := s.FetchExactly(t.Context(), reference(t, text), want, Credentials{})
	if err == nil {
		t.Cleanup(c.Release)
	}
	return c, err
}

func TestBranchThatMovedOnIsFetchedAsItWas(t *testing.T) {
	h := newGitHost(t)
	r := h.repository("g/sub/echo")
	old := r.Commit("main", fetchtest.Texts(map[string]string{"steps/step.yml": "old", "steps/x/step.yml": "x"}))
	at := h.URL + "/g/sub/echo/x@main" // only the server knows the end of the repository's path
	was := get(t, newStore(t), at)
	require.Equal(t, old, was.Commit)
	r.Commit("main", fetchtest.Texts(map[string]string{"steps/step.yml": "new"}))

	s := newStore(t)
	c, err := exactly(t, s, at, was.Source)
	require.NoError(t, err)
	require.Equal(t, "old", read(t, c, "steps/step.yml"))
	require.Equal(t, was.Source, c.Source)
	require.Equal(t, filepath.Join(c.Root, "steps", "x"), c.Dir)
	same, ok := c.For(reference(t, h.URL+"/g/sub/echo@main"))
	require.True(t, ok, "the job goes on with it")
	require.Equal(t, filepath.Join(c.Root, "steps"), same.Dir)

	h.Close()
	_, err = exactly(t, s, at, was.Source)
	require.NoError(t, err, "the cache has it")
	offline := newStore(t, func(cfg *Config) { cfg.Dir, cfg.Offline = s.cfg.Dir, true })
	_, err = exactly(t, offline, at, was.Source)
	require.NoError(t, err)
}

func TestImageAndArchiveThatWereReplacedAreFetchedAsTheyWere(t *testing.T) {
	h := newOCIHost(t)
	h.push(t, "g/echo:1", layer(t, tar.Header{Name: "d/func.yml", Uname: "one"}))
	image := h.host + "/g/echo:1 d"
	was := get(t, newStore(t), image)
	h.push(t, "g/echo:1", layer(t, tar.Header{Name: "d/func.yml", Uname: "two"}))
	c, err := exactly(t, newStore(t), image, was.Source)
	require.NoError(t, err)
	require.Equal(t, "one", read(t, c, "d/func.yml"))
	require.Equal(t, was.Source, c.Source)

	z := newZipHost(t, fetchtest.Zip(t, fetchtest.Texts(map[string]string{"func.yml": "one"})))
	archive := "zip+" + z.URL + "/a.zip?token=secret"
	s := newStore(t)
	was = get(t, s, archive)
	require.NotContains(t, was.Location, "secret")
	z.set(fetchtest.Zip(t, fetchtest.Texts(map[string]string{"func.yml": "two"})))
	c, err = exactly(t, s, archive, was.Source)
	require.NoError(t, err)
	require.Equal(t, "one", read(t, c, "func.yml"), "the cache has it still")
	require.Equal(t, was.Source, c.Source)
	_, err = exactly(t, newStore(t), archive, was.Source)
	require.ErrorContains(t, err, "digest", "nobody has it any more")

	file := filepath.Join(t.TempDir(), "a.zip")
	require.NoError(t, os.WriteFile(file, fetchtest.Zip(t, fetchtest.Texts(map[string]string{"func.yml": "one"})), 0o600))
	was = get(t, s, "zip+file://"+file)
	_, err = exactly(t, newStore(t), "zip+file://"+file, was.Source)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, fetchtest.Zip(t, fetchtest.Texts(map[string]string{"func.yml": "two"})), 0o600))
	_, err = exactly(t, newStore(t), "zip+file://"+file, was.Source)
	require.ErrorContains(t, err, "digest")
}

func TestChangedComponentIsRefused(t *testing.T) {
	h := newGitHost(t)
	h.echo("g/echo")
	h.echo("g/other")
	at := h.URL + "/g/echo@v1"
	s := newStore(t)
	was := get(t, s, at).Source
	for name, change := range map[string]func(w *Source){
		"another tree":        func(w *Source) { w.Tree = digestPrefix + strings.Repeat("0", 64) },
		"no tree":             func(w *Source) { w.Tree = "" },
		"no digest":           func(w *Source) { w.Tree = "sha256:../../x" },
		"another commit":      func(w *Source) { w.Commit = strings.Repeat("0", 40) },
		"no commit":           func(w *Source) { w.Commit = "main" },
		"another place":       func(w *Source) { w.Location = h.URL + "/g/other" },
		"another version":     func(w *Source) { w.Version = "v2" },
		"something else":      func(w *Source) { w.Kind = "zip" },
		"nothing that exists": func(w *Source) { w.Kind = "" },
	} {
		t.Run(name, func(t *testing.T) {
			want := was
			change(&want)
			_, err := exactly(t, s, at, want)
			require.Error(t, err)
		})
	}
	want := was
	want.Tree = digestPrefix + strings.Repeat("0", 64)
	_, err := exactly(t, s, at, want)
	changed := (*ChangedError)(nil)
	require.ErrorAs(t, err, &changed)
	require.Equal(t, was.Tree, changed.Is)
}

func TestOfflineAsksNoServer(t *testing.T) {
	g, o := newGitHost(t), newOCIHost(t)
	g.echo("g/echo")
	o.push(t, "g/echo:1", layer(t, tar.Header{Name: "func.yml", Uname: "one"}))
	z := newZipHost(t, fetchtest.Zip(t, fetchtest.Texts(map[string]string{"func.yml": "one"})))
	online := newStore(t)
	refs := []string{g.URL + "/g/echo@v1", o.host + "/g/echo:1", "zip+" + z.URL + "/a.zip"}
	var sources []Source
	for _, ref := range refs {
		sources = append(sources, get(t, online, ref).Source)
	}
	asked, questions := z.asked, g.Questions()
	s := newStore(t, func(cfg *Config) { cfg.Offline = true })
	for i, ref := range refs {
		_, err := exactly(t, s, ref, sources[i])
		require.ErrorContains(t, err, ErrOffline.Error())
		require.Contains(t, refused(t, s, ref), ErrOffline.Error())
	}
	require.Equal(t, asked, z.asked)
	require.Equal(t, questions, g.Questions())
	cached := newStore(t, func(cfg *Config) { cfg.Dir, cfg.Offline = online.cfg.Dir, true })
	for i, ref := range refs {
		_, err := exactly(t, cached, ref, sources[i])
		require.NoError(t, err)
	}
}

func TestReferenceOfASourceLeadsBackToIt(t *testing.T) {
	for _, s := range []Source{
		{Kind: kindGit, Location: "https://h/g/p", Version: "v1"},
		{Kind: kindZip, Location: "https://h/a.zip", Digest: digestPrefix + "0a"},
		{Kind: kindZip, Location: "file:///a.zip", Digest: digestPrefix + "0a"},
		{Kind: kindOCI, Location: "h:5000/g/p", Version: "1", Digest: digestPrefix + "0a"},
		{Kind: kindOCI, Location: "h:5000/g/p", Version: digestPrefix + "0a", Digest: digestPrefix + "0a"},
	} {
		ref, err := Reference(s)
		require.NoError(t, err)
		require.True(t, IsOf(s, ref), "%v", ref)
	}
	for _, s := range []Source{
		{},
		{Kind: kindGit, Location: "ext::sh -c x", Version: "v1"},
		{Kind: kindGit, Location: "https://h/g/p", Version: "--upload-pack=x"},
		{Kind: kindZip, Location: "gopher://h/a.zip"},
		{Kind: kindOCI, Location: "nothing"},
		{Kind: "local", Location: "./x"},
	} {
		_, err := Reference(s)
		require.Error(t, err, "%v", s)
	}
}
