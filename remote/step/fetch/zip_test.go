package fetch

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

// zipHost serves archives.
type zipHost struct {
	*httptest.Server
	mu      sync.Mutex // guards the following
	data    []byte
	noTag   bool
	private bool
	refusal int // for those who are not logged in, if it is private
	sent    int // the number of times the whole archive was sent
	asked   int
}

func newZipHost(t testing.TB, data []byte) *zipHost {
	t.Helper()
	h := &zipHost{data: data, refusal: http.StatusForbidden}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.asked++
		tag := `"` + fetchtest.SHA256(h.data) + `"`
		name, password, _ := r.BasicAuth()
		switch {
		case h.private && (name != user || password != secret):
			http.Error(w, "", h.refusal)
		case !h.noTag && r.Header.Get("If-None-Match") == tag:
			w.WriteHeader(http.StatusNotModified)
		default:
			if !h.noTag {
				w.Header().Set("ETag", tag)
			}
			if r.Header.Get("Range") == "" {
				h.sent++
			}
			_, _ = w.Write(h.data)
		}
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *zipHost) set(data []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.data = data
}

func TestArchiveIsAskedForAgainUnlessItsDigestIsKnown(t *testing.T) {
	for _, noTag := range []bool{false, true} {
		one, two := fetchtest.Zip(t, fetchtest.Texts(map[string]string{"a": "one"})),
			fetchtest.Zip(t, fetchtest.Texts(map[string]string{"a": "two"}))
		h := newZipHost(t, one)
		h.noTag = noTag
		s := newStore(t)
		ref := "zip+" + h.URL + "/s.zip"
		c := get(t, s, ref)
		require.Equal(t, "one", read(t, c, "a"))
		require.Equal(t, "sha256:"+fetchtest.SHA256(one), c.Digest)
		require.Equal(t, h.URL+"/s.zip", c.Location)
		require.Equal(t, "one", read(t, get(t, s, ref), "a"))
		if !noTag {
			require.Equal(t, 1, h.sent)
		}
		pinned := ref + "#sha256=" + fetchtest.SHA256(one)
		h.set(two)
		asked := h.asked
		require.Equal(t, "one", read(t, get(t, s, pinned), "a"))
		require.Equal(t, asked, h.asked, "a digest asks nobody")
		require.Equal(t, "two", read(t, get(t, s, ref), "a"))
		require.Equal(t, "two", read(t, get(t, s, ref+"#sha256="+fetchtest.SHA256(two)), "a"))
	}
}

// Symptom: with a digest the fetch panicked, and without one it called itself until its stack was full.
func TestServerThatSaysUnaskedThatNothingHasChangedIsRefused(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotModified)
	}))
	defer h.Close()
	for _, digest := range []string{"#sha256=" + emptySum, ""} {
		require.Equal(t, "the server answers 304 Not Modified", refused(t, newStore(t), "zip+"+h.URL+"/s.zip"+digest))
	}
}

func TestArchiveWithAnotherDigestIsRefused(t *testing.T) {
	data := fetchtest.Zip(t, fetchtest.Texts(map[string]string{"a": "x"}))
	h := newZipHost(t, data)
	s := newStore(t)
	other := strings.Repeat("0", 64)
	require.Contains(t, refused(t, s, "zip+"+h.URL+"/s.zip#sha256="+other),
		"the digest is sha256:"+fetchtest.SHA256(data)+", and not the one")
	require.Contains(t, refused(t, s, "zip+"+h.URL+"/s.zip#sha256=0f"), "64 hexadecimal digits")
	require.Empty(t, components(t, s))
}

func TestPrivateArchiveNeedsCredentialsThatItsServerAccepts(t *testing.T) {
	data := fetchtest.Zip(t, fetchtest.Texts(map[string]string{"a": "x"}))
	h := newZipHost(t, data)
	h.private = true
	s := newStore(t)
	login := loginAt(h.URL, user, secret)
	plain := "zip+" + h.URL + "/s.zip?sig=" + secret
	for _, ref := range []string{plain, plain + "#sha256=" + fetchtest.SHA256(data)} {
		for range 2 {
			c := get(t, s, ref, login)
			require.Equal(t, h.URL+"/s.zip", c.Location, "what may be secret in the address is not told")
		}
		require.Contains(t, refused(t, s, ref), "HTTP status 403")
	}
	require.Equal(t, 1, h.sent)
	requireNoCredentials(t, s)
	h.refusal = http.StatusTooManyRequests
	get(t, newStore(t), plain, login)
	require.Contains(t, refused(t, newStore(t), plain), "429 Too Many Requests")
}

// Symptom: the server that it leads to got the address with the secret in it.
func TestQueryOfAnArchiveDoesNotFollowARedirect(t *testing.T) {
	data := fetchtest.Zip(t, fetchtest.Texts(map[string]string{"a": "x"}))
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Empty(t, r.Header.Get("Referer"))
		_, _ = w.Write(data)
	}))
	defer other.Close()
	h := httptest.NewServer(http.RedirectHandler(other.URL+"/s.zip", http.StatusFound))
	defer h.Close()
	get(t, newStore(t), "zip+"+h.URL+"/s.zip?sig="+secret)
}

func TestManyJobsDownloadAnArchiveOnce(t *testing.T) {
	data := fetchtest.Zip(t, fetchtest.Texts(map[string]string{"step.yml": stepText}))
	h := newZipHost(t, data)
	fetchAll(t, stores(t, 4), "zip+"+h.URL+"/s.zip#sha256="+fetchtest.SHA256(data), 100)
	require.Equal(t, 1, h.sent)
}

func TestLocalArchiveIsReadAgain(t *testing.T) {
	s := newStore(t)
	ref := zipOf(t, "sub/func.yml", "one")
	path := strings.TrimPrefix(ref, "zip+file://")
	c := get(t, s, ref+"#dir=sub&file=func.yml")
	require.Equal(t, filepath.Join(c.Root, "sub"), c.Dir)
	require.Equal(t, "func.yml", c.File)
	require.NoError(t, os.WriteFile(path, fetchtest.Zip(t, fetchtest.Texts(map[string]string{"a": "two"})), 0o644))
	require.Equal(t, "two", read(t, get(t, s, "zip+"+path), "a"))

	dir := t.TempDir()
	for path, want := range map[string]string{dir: "is not a regular file", dir + "/none": "no such file"} {
		require.Contains(t, refused(t, s, "zip+"+path), want)
	}
	require.Contains(t, refused(t, s, "zip+./relative.zip"), "an absolute path")
}

func TestLocalArchiveThatMayNotBeReadIsNotTakenForTheCache(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("part missing: an ordinary user, who may not read all files")
	}
	ref := zipOf(t, "a", "x")
	path := strings.TrimPrefix(ref, "zip+file://")
	require.NoError(t, os.Chmod(path, 0))
	require.Equal(t, "open "+path+": permission denied", refused(t, newStore(t), ref))
}

func TestLocalArchiveIsWhereItsReferenceSays(t *testing.T) {
	s := newStore(t)
	for _, ref := range []string{zipOf(t, "a", "x"), zipOf(t, "a", "x")} {
		path := strings.TrimPrefix(ref, "zip+file://")
		c := get(t, s, "zip+"+path)
		require.Equal(t, "file://"+path, c.Location)
		require.True(t, IsOf(c.Source, reference(t, ref)))
		_, err := exactly(t, s, ref, c.Source)
		require.NoError(t, err)
	}
	require.Len(t, components(t, s), 1)
}

func TestFileThatIsNotAnArchiveIsRefused(t *testing.T) {
	whole := fetchtest.Zip(t, fetchtest.Texts(map[string]string{"a": strings.Repeat("x", 1000)}))
	spoilt := bytes.Clone(whole)
	spoilt[40] ^= 0xff
	for name, data := range map[string][]byte{
		"empty": nil, "a page": []byte("<html>"), "cut": whole[:len(whole)/2],
		"spoilt": spoilt,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s.zip")
			require.NoError(t, os.WriteFile(path, data, 0o644))
			s := newStore(t)
			refused(t, s, "zip+"+path)
			require.Empty(t, components(t, s))
		})
	}
}

// entryOf is an archive with a step and one more entry.
func entryOf(t testing.TB, name, content string, mode fs.FileMode) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, e := range []struct {
		name, content string
		mode          fs.FileMode
	}{{"step.yml", stepText, 0o644}, {"dir/", "", fs.ModeDir | 0o755}, {name, content, mode}} {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		h.SetMode(e.mode)
		w, err := z.CreateHeader(h)
		require.NoError(t, err)
		_, err = w.Write([]byte(e.content))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

//stepmux:faults vulnerabilities | Archives write outside their directory | paths and links are checked, and files
//stepmux:more opened below it only
//stepmux:with remote/step/fetch.TestLayersThatMeanHarmAreRefused
//stepmux:with remote/step/fetch.TestLinksThatLeadOutsideTogetherAreRefused
//stepmux:reliability mechanisms | No archive writes outside its place | `remote/step/fetch/tree.go`
func TestEntriesThatMeanHarmAreRefused(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "evil")
	for name, tc := range map[string]struct {
		name, content string
		mode          fs.FileMode
		want          string
	}{
		"up":                   {"../evil", "x", 0o644, `the entry's name leads outside`},
		"up in the middle":     {"a/../../evil", "x", 0o644, `leads outside`},
		"absolute":             {outside, "x", 0o644, "absolute"},
		"backslash":            {`..\evil`, "x", 0o644, `\ in it`},
		"of git":               {"a/.GIT/config", "x", 0o644, ".git"},
		"NUL":                  {"a\x00b", "x", 0o644, "NUL"},
		"Latin-1":              {"caf\xe9/a", "x", 0o644, "the entry's name is not UTF-8"},
		"empty part":           {"a//b", "x", 0o644, "empty part"},
		"dot":                  {"./a", "x", 0o644, "empty part"},
		"twice":                {"step.yml", "x", 0o644, "duplicate"},
		"file in a file":       {"step.yml/a", "x", 0o644, "duplicate"},
		"file for a directory": {"dir", "x", 0o644, "duplicate"},
		"link for a directory": {"dir", "step.yml", 0o777 | fs.ModeSymlink, "duplicate"},
		"only case differs":    {"STEP.yml", "x", 0o644, "only by case"},
		"case of a directory":  {"Dir/x", "x", 0o644, "only by case"},
		"too long a name":      {strings.Repeat("a/", 3000) + "b", "x", 0o644, "too long"},
		"link to what is not":  {"l", "/etc/passwd", 0o777 | fs.ModeSymlink, "symlink leads outside"},
		"link up":              {"dir/l", "../../etc", 0o777 | fs.ModeSymlink, "symlink leads outside"},
		"link of nothing":      {"l", "", 0o777 | fs.ModeSymlink, "leads nowhere"},
		"long link":            {"l", strings.Repeat("a", 5000), 0o777 | fs.ModeSymlink, "leads nowhere"},
		"device":               {"d", "", 0o644 | fs.ModeDevice, "device"},
		"pipe":                 {"p", "", 0o644 | fs.ModeNamedPipe, "pipe"},
		"large for its size":   {"z", strings.Repeat("\x00", 20<<20), 0o644, "times that of the archive"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s.zip")
			require.NoError(t, os.WriteFile(path, entryOf(t, tc.name, tc.content, tc.mode), 0o644))
			s := newStore(t)
			require.Contains(t, refused(t, s, "zip+"+path), tc.want)
			require.Empty(t, components(t, s))
			require.NoFileExists(t, outside)
		})
	}
}

func TestAnArchiveWithTooManyEntriesIsRefused(t *testing.T) {
	files := fetchtest.Files{}
	for i := range 101 {
		files[strconv.Itoa(i)] = fetchtest.File{}
	}
	path := filepath.Join(t.TempDir(), "s.zip")
	require.NoError(t, os.WriteFile(path, fetchtest.Zip(t, files), 0o644))
	s := newStore(t)
	s.limits.entries = 100
	require.Contains(t, refused(t, s, "zip+"+path), "the archive has 101 entries, the limit is 100")
}

//stepmux:faults fetch | A chain of more than eight symbolic links leads out of a fetched component
//stepmux:with remote/step/fetch.TestCachedComponentWithALinkThatLeadsOutsideIsRemoved
func TestLinksThatLeadOutsideTogetherAreRefused(t *testing.T) {
	link := func(to string) fetchtest.File { return fetchtest.File{Symlink: to} }
	for name, files := range map[string]fetchtest.Files{
		"by a link upward": {"a/b/c/s": link("../../.."), "t": link("a/b/c/s/../..")},
		"by two": {
			"x/y/z": {Content: "x"}, "d": link("x/y"), "e/f/g": link("../../d/../../.."),
			"e/f/h": link("../../d/../.."),
		},
		"by more than os.Root follows": {
			"l": link("."), "a/b/c/s": link("../../.."), "t": link(strings.Repeat("l/", 9) + "a/b/c/s/../../etc/passwd"),
		},
	} {
		s := newStore(t)
		require.Contains(t, refused(t, s, zipFile(t, files)), "the symlink leads outside", name)
	}
	s := newStore(t)
	get(t, s, zipFile(t, fetchtest.Files{"a/b/l": link("../../f"), "f": {}, "loop": link("loop"), "f2": link("f/x")}))
}

// A component that an earlier version kept may have a link that leads out: it is fetched again, and refused.
func TestCachedComponentWithALinkThatLeadsOutsideIsRemoved(t *testing.T) {
	s := newStore(t)
	ref := zipOf(t, "step.yml", stepText)
	get(t, s, ref).Release()
	cache, err := s.open()
	require.NoError(t, err)
	evil := keep(t, cache, func(tree string) (nodes []node) {
		require.NoError(t, os.Mkdir(filepath.Join(tree, "a"), 0o700))
		far := strings.Repeat("l/", 9) + "a/s/../../etc/passwd"
		for name, target := range map[string]string{"l": ".", "a/s": "..", "t": far} {
			require.NoError(t, os.Symlink(target, filepath.Join(tree, name)))
			sum := fetchtest.SHA256([]byte(target))
			nodes = append(nodes, node{Path: name, Mode: modeSymlink, SHA256: sum, Size: int64(len(target))})
		}
		require.NoError(t, os.Chmod(filepath.Join(tree, "a"), 0o555))
		return nodes
	})
	require.False(t, get(t, s, ref).Cached)
	require.NoDirExists(t, cache.path(compDir, evil))
}

// directories is an archive of directories.
func directories(t testing.TB, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range names {
		_, err := z.Create(name + "/")
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

// Symptom: in an archive of 16 KB with 2,040 nested directories each entry took 13 s, and could not be stopped.
//
//stepmux:faults fetch | A small archive with thousands of nested directories keeps a fetch busy, and it cannot be
//stepmux:more cancelled
//stepmux:with remote/step/fetch.TestExtractionLooksAtItsContextForEachEntry
func TestDepthOfAComponentIsBounded(t *testing.T) {
	s := newStore(t)
	for name, want := range map[string]string{
		strings.Repeat("a/", 64) + "a":                        "the entry is more than 64 deep",
		strings.Repeat("a/", 2040) + "a":                      "too long",
		strings.Repeat(strings.Repeat("a", 200)+"/", 6) + "a": "too long",
	} {
		path := filepath.Join(t.TempDir(), "s.zip")
		require.NoError(t, os.WriteFile(path, directories(t, name), 0o600))
		require.Contains(t, refused(t, s, "zip+"+path), want)
	}
	deepest := strings.Repeat("a/", 63) + "a"
	path := filepath.Join(t.TempDir(), "s.zip")
	require.NoError(t, os.WriteFile(path, directories(t, "b", deepest, "a/b", deepest+"b", "c"), 0o600))
	c := get(t, s, "zip+"+path)
	for _, dir := range []string{"b", deepest, "a/b", deepest + "b", "c"} {
		require.DirExists(t, filepath.Join(c.Root, dir))
	}
}

func TestExtractionLooksAtItsContextForEachEntry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.zip")
	data := directories(t, "a", "b")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	w, err := newTreeWriter(filepath.Join(t.TempDir(), treeName), defaultLimits(1<<20))
	require.NoError(t, err)
	defer w.close()
	because := errors.New("because")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(because)
	require.ErrorIs(t, extractZip(ctx, saved{path: path, size: int64(len(data))}, w), because)
	require.NoDirExists(t, filepath.Join(w.root.Name(), "a"))
}

// FuzzExtractZip extracts any archive, and looks for files outside of the tree.
func FuzzExtractZip(f *testing.F) {
	f.Add(entryOf(f, "a/b", "x", 0o755))
	f.Add(entryOf(f, "../../evil", "x", 0o644))
	f.Add(entryOf(f, "dir/l", "../..", 0o777|fs.ModeSymlink))
	f.Add(entryOf(f, "a\\b", "", fs.ModeDir))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := fetchtest.CacheDir(t)
		path := filepath.Join(dir, "a.zip")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		inner := filepath.Join(dir, "in")
		require.NoError(t, os.Mkdir(inner, 0o700))
		w, err := newTreeWriter(filepath.Join(inner, treeName),
			limits{entries: 100, file: 1 << 20, total: 1 << 20, ratio: 200, parts: maxParts})
		require.NoError(t, err)
		defer w.close()
		var nodes []node
		if err = extractZip(t.Context(), saved{path: path, size: int64(len(data))}, w); err == nil {
			nodes, err = w.finish(t.Context())
		}
		for _, d := range []string{dir, inner} {
			entries, readErr := os.ReadDir(d)
			require.NoError(t, readErr)
			require.Len(t, entries, map[string]int{dir: 2, inner: 1}[d])
		}
		if err != nil {
			return
		}
		for _, n := range nodes {
			require.NoError(t, checkNode(n, w.root), n.Path)
		}
	})
}
