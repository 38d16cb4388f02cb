package actionservices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maxCache bounds a cache, in bytes.
	maxCache = 10 << 30
	// maxKey bounds a key, and maxKeys the keys of a request, as with GitHub.
	maxKey, maxKeys = 512, 10
)

const cacheService = "POST /twirp/github.actions.results.api.v1.CacheService/"

func (s *Server) handleCaches() {
	type create struct{ Key, Version string }
	s.mux.HandleFunc(cacheService+"CreateCacheEntry", call(s, http.StatusOK,
		func(r request, b *session, asked *create) (any, error) {
			u, err := s.reserve(r.Context(), b, asked.Key, asked.Version)
			if err != nil {
				return nil, err
			}
			return map[string]any{"ok": true, "signed_upload_url": s.signed(r.Request, b, fmt.Sprintf("/uploads/%d", u.id))}, nil
		}))
	type finalize struct {
		Key     string
		Version string
		Size    number `json:"size_bytes"`
	}
	s.mux.HandleFunc(cacheService+"FinalizeCacheEntryUpload", call(s, http.StatusOK,
		func(r request, b *session, asked *finalize) (any, error) {
			u := s.find(b, func(u *upload) bool {
				return u.cache != nil && u.cache.Key == asked.Key && u.cache.Version == asked.Version
			})
			if u == nil {
				return nil, refuse(http.StatusNotFound, "the cache was not created")
			}
			err := s.keepCache(r, u, int64(asked.Size))
			return map[string]any{"ok": err == nil, "entry_id": strconv.FormatInt(u.id, 10)}, err
		}))
	type lookup struct {
		Key     string
		Restore []string `json:"restore_keys"`
		Version string
	}
	s.mux.HandleFunc(cacheService+"GetCacheEntryDownloadURL", call(s, http.StatusOK,
		func(r request, b *session, asked *lookup) (any, error) {
			e, err := s.lookUp(r.Context(), b, append([]string{asked.Key}, asked.Restore...), asked.Version)
			if err != nil || e == nil {
				return map[string]any{"ok": false}, err
			}
			return map[string]any{"ok": true, "matched_key": e.Key, "signed_download_url": s.cacheURL(r.Request, b, e)}, nil
		}))

	const v1 = "/_apis/artifactcache/"
	s.mux.HandleFunc("GET "+v1+"cache", s.authorized(func(w http.ResponseWriter, r *http.Request, b *session) error {
		asked := r.URL.Query()
		e, err := s.lookUp(r.Context(), b, strings.Split(asked.Get("keys"), ","), asked.Get("version"))
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
		func(r request, b *session, asked *reserve) (any, error) {
			if asked.CacheSize > maxCache {
				return nil, errTooBig
			}
			u, err := s.reserve(r.Context(), b, asked.Key, asked.Version)
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
		func(r request, b *session, asked *commit) (any, error) {
			u, err := s.cacheUpload(r.Request, b)
			if err != nil {
				return nil, err
			}
			return map[string]any{}, s.keepCache(r, u, int64(asked.Size))
		}))
	s.mux.HandleFunc("GET /caches/{content}/{size}", s.bySignature(s.downloadCache))
}

func (s *Server) cacheURL(r *http.Request, b *session, e *Cache) string {
	return s.signed(r, b, fmt.Sprintf("/caches/%s/%d", e.Content, e.Size))
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

// reserve begins a cache.
func (s *Server) reserve(ctx context.Context, b *session, key, version string) (*upload, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if version == "" || len(version) > maxKey {
		return nil, refuse(http.StatusBadRequest, "the version of the cache is missing or too long")
	}
	if s.hasNoCaches() {
		return nil, refuse(http.StatusBadRequest, "caches are not kept here")
	}
	e := &Cache{Key: key, Version: version, Scope: b.Scopes[0]}
	all, err := s.store.Caches(ctx, b.Project)
	if err != nil {
		return nil, err
	}
	for i := range all {
		other := &all[i]
		if other.Key != key || other.Version != version || other.Scope != e.Scope {
			continue
		}
		kept, err := s.store.UseCache(ctx, b.Project, other)
		if err == nil && kept {
			err = errCached
		}
		if err != nil {
			return nil, err
		}
	}
	return s.begin(b, min(maxCache, s.cfg.MaxCaches), &upload{cache: e})
}

var errCached = refuse(http.StatusConflict, "a cache of this key, version and scope exists already")

// hasNoCaches reports whether caches are neither found nor saved.
func (s *Server) hasNoCaches() bool { return s.cfg.Store == nil && s.cfg.Caches == "" }

// keepCache ends the upload of a cache.
func (s *Server) keepCache(r request, u *upload, size int64) error {
	e := *u.cache
	e.Size, e.Created = size, time.Now()
	err := s.complete(r, u, size, func(ctx context.Context, file string) error {
		sum, err := s.store.KeepCache(ctx, u.session.Project, e, file)
		if err == nil {
			*r.saved = saved{size: size, sum: sum}
		}
		return err
	})
	if errors.Is(err, fs.ErrExist) {
		return errCached
	}
	return err
}

// lookUp returns the cache that GitHub would take, or nil: of the first scope that has one, the first key that
// matches it, else is its beginning, and then the latest.
func (s *Server) lookUp(ctx context.Context, b *session, keys []string, version string) (*Cache, error) {
	if len(keys) > maxKeys {
		return nil, refuse(http.StatusBadRequest, "there are more than %d keys", maxKeys)
	}
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return nil, err
		}
	}
	if s.hasNoCaches() {
		return nil, nil
	}
	all, err := s.store.Caches(ctx, b.Project)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Cache) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Content, b.Content))
	})
	for _, scope := range b.Scopes {
		for _, key := range keys {
			for _, is := range []func(string) bool{
				func(k string) bool { return k == key }, func(k string) bool { return strings.HasPrefix(k, key) },
			} {
				for i := range all {
					e := &all[i]
					if e.Scope != scope || e.Version != version || !is(e.Key) {
						continue
					}
					if kept, err := s.store.UseCache(ctx, b.Project, e); err != nil || kept {
						return e, err
					}
				}
			}
		}
	}
	return nil, nil
}

// downloadCache answers with the content of a cache.
func (s *Server) downloadCache(w http.ResponseWriter, r *http.Request, _ *session) error {
	size, _ := strconv.ParseInt(r.PathValue("size"), 10, 64) // the URL is signed
	transfer(w, size)
	file, sum, err := s.store.Open(r.Context(), r.PathValue("content"))
	w.Header().Set("Content-Type", "application/octet-stream")
	return send(w, r, opened{file, sum, size}, err, time.Time{})
}
