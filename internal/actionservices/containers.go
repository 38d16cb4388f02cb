package actionservices

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// container is an artifact of the service before v4: a tree of files.
type container struct {
	id    int64
	size  int64 // of all files, as the client says at the end
	done  bool
	files map[string]*item // by path, which begins with the name of the artifact
}

// item is a file of a container.
type item struct {
	id      int64
	session *session
	spool   *spool
	done    bool  // guarded by Server.mu, as created
	size    int64 // as it is stored
	gzip    bool
	created time.Time
}

// maxItems bounds the files of an artifact.
const maxItems = 100_000

const workflows = "/_apis/pipelines/workflows/{run}/artifacts"

func (s *Server) handleContainers() {
	type create struct{ Type, Name string }
	s.mux.HandleFunc("POST "+workflows, call(s, http.StatusCreated,
		func(r request, b *session, asked *create) (any, error) {
			if err := checkName(asked.Name); err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			all := s.runOf(b).containers
			c := all[asked.Name]
			if c == nil {
				if len(all) >= maxArtifacts {
					return nil, refuse(http.StatusRequestEntityTooLarge, "there are too many artifacts")
				}
				c = &container{id: s.next(), files: map[string]*item{}}
				all[asked.Name] = c
			}
			return c.describe(r.Request, asked.Name), nil
		}))
	type patch struct{ Size number }
	s.mux.HandleFunc("PATCH "+workflows, call(s, http.StatusOK,
		func(r request, b *session, asked *patch) (any, error) {
			name := r.URL.Query().Get("artifactName")
			s.mu.Lock()
			defer s.mu.Unlock()
			c := s.runOf(b).containers[name]
			if c == nil {
				return nil, notFound(name)
			}
			for _, f := range c.files {
				if !f.done {
					return nil, refuse(http.StatusBadRequest, "a file of the artifact %.256q is not complete", name)
				}
			}
			c.size, c.done, b.made = int64(asked.Size), true, true
			return c.describe(r.Request, name), nil
		}))
	s.mux.HandleFunc("GET "+workflows, s.authorized(func(w http.ResponseWriter, r *http.Request, b *session) error {
		only := r.URL.Query().Get("artifactName")
		list := []map[string]any{}
		s.mu.Lock()
		all := s.runOf(b).containers
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if all[name].done && (only == "" || only == name) {
				list = append(list, all[name].describe(r, name))
			}
		}
		s.mu.Unlock()
		reply(w, http.StatusOK, map[string]any{"count": len(list), "value": list})
		return nil
	}))
	s.mux.HandleFunc("PUT /containers/{id}", s.authorized(s.putItem))
	s.mux.HandleFunc("GET /containers/{id}", s.authorized(s.listItems))
	s.mux.HandleFunc("GET /containers/{id}/{item}", s.authorized(s.getItem))
}

func at(r *http.Request, format string, args ...any) string {
	return (&url.URL{Scheme: "http", Host: r.Host, Path: fmt.Sprintf(format, args...)}).String()
}

func (c *container) describe(r *http.Request, name string) map[string]any {
	return map[string]any{
		"containerId": c.id, "size": c.size, "signedContent": nil, "type": "actions_storage", "name": name,
		"fileContainerResourceUrl": at(r, "/containers/%d", c.id), "url": at(r, "/containers/%d", c.id),
	}
}

// containerOf returns the container of a request. s.mu is held.
func (s *Server) containerOf(r *http.Request, b *session) (*container, error) {
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64) // 0 is no container
	for _, c := range s.runOf(b).containers {
		if c.id == id {
			return c, nil
		}
	}
	return nil, refuse(http.StatusNotFound, "there is no such artifact")
}

// itemPath returns the path of a file in a container. Those on Windows write it with backslashes.
func itemPath(r *http.Request) (string, error) {
	name := strings.ReplaceAll(r.URL.Query().Get("itemPath"), `\`, "/")
	if name == "" || len(name) > 4096 || path.IsAbs(name) || path.Clean(name) != name || name == ".." ||
		strings.HasPrefix(name, "../") || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return "", refuse(http.StatusBadRequest, "%.256q is no path of a file in an artifact", name)
	}
	return name, nil
}

// putItem writes a piece of a file.
func (s *Server) putItem(w http.ResponseWriter, r *http.Request, b *session) error {
	name, err := itemPath(r)
	if err != nil {
		return err
	}
	from, to, total, err := contentRange(r, r.ContentLength)
	if err == nil && total < 0 {
		err = errLength
	}
	if err != nil {
		return err
	}
	f, err := s.item(r, b, name, total)
	if err != nil {
		return err
	}
	transfer(w, to-from)
	if err := f.spool.put(r.Body, from, to-from, ""); err != nil {
		return err
	}
	if to == total {
		if _, err := f.spool.seal(total); err != nil {
			return err
		}
		f.spool.release()
		s.mu.Lock()
		f.done, f.created = true, time.Now()
		s.mu.Unlock()
	}
	reply(w, http.StatusCreated, map[string]any{})
	return nil
}

// item returns the file of a container for a piece of it.
func (s *Server) item(r *http.Request, b *session, name string, total int64) (*item, error) {
	others, err := s.store.Artifacts(r.Context(), b.Run)
	if err != nil {
		return nil, err
	}
	left := s.cfg.MaxArtifacts
	for _, a := range others {
		left -= a.Size
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.containerOf(r, b)
	if err != nil {
		return nil, err
	}
	if f := c.files[name]; f != nil && !f.done {
		return f, nil
	} else if f != nil { // a later upload of an artifact of this name replaces its files
		_ = os.Remove(f.spool.at()) // the directory goes later
		s.runOf(b).bytes -= f.size
	}
	if len(c.files) >= maxItems || total > left-s.runOf(b).bytes {
		return nil, errTooBig
	}
	f := &item{id: s.next(), session: b, size: total, gzip: r.Header.Get("Content-Encoding") == "gzip"}
	path, err := s.scratch(b, f.id, false)
	if err == nil {
		f.spool, err = newSpool(path, total, &s.room)
	}
	if err != nil {
		return nil, err
	}
	s.runOf(b).bytes += total
	c.files[name] = f
	return f, nil
}

// dropItems removes the files that a job has not finished, or all such files if b is nil. s.mu is held.
func (s *Server) dropItems(b *session) {
	for _, r := range s.runs {
		for _, c := range r.containers {
			for name, f := range c.files {
				if !f.done && (b == nil || f.session == b) {
					f.spool.discard()
					r.bytes -= f.size
					delete(c.files, name)
				}
			}
		}
	}
}

// contentRange reads the header Content-Range. Without one, the whole file is sent. Some clients send pieces without a
// length, which is then -1.
func contentRange(r *http.Request, length int64) (from, to, total int64, err error) {
	text := r.Header.Get("Content-Range")
	if text == "" {
		return 0, length, length, nil
	}
	var last int64
	n, err := fmt.Sscanf(text, "bytes %d-%d/%d", &from, &last, &total)
	if n < 3 {
		total, err = -1, nil
		if n, _ := fmt.Sscanf(text, "bytes %d-%d/*", &from, &last); n < 2 {
			err = refuse(http.StatusBadRequest, "the header Content-Range %.64q is not valid", text)
		}
	}
	to = last + 1
	switch {
	case err != nil:
	case from < 0 || to < from || length >= 0 && to-from != length || total >= 0 && to > total:
		err = refuse(http.StatusBadRequest, "the header Content-Range %.64q does not fit the content", text)
	}
	return from, to, total, err
}

// listItems lists the files of a container.
func (s *Server) listItems(w http.ResponseWriter, r *http.Request, b *session) error {
	under := r.URL.Query().Get("itemPath")
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.containerOf(r, b)
	if err != nil {
		return err
	}
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		f := c.files[name]
		if !f.done || under != "" && name != under && !strings.HasPrefix(name, under+"/") {
			continue
		}
		list = append(list, map[string]any{
			"containerId": c.id, "path": name, "itemType": "file", "status": "created", "fileLength": f.size,
			"contentLocation": at(r, "/containers/%d/%d", c.id, f.id), "contentId": "",
		})
	}
	reply(w, http.StatusOK, map[string]any{"count": len(list), "value": list})
	return nil
}

// getItem answers with a file of a container. The client unpacks it.
func (s *Server) getItem(w http.ResponseWriter, r *http.Request, b *session) error {
	id, _ := strconv.ParseInt(r.PathValue("item"), 10, 64) // 0 is no file
	s.mu.Lock()
	c, err := s.containerOf(r, b)
	var found *item
	if err == nil {
		for _, f := range c.files {
			if f.id == id && f.done {
				found = f
			}
		}
	}
	s.mu.Unlock()
	if found == nil {
		return cmp.Or(err, refuse(http.StatusNotFound, "there is no such file"))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if found.gzip {
		w.Header().Set("Content-Encoding", "gzip")
	}
	transfer(w, found.size)
	file, err := os.Open(found.spool.at())
	return send(w, r, opened{File: file}, err, found.created)
}

// refuseContainers answers a client of this service where it does not exist.
func refuseContainers(http.ResponseWriter, *http.Request, *session) error {
	return refuse(http.StatusNotImplemented, "a manager keeps the artifacts of actions/upload-artifact@v4 and later, "+
		"not those of this older client")
}
