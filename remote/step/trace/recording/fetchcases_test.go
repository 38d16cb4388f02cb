package recording

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

// caseFiles are files of a case: a text, or {content, mode}, or {symlink}.
type caseFiles map[string]json.RawMessage

func (files caseFiles) all(t *testing.T) fetchtest.Files {
	t.Helper()
	out := fetchtest.Files{}
	for path, raw := range files {
		var f struct{ Content, Mode, Symlink string }
		if json.Unmarshal(raw, &f.Content) != nil {
			require.NoError(t, json.Unmarshal(raw, &f))
		}
		out[path] = fetchtest.File{Content: f.Content, Symlink: f.Symlink, Executable: strings.HasSuffix(f.Mode, "755")}
	}
	return out
}

// caseRemote is a repository of a case.
type caseRemote struct {
	Branch       string
	Tag          string
	AnnotatedTag string `json:"annotated_tag"`
	Tags         map[string]caseFiles
	Files        caseFiles
	ThenPush     caseFiles `json:"then_push"`
	Submodule    string
	Basic        []string
}

// make makes the repository in dir, and returns its last commit.
func (r caseRemote) make(t *testing.T, dir string) (repo *fetchtest.Repository, commit string) {
	t.Helper()
	repo = fetchtest.NewRepository(t, dir)
	for tag, files := range r.Tags {
		repo.Git("tag", tag, repo.Commit("main", files.all(t)))
	}
	if r.Files == nil {
		return repo, ""
	}
	files := r.Files.all(t)
	if r.Submodule != "" {
		files[r.Submodule] = fetchtest.File{Submodule: strings.Repeat("1", 40)}
	}
	branch := r.Branch
	if branch == "" {
		branch = "main"
	}
	commit = repo.Commit(branch, files)
	if r.Tag != "" {
		repo.Git("tag", r.Tag, commit)
	}
	if r.AnnotatedTag != "" {
		repo.Git("tag", "-a", "-m", "x", r.AnnotatedTag, commit)
	}
	return repo, commit
}

// caseWorld has the servers from which a case fetches.
type caseWorld struct {
	c     *testCase
	store *fetch.Store
	cache string
	git   *fetchtest.GitServer // of its remotes, which mirrors lead to
	fill  []string             // placeholders, and what takes their place
	push  []func()             // what happens after the first run
}

// world makes the servers of c, if it has some. root is the directory of the project.
func (c *testCase) world(t *testing.T, root string) *caseWorld {
	t.Helper()
	w := &caseWorld{c: c, cache: filepath.Join(fetchtest.CacheDir(t), "cache")}
	if !c.fetches() {
		return w
	}
	cfg := fetch.Config{Dir: w.cache, Mirrors: map[string]string{}}
	repositories := t.TempDir()
	w.git = fetchtest.ServeGit(t, repositories)
	for url, remote := range c.GitRemotes {
		path := strings.TrimSuffix(strings.TrimPrefix(url, "https://"), ".git")
		repo, commit := remote.make(t, filepath.Join(repositories, path))
		cfg.Mirrors["https://"+path] = w.git.URL + "/" + path
		if commit != "" {
			w.fill = append(w.fill, "@SHA@", commit, "@SHA8@", commit[:8])
		}
		if remote.ThenPush != nil {
			w.push = append(w.push, func() { repo.Commit(remote.Branch, remote.ThenPush.all(t)) })
		}
	}
	w.serveGit(t)
	w.makeZips(t, root)
	w.serveImages(t)
	if c.HomeGitconfig != "" {
		home := t.TempDir()
		text := strings.ReplaceAll(c.HomeGitconfig, "@ROOT@", root)
		require.NoError(t, os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(text), 0o644))
		t.Setenv("HOME", home)
	}
	if c.Fault != "" { // what a fetch that is killed leaves
		left := filepath.Join(w.cache, "v1", "tmp", "LEFT", "comp", "tree")
		require.NoError(t, os.MkdirAll(left, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(left, "half"), []byte("x"), 0o600))
	}
	store, err := fetch.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	w.store = store
	return w
}

func (c *testCase) fetches() bool {
	return len(c.GitRemotes)+len(c.GitHTTP)+len(c.ZipFiles)+len(c.OCI) > 0 || c.ZipEntry != ""
}

func (w *caseWorld) serveGit(t *testing.T) {
	t.Helper()
	for path, remote := range w.c.GitHTTP {
		root := t.TempDir()
		remote.make(t, filepath.Join(root, path))
		s := fetchtest.ServeGit(t, root)
		s.User, s.Password = remote.Basic[0], remote.Basic[1]
		w.fill = append(w.fill, "@GITHOST@", s.Host)
	}
}

func (w *caseWorld) makeZips(t *testing.T, root string) {
	t.Helper()
	for name, files := range w.c.ZipFiles {
		data := fetchtest.Zip(t, files.all(t))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), data, 0o644))
		w.fill = append(w.fill, "@SHA256@", fetchtest.SHA256(data))
	}
	if len(w.c.ZipFiles) > 0 {
		s := httptest.NewServer(http.FileServer(http.Dir(root)))
		t.Cleanup(s.Close)
		w.fill = append(w.fill, "@HTTPHOST@", strings.TrimPrefix(s.URL, "http://"))
	}
	if w.c.ZipEntry != "" {
		require.NoError(t, os.WriteFile(filepath.Join(root, "s.zip"), hostileZip(t, w.c.ZipEntry), 0o644))
		w.c.StepsYAML = "- name: a\n  step: zip+file://@ROOT@/s.zip\n"
	}
}

// hostileZip makes the archive that a case describes by the name of its entry, or in words.
func hostileZip(t *testing.T, about string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	add := func(name string, mode fs.FileMode, r io.Reader) {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		h.SetMode(mode)
		w, err := z.CreateHeader(h)
		require.NoError(t, err)
		_, err = io.Copy(w, r)
		require.NoError(t, err)
	}
	text := func(s string) io.Reader { return strings.NewReader(s) }
	add(
		"step.yml",
		0o644,
		text("spec: {}\n---\nexec: {command: [sh, -c, 'test ! -u ${{ step_dir }}/x && test -x ${{ step_dir }}/x']}\n"),
	)
	switch about {
	case "dup twice":
		add("dup", 0o644, text("1"))
		add("dup", 0o644, text("2"))
	case "1 MiB archive, 10 GiB content":
		w, err := z.CreateRaw(
			&zip.FileHeader{Name: "bomb", Method: zip.Deflate, CompressedSize64: 1 << 20, UncompressedSize64: 10 << 30},
		)
		require.NoError(t, err)
		_, err = w.Write(make([]byte, 1<<20))
		require.NoError(t, err)
	case "200001 entries":
		for i := range 200_001 {
			_, err := z.CreateRaw(&zip.FileHeader{Name: fmt.Sprint(i)})
			require.NoError(t, err)
		}
	case "mode 04755":
		add("x", 0o755|fs.ModeSetuid, text("#!/bin/sh\n"))
	default:
		add(about, 0o644, text("echo evil"))
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

func (w *caseWorld) serveImages(t *testing.T) {
	t.Helper()
	if len(w.c.OCI) == 0 {
		return
	}
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	w.fill = append(w.fill, "@REGISTRY@", host)
	for image, platforms := range w.c.OCI {
		var index v1.ImageIndex = empty.Index
		for platform, files := range platforms {
			var b bytes.Buffer
			archive := tar.NewWriter(&b)
			for path, f := range files.all(t) {
				require.NoError(t, archive.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(f.Content))}))
				_, err := io.WriteString(archive, f.Content)
				require.NoError(t, err)
			}
			require.NoError(t, archive.Close())
			layer, err := tarball.LayerFromOpener(
				func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
			)
			require.NoError(t, err)
			img, err := mutate.AppendLayers(empty.Image, layer)
			require.NoError(t, err)
			os, arch, _ := strings.Cut(platform, "/")
			index = mutate.AppendManifests(
				index,
				mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: os, Architecture: arch}}},
			)
		}
		ref, err := name.ParseReference(host + "/" + image)
		require.NoError(t, err)
		require.NoError(t, remote.WriteIndex(ref, index, remote.WithContext(t.Context())))
	}
}

// check compares the cache and the project's files after all runs with the expectations.
func (w *caseWorld) check(t *testing.T, root string) (wrong []string) {
	t.Helper()
	e := w.c.Expect
	if w.store == nil {
		return nil
	}
	if entries, _ := os.ReadDir(filepath.Join(w.cache, "v1", "comp")); e.CacheEntries > 0 &&
		len(entries) != e.CacheEntries {
		wrong = append(wrong, fmt.Sprintf("the cache has %d components, want %d", len(entries), e.CacheEntries))
	}
	if e.Fetches > 0 && w.git.Fetches() != e.Fetches {
		wrong = append(wrong, fmt.Sprintf("there were %d fetches, want %d", w.git.Fetches(), e.Fetches))
	}
	if left, _ := os.ReadDir(filepath.Join(w.cache, "v1", "tmp")); len(left) > 0 {
		wrong = append(wrong, fmt.Sprintf("%d temporary directories are left", len(left)))
	}
	for _, path := range e.AbsentFiles {
		if _, err := os.Lstat(strings.ReplaceAll(path, "@ROOT@", root)); err == nil {
			wrong = append(wrong, path+" is there")
		}
	}
	return wrong
}
