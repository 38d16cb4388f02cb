package actionservices_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/actionservices"
)

// caller is a job that calls the services by hand.
type caller struct {
	t          *testing.T
	url, token string
}

func begin(t *testing.T, cfg actionservices.Config, scopes ...string) caller {
	s, url := serve(t, cfg)
	token, end := s.Begin(actionservices.Job{Run: "1", Name: "job", Scopes: scopes})
	t.Cleanup(func() { end() })
	return caller{t, url, token}
}

// do makes a request and returns the answer. at is a path, or a URL of the services.
func (c caller) do(method, at string, body []byte, headers ...string) (status int, answer map[string]any) {
	c.t.Helper()
	if !strings.HasPrefix(at, "http") {
		at = c.url + at
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, at, bytes.NewReader(body))
	require.NoError(c.t, err)
	req.Header.Set("Authorization", "Bearer "+c.token)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(c.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	_ = json.Unmarshal(text, &answer) // some answers have no JSON
	return resp.StatusCode, answer
}

const (
	artifactService = "/twirp/github.actions.results.api.v1.ArtifactService/"
	cacheService    = "/twirp/github.actions.results.api.v1.CacheService/"
	v1              = "/_apis/artifactcache/"
)

// upload begins an artifact and returns the URL for its content.
func (c caller) upload(name string) string {
	c.t.Helper()
	text, err := json.Marshal(map[string]string{"name": name})
	require.NoError(c.t, err)
	status, said := c.do("POST", artifactService+"CreateArtifact", text)
	require.Equal(c.t, http.StatusOK, status, said)
	return said["signed_upload_url"].(string)
}

func TestBlocksAreOneFileInTheOrderOfTheirList(t *testing.T) {
	c := begin(t, actionservices.Config{})
	to := c.upload("a")
	blocks := map[string]string{"YQ==": "one ", "Yg==": "two ", "Yw==": "three", "ZA==": "not in the list"}
	for block, text := range blocks {
		status, _ := c.do("PUT", to+"&comp=block&blockid="+block, []byte(text))
		require.Equal(t, http.StatusCreated, status)
	}
	status, _ := c.do("PUT", to+"&comp=block&blockid=YQ%3D%3D", []byte("ONE ")) // again, as after an error
	require.Equal(t, http.StatusCreated, status)
	list := func(names ...string) []byte {
		text := `<?xml version="1.0" encoding="utf-8"?><BlockList>`
		for _, name := range names {
			text += "<Latest>" + name + "</Latest>"
		}
		return []byte(text + "</BlockList>")
	}
	status, _ = c.do("PUT", to+"&comp=blocklist", list("YQ==", "unknown"))
	require.Equal(t, http.StatusBadRequest, status)
	status, _ = c.do("PUT", to+"&comp=blocklist", list("Yg==", "YQ==", "Yw=="))
	require.Equal(t, http.StatusCreated, status)
	for size, want := range map[string]int{`"12"`: http.StatusBadRequest, "-1": http.StatusBadRequest} {
		status, said := c.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"a","size":`+size+`}`))
		require.Equal(t, want, status, said)
	}
	status, said := c.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"a","size":"13"}`))
	require.Equal(t, http.StatusOK, status, said)
	status, said = c.do("POST", artifactService+"GetSignedArtifactURL", []byte(`{"name":"a"}`))
	require.Equal(t, http.StatusOK, status, said)
	resp, err := http.Get(said["signed_url"].(string))
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "two ONE three", string(text))
	status, _ = c.do("PUT", to+"&comp=block&blockid=x", []byte("late"))
	require.Equal(t, http.StatusNotFound, status)
}

func TestABlobThatIsAppendedToOrPutAtOnce(t *testing.T) {
	c := begin(t, actionservices.Config{})
	to := c.upload("appended")
	status, _ := c.do("PUT", to, nil, "X-Ms-Blob-Type", "AppendBlob")
	require.Equal(t, http.StatusCreated, status)
	for _, text := range []string{"one ", "two"} {
		status, _ = c.do("PUT", to+"&comp=appendblock", []byte(text))
		require.Equal(t, http.StatusCreated, status)
	}
	status, said := c.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"appended","size":7}`))
	require.Equal(t, http.StatusOK, status, said)
	to = c.upload("once")
	status, _ = c.do("PUT", to, []byte("content"), "X-Ms-Blob-Type", "BlockBlob")
	require.Equal(t, http.StatusCreated, status)
	status, said = c.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"once","size":7}`))
	require.Equal(t, http.StatusOK, status, said)
}

// Nobody without the token of a job that runs reaches anything: a neighbour on the same machine can connect, too.
func TestANeighbourWithoutTheTokenIsRefused(t *testing.T) {
	s, url := serve(t, actionservices.Config{Caches: filepath.Join(t.TempDir(), "c")})
	token, end := s.Begin(actionservices.Job{Run: "1", Name: "job"})
	victim := caller{t, url, token}
	to := victim.upload("a")
	paths := []string{
		"POST " + artifactService + "CreateArtifact", "POST " + artifactService + "FinalizeArtifact",
		"POST " + artifactService + "ListArtifacts", "POST " + artifactService + "GetSignedArtifactURL",
		"POST " + artifactService + "DeleteArtifact", "POST " + cacheService + "CreateCacheEntry",
		"POST " + cacheService + "FinalizeCacheEntryUpload", "POST " + cacheService + "GetCacheEntryDownloadURL",
		"GET " + v1 + "cache?keys=k&version=v", "POST " + v1 + "caches", "PATCH " + v1 + "caches/1",
		"POST " + v1 + "caches/1",
		"GET /_apis/pipelines/workflows/1/artifacts", "POST /_apis/pipelines/workflows/1/artifacts",
		"PATCH /_apis/pipelines/workflows/1/artifacts", "PUT /containers/1?itemPath=a", "GET /containers/1",
		"GET /containers/1/1", "GET /artifacts/1", "PUT /uploads/1", "GET /caches/x/1",
		"PUT " + strings.TrimPrefix(strings.Replace(to, "sig=", "sig=0", 1), url),
		"PUT " + strings.TrimPrefix(strings.Replace(to, "/uploads/1", "/uploads/2", 1), url),
	}
	refused := func(token string) {
		for _, path := range paths {
			method, at, _ := strings.Cut(path, " ")
			status, said := caller{t, url, token}.do(method, at, []byte("{}"))
			require.Equal(t, http.StatusUnauthorized, status, "%s: %v", path, said)
			require.NotContains(t, said["msg"], token[:min(len(token), 9)]+"x")
		}
	}
	for _, wrong := range []string{"", "x", token + "x", token[:len(token)-1]} {
		refused(wrong)
	}
	end()
	refused(token)
	status, _ := victim.do("PUT", to, []byte("late"))
	require.Equal(t, http.StatusUnauthorized, status)
}

// Another job of the run sees artifacts, and cannot write to an upload that is not its own.
func TestAJobCannotWriteToTheUploadOfAnother(t *testing.T) {
	s, url := serve(t, actionservices.Config{Caches: filepath.Join(t.TempDir(), "c")})
	first, end := s.Begin(actionservices.Job{Run: "1", Name: "first"})
	defer end()
	second, end := s.Begin(actionservices.Job{Run: "1", Name: "second"})
	defer end()
	status, said := caller{t, url, first}.do("POST", v1+"caches", []byte(`{"key":"k","version":"v"}`))
	require.Equal(t, http.StatusCreated, status)
	at := v1 + "caches/" + toText(t, said["cacheId"])
	status, _ = caller{t, url, second}.do("PATCH", at, []byte("abc"), "Content-Range", "bytes 0-2/*")
	require.Equal(t, http.StatusNotFound, status)
	status, said = caller{t, url, second}.do("POST", v1+"caches", []byte(`{"key":"k","version":"v"}`))
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, said["message"], "another job")
	_ = caller{t, url, first}.upload("a")
	status, _ = caller{t, url, second}.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"a","size":0}`))
	require.Equal(t, http.StatusNotFound, status)
}

func TestRangesThatOverlapOrLieStoreNothing(t *testing.T) {
	dir := t.TempDir()
	c := begin(t, actionservices.Config{Caches: filepath.Join(dir, "c")}, "refs/heads/main")
	status, said := c.do("POST", v1+"caches", []byte(`{"key":"k","version":"v","cacheSize":10}`))
	require.Equal(t, http.StatusCreated, status)
	at := v1 + "caches/" + toText(t, said["cacheId"])
	for _, of := range []string{
		"bytes 0-3/*", "bytes 1-2/*", "bytes 3-2/*", "bytes -1-1/*", "bytes a-b/*", "0-2",
		"bytes 9223372036854775806-9223372036854775807/*",
		"bytes 0-2/2",
	} {
		status, said := c.do("PATCH", at, []byte("abc"), "Content-Range", of)
		require.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, status, "%s: %v", of, said)
	}
	put := func(of, text string) int {
		status, _ := c.do("PATCH", at, []byte(text), "Content-Range", of)
		return status
	}
	require.Equal(t, http.StatusNoContent, put("bytes 4-6/*", "efg"))
	require.Equal(t, http.StatusNoContent, put("bytes 4-6/*", "efg"), "the same piece again")
	require.Equal(t, http.StatusBadRequest, put("bytes 5-7/*", "fgh"))
	commit := func(size string) int {
		status, _ := c.do("POST", at, []byte(`{"size":`+size+`}`))
		return status
	}
	require.Equal(t, http.StatusBadRequest, commit("7"), "there is a hole")
	require.Equal(t, http.StatusNoContent, put("bytes 0-3/*", "abcd"))
	require.Equal(t, http.StatusBadRequest, commit("8"))
	require.Equal(t, http.StatusBadRequest, commit("-1"))
	require.Equal(t, http.StatusCreated, commit("7"))
	require.Equal(t, http.StatusNotFound, commit("7"))
	status, said = c.do("GET", v1+"cache?keys=k&version=v", nil)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "k", said["cacheKey"])
}

func TestKeysAndNamesAreChecked(t *testing.T) {
	c := begin(t, actionservices.Config{Caches: filepath.Join(t.TempDir(), "c")})
	for _, key := range []string{"", "a,b", strings.Repeat("k", 513)} {
		text, err := json.Marshal(map[string]string{"key": key, "version": "v"})
		require.NoError(t, err)
		for _, at := range []string{
			v1 + "caches", cacheService + "CreateCacheEntry", cacheService + "GetCacheEntryDownloadURL",
		} {
			status, said := c.do("POST", at, text)
			require.Equal(t, http.StatusBadRequest, status, said)
		}
	}
	for _, name := range []string{"", "a/b", `a\b`, "a\nb", `a"b`, strings.Repeat("n", 257)} {
		text, err := json.Marshal(map[string]string{"name": name})
		require.NoError(t, err)
		for _, at := range []string{artifactService + "CreateArtifact", "/_apis/pipelines/workflows/1/artifacts"} {
			status, said := c.do("POST", at, text)
			require.Equal(t, http.StatusBadRequest, status, said)
		}
	}
	status, _ := c.do("POST", "/_apis/pipelines/workflows/1/artifacts", []byte(`{"Type":"actions_storage","Name":"a"}`))
	require.Equal(t, http.StatusCreated, status)
	for _, path := range []string{"", "..", "../x", "/etc/passwd", "a/../b", `..%5Cx`, "a%0Ab"} {
		status, said := c.do("PUT", "/containers/1?itemPath="+path, []byte("x"))
		require.Equal(t, http.StatusBadRequest, status, "%s: %v", path, said)
	}
	for _, text := range []string{"", "{", "[]", `{"name":` + strings.Repeat(" ", 2<<20) + `"a"}`} {
		status, said := c.do("POST", artifactService+"CreateArtifact", []byte(text))
		require.Equal(t, http.StatusBadRequest, status, said)
	}
}

func TestCachesAreFoundByScopeThenKeyThenAge(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	s, url := serve(t, actionservices.Config{Caches: dir})
	save := func(scope, key string) {
		token, end := s.Begin(actionservices.Job{Run: "1", Scopes: []string{scope}})
		defer end()
		c := caller{t, url, token}
		status, said := c.do("POST", v1+"caches", []byte(`{"key":"`+key+`","version":"v"}`))
		require.Equal(t, http.StatusCreated, status, said)
		id := json.Number(strings.TrimSuffix(strings.TrimPrefix(toText(t, said["cacheId"]), `"`), `"`))
		status, _ = c.do("PATCH", v1+"caches/"+id.String(), []byte("x"), "Content-Range", "bytes 0-0/*")
		require.Equal(t, http.StatusNoContent, status)
		status, _ = c.do("POST", v1+"caches/"+id.String(), []byte(`{"size":1}`))
		require.Equal(t, http.StatusCreated, status)
	}
	save("main", "go-1")
	save("main", "go-2")
	save("topic", "go-3")
	save("other", "go-9")
	token, end := s.Begin(actionservices.Job{Run: "2", Scopes: []string{"topic", "main"}})
	defer end()
	for keys, want := range map[string]string{
		"go-1": "go-1", "go-": "go-3", "rust-,go-2": "go-2", "go-9": "", "g": "go-3",
	} {
		_, said := caller{t, url, token}.do("GET", v1+"cache?keys="+keys+"&version=v", nil)
		got, _ := said["cacheKey"].(string)
		require.Equal(t, want, got, keys)
	}
	_, said := caller{t, url, token}.do("GET", v1+"cache?keys=go-1&version=w", nil)
	require.Empty(t, said)
	left, err := filepath.Glob(filepath.Join(dir, "~*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func toText(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// What a job has not finished is gone with it, and with the server.
func TestAnUploadThatStopsLeavesNothing(t *testing.T) {
	dir, caches := t.TempDir(), filepath.Join(t.TempDir(), "c")
	s, url := serve(t, actionservices.Config{Dir: dir, Caches: caches})
	for _, closing := range []bool{false, true} {
		token, end := s.Begin(actionservices.Job{Run: "1"})
		c := caller{t, url, token}
		status, _ := c.do("PUT", c.upload("a")+"&comp=block&blockid=x", []byte("abc"))
		require.Equal(t, http.StatusCreated, status)
		status, _ = c.do("POST", v1+"caches", []byte(`{"key":"k","version":"v"}`))
		require.Equal(t, http.StatusCreated, status)
		status, said := c.do("POST", "/_apis/pipelines/workflows/1/artifacts", []byte(`{"Type":"x","Name":"a"}`))
		require.Equal(t, http.StatusCreated, status)
		status, _ = c.do("PUT", said["fileContainerResourceUrl"].(string)+"?itemPath=a/b", []byte("abc"),
			"Content-Range", "bytes 0-2/9")
		require.Equal(t, http.StatusCreated, status)
		if closing {
			s.Close()
		}
		end()
		for _, in := range []string{dir, caches} {
			names, err := os.ReadDir(in)
			require.NoError(t, err)
			require.Empty(t, names)
		}
	}
}

func TestMoreThanTheBoundIsRefused(t *testing.T) {
	c := begin(t, actionservices.Config{MaxArtifacts: 10, MaxCaches: 10, Caches: filepath.Join(t.TempDir(), "c")})
	status, said := c.do("PUT", c.upload("a"), []byte("12345678901"))
	require.Equal(t, http.StatusRequestEntityTooLarge, status, said)
	to := c.upload("b")
	status, _ = c.do("PUT", to, []byte("1234567"))
	require.Equal(t, http.StatusCreated, status)
	status, _ = c.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"b","size":7}`))
	require.Equal(t, http.StatusOK, status)
	status, _ = c.do("PUT", c.upload("c"), []byte("1234"))
	require.Equal(t, http.StatusRequestEntityTooLarge, status)
	status, _ = c.do("POST", artifactService+"DeleteArtifact", []byte(`{"name":"b"}`))
	require.Equal(t, http.StatusOK, status)
	status, _ = c.do("PUT", c.upload("d"), []byte("1234"))
	require.Equal(t, http.StatusCreated, status)
	for key, want := range map[string]int{"one": http.StatusCreated, "two": http.StatusCreated} {
		_, said := c.do("POST", v1+"caches", []byte(`{"key":"`+key+`","version":"v"}`))
		id := toText(t, said["cacheId"])
		status, _ = c.do("PATCH", v1+"caches/"+id, []byte("123456"), "Content-Range", "bytes 0-5/*")
		require.Equal(t, http.StatusNoContent, status)
		status, _ = c.do("POST", v1+"caches/"+id, []byte(`{"size":6}`))
		require.Equal(t, want, status)
	}
	found := 0
	for _, key := range []string{"one", "two"} {
		if status, _ := c.do("GET", v1+"cache?keys="+key+"&version=v", nil); status == http.StatusOK {
			found++
		}
	}
	require.Equal(t, 1, found, "the least recently used one made room")
}

// A full disk is told at once, and takes no key with it. Nothing is left.
func TestAFullDiskIsToldAndKeepsNoKey(t *testing.T) {
	full := t.TempDir()
	if err := unix.Mount("tmpfs", full, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("part missing: the right to mount: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(full, unix.MNT_DETACH)) })
	caches := filepath.Join(full, "c")
	c := begin(t, actionservices.Config{Caches: caches})
	for range 2 {
		status, said := c.do("POST", v1+"caches", []byte(`{"key":"k","version":"v"}`))
		require.Equal(t, http.StatusCreated, status, said)
		status, said = c.do("PATCH", v1+"caches/"+toText(t, said["cacheId"]), make([]byte, 1<<20),
			"Content-Range", "bytes 0-1048575/*")
		require.Equal(t, http.StatusInsufficientStorage, status, said)
		require.Contains(t, said["message"], "no room")
	}
	names, err := os.ReadDir(caches)
	require.NoError(t, err)
	require.Empty(t, names)
}

// A directory that cannot be written is told with the reason, and the client does not try again.
func TestADirectoryThatCannotBeWrittenIsTold(t *testing.T) {
	c := begin(t, actionservices.Config{Caches: "/proc/self/caches"})
	status, said := c.do("POST", cacheService+"CreateCacheEntry", []byte(`{"key":"k","version":"v"}`))
	require.Equal(t, http.StatusInsufficientStorage, status, said)
	require.Contains(t, said["msg"], "could not store or read the file: no such file or directory")
}
