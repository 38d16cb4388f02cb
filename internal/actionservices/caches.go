package actionservices

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/rmtree"
)

// entry is a cache. It never changes.
type entry struct {
	Key     string    `json:"key"`
	Version string    `json:"version"` // of the paths and the compression, as the client computes it
	Scope   string    `json:"scope"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
}

const (
	// The directory of a cache has these files. Its name begins with cachePrefix.
	cacheFile, cacheContent = "cache.json", "content"
	cachePrefix             = "actions-"
	// scratchPrefix begins the name of a cache that is not complete.
	scratchPrefix = "~actions-"

	// maxCache bounds a cache, in bytes, and maxCaches the caches that are looked at.
	maxCache  = 10 << 30
	maxCaches = 10_000
	// maxKey bounds a key, and maxKeys the keys of a request, as with GitHub.
	maxKey, maxKeys = 512, 10
)

func (e *entry) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", e.Scope, e.Key, e.Version))
	return cachePrefix + hex.EncodeToString(sum[:16])
}

const cacheService = "POST /twirp/github.actions.results.api.v1.CacheService/"

func (s *Server) handleCaches() {
	type create struct{ Key, Version string }
	s.mux.HandleFunc(cacheService+"CreateCacheEntry", call(s, http.StatusOK,
		func(r *http.Request, b *session, asked *create) (any, error) {
			u, err := s.reserve(b, asked.Key, asked.Version, maxCache)
			if err != nil {
				return nil, err
			}
			return map[string]any{"ok": true, "signed_upload_url": s.signed(r, b, fmt.Sprintf("/uploads/%d", u.id))}, nil
		}))
	type finalize struct {
		Key     string
		Version string
		Size    number `json:"size_bytes"`
	}
	s.mux.HandleFunc(cacheService+"FinalizeCacheEntryUpload", call(s, http.StatusOK,
		func(_ *http.Request, b *session, asked *finalize) (any, error) {
			u := s.find(b, func(u *upload) bool {
				return u.cache != nil && u.cache.Key == asked.Key && u.cache.Version == asked.Version
			})
			if u == nil {
				return nil, refuse(http.StatusNotFound, "the cache was not created")
			}
			err := s.keepCache(u, int64(asked.Size))
			return map[string]any{"ok": err == nil, "entry_id": strconv.FormatInt(u.id, 10)}, err
		}))
	type lookup struct {
		Key     string
		Restore []string `json:"restore_keys"`
		Version string
	}
	s.mux.HandleFunc(cacheService+"GetCacheEntryDownloadURL", call(s, http.StatusOK,
		func(r *http.Request, b *session, asked *lookup) (any, error) {
			e, err := s.lookUp(b, append([]string{asked.Key}, asked.Restore...), asked.Version)
			if err != nil || e == nil {
				return map[string]any{"ok": false}, err
			}
			return map[string]any{"ok": true, "matched_key": e.Key, "signed_download_url": s.cacheURL(r, b, e)}, nil
		}))

	const v1 = "/_apis/artifactcache/"
	s.mux.HandleFunc("GET "+v1+"cache", s.authorized(func(w http.ResponseWriter, r *http.Request, b *session) error {
		asked := r.URL.Query()
		e, err := s.lookUp(b, strings.Split(asked.Get("keys"), ","), asked.Get("version"))
		switch {
		case err != nil:
			return err
		case e == nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			reply(w, http.StatusOK, map[string]any{
				"cacheKey": e.Key, "cacheVersion": e.Version, "scope": e.Scope, "archiveLocation": s.cacheURL(r, b, e),
				"creationTime": e.Created.UTC().Format(time.RFC3339),
			})
		}
		return nil
	}))
	type reserve struct {
		Key, Version string
		CacheSize    number
	}
	s.mux.HandleFunc("POST "+v1+"caches", call(s, http.StatusCreated,
		func(_ *http.Request, b *session, asked *reserve) (any, error) {
			if asked.CacheSize > maxCache {
				return nil, errTooBig
			}
			u, err := s.reserve(b, asked.Key, asked.Version, maxCache)
			if err != nil {
				return nil, err
			}
			return map[string]any{"cacheId": u.id}, nil
		}))
	s.mux.HandleFunc("PATCH "+v1+"caches/{id}", s.authorized(
		func(w http.ResponseWriter, r *http.Request, b *session) error {
			u, err := s.cacheUpload(r, b)
			if err != nil {
				return err
			}
			from, to, _, err := contentRange(r, r.ContentLength)
			if err != nil {
				return err
			}
			transfer(w, to-from)
			if err := u.spool.put(r.Body, from, to-from, ""); err != nil {
				return s.checked(u, err)
			}
			w.WriteHeader(http.StatusNoContent)
			return nil
		}))
	type commit struct{ Size number }
	s.mux.HandleFunc("POST "+v1+"caches/{id}", call(s, http.StatusCreated,
		func(r *http.Request, b *session, asked *commit) (any, error) {
			u, err := s.cacheUpload(r, b)
			if err != nil {
				return nil, err
			}
			return map[string]any{}, s.keepCache(u, int64(asked.Size))
		}))
	s.mux.HandleFunc("GET /caches/{name}", s.bySignature(s.downloadCache))
}

func (s *Server) cacheURL(r *http.Request, b *session, e *entry) string {
	return s.signed(r, b, "/caches/"+e.name())
}

// cacheUpload returns the upload of a cache that a request of v1 names.
func (s *Server) cacheUpload(r *http.Request, b *session) (*upload, error) {
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64) // 0 is no upload
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uploads[id]
	if u == nil || u.session != b || u.cache == nil {
		return nil, refuse(http.StatusNotFound, "there is no such reservation of a cache any more")
	}
	return u, nil
}

// checkKey returns an error unless key can be that of a cache.
func checkKey(key string) error {
	if key == "" || len(key) > maxKey || strings.Contains(key, ",") {
		return refuse(http.StatusBadRequest, "a key of a cache has 1 to %d bytes, and no comma", maxKey)
	}
	return nil
}

// reserve begins a cache of at most limit bytes.
func (s *Server) reserve(b *session, key, version string, limit int64) (*upload, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if version == "" || len(version) > maxKey {
		return nil, refuse(http.StatusBadRequest, "the version of the cache is missing or too long")
	}
	if s.cfg.Caches == "" {
		return nil, refuse(http.StatusBadRequest, "caches are not kept here")
	}
	e := &entry{Key: key, Version: version, Scope: b.Scopes[0]}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.uploads {
		if u.cache != nil && *u.cache == *e {
			return nil, refuse(http.StatusConflict, "another job is creating this cache")
		}
	}
	if _, err := os.Lstat(filepath.Join(s.cfg.Caches, e.name())); err == nil {
		return nil, refuse(http.StatusConflict, "a cache of this key, version and scope exists already")
	}
	if s.sessions[b.id] != b {
		return nil, errSealed
	}
	if len(s.uploads) >= maxArtifacts {
		return nil, refuse(http.StatusRequestEntityTooLarge, "there are too many uploads")
	}
	dir := filepath.Join(s.cfg.Caches, scratchPrefix+rand.Text())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := newSpool(filepath.Join(dir, cacheContent), min(limit, s.cfg.MaxCaches))
	if err != nil {
		return nil, errors.Join(err, rmtree.Remove(dir))
	}
	u := &upload{id: s.next(), session: b, spool: file, cache: e}
	s.uploads[u.id] = u
	return u, nil
}

// keepCache ends the upload of a cache.
func (s *Server) keepCache(u *upload, size int64) error {
	if size < 0 {
		return refuse(http.StatusBadRequest, "the cache has no size")
	}
	if _, err := u.spool.seal(size); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.uploads, u.id)
	dir := filepath.Dir(u.spool.path)
	e := *u.cache
	e.Size, e.Created = size, time.Now()
	text, err := json.Marshal(e)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, cacheFile), text, 0o600)
	}
	if err == nil {
		s.makeRoom(size)
		err = os.Rename(dir, filepath.Join(s.cfg.Caches, e.name()))
	}
	if errors.Is(err, fs.ErrExist) {
		err = refuse(http.StatusConflict, "a cache of this key, version and scope exists already")
	}
	if err != nil {
		return errors.Join(err, rmtree.Remove(dir))
	}
	return nil
}

// stored is a cache in the directory.
type stored struct {
	entry
	name string
	used time.Time
}

// list returns the caches in the directory. Another process may remove them at any time.
func (s *Server) list() (all []stored) {
	names, err := os.ReadDir(s.cfg.Caches)
	if err != nil {
		return nil
	}
	for _, d := range names {
		if !strings.HasPrefix(d.Name(), cachePrefix) || len(all) == maxCaches {
			continue
		}
		text, err := boundedfile.Read(filepath.Join(s.cfg.Caches, d.Name(), cacheFile), 8<<10)
		c := stored{name: d.Name()}
		if err != nil || json.Unmarshal(text, &c.entry) != nil || c.entry.name() != c.name {
			continue
		}
		if info, err := d.Info(); err == nil {
			c.used = info.ModTime()
		}
		all = append(all, c)
	}
	return all
}

// makeRoom removes the least recently used caches until there is room for size bytes more.
func (s *Server) makeRoom(size int64) {
	all := s.list()
	for _, c := range all {
		size += c.Size
	}
	slices.SortFunc(all, func(a, b stored) int { return a.used.Compare(b.used) })
	for _, c := range all {
		if size <= s.cfg.MaxCaches {
			return
		}
		scratch := filepath.Join(s.cfg.Caches, scratchPrefix+rand.Text())
		if os.Rename(filepath.Join(s.cfg.Caches, c.name), scratch) == nil {
			_ = rmtree.Remove(scratch) // what is left is removed when it was not used for long
		}
		size -= c.Size
	}
}

// lookUp returns the cache that GitHub would take, or nil: of the first scope that has one, the first key that
// matches it, else is its beginning, and then the latest.
func (s *Server) lookUp(b *session, keys []string, version string) (*entry, error) {
	if len(keys) > maxKeys {
		return nil, refuse(http.StatusBadRequest, "there are more than %d keys", maxKeys)
	}
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return nil, err
		}
	}
	if s.cfg.Caches == "" {
		return nil, nil
	}
	all := s.list()
	slices.SortFunc(all, func(a, b stored) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.name, b.name))
	})
	for _, scope := range b.Scopes {
		for _, key := range keys {
			for _, is := range []func(string) bool{
				func(k string) bool { return k == key }, func(k string) bool { return strings.HasPrefix(k, key) },
			} {
				for i := range all {
					if e := &all[i].entry; e.Scope == scope && e.Version == version && is(e.Key) {
						return e, nil
					}
				}
			}
		}
	}
	return nil, nil
}

// downloadCache answers with the content of a cache, and notes its use.
func (s *Server) downloadCache(w http.ResponseWriter, r *http.Request, _ *session) error {
	dir := filepath.Join(s.cfg.Caches, filepath.Base(r.PathValue("name"))) // the URL is signed
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // it may have gone
	path := filepath.Join(dir, cacheContent)
	info, err := os.Lstat(path)
	if err != nil {
		return refuse(http.StatusNotFound, "the cache is not there any more")
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	return send(w, r, path, info.Size(), info.ModTime())
}
