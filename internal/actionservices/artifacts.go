package actionservices

import (
	"cmp"
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

	"github.com/stepmux/stepmux/internal/rmtree"
)

// artifact is an artifact of the service v4: one file, mostly an archive.
type artifact struct {
	id         int64
	name, mime string
	digest     string // as the client gave it; empty if it did not
	job        string
	size       int64
	created    time.Time
}

// upload is a file that is not complete.
type upload struct {
	id      int64
	session *session
	spool   *spool
	artifact
	cache *entry
}

// maxArtifacts bounds the artifacts of a run, and the open uploads.
const maxArtifacts = 10_000

const artifactService = "POST /twirp/github.actions.results.api.v1.ArtifactService/"

// run and job of a request, which the client has from the token. The token itself decides.
type ids struct {
	Run string `json:"workflow_run_backend_id"`
	Job string `json:"workflow_job_run_backend_id"`
}

func (s *Server) handleArtifacts() {
	type create struct {
		ids
		Name string `json:"name"`
		MIME string `json:"mime_type"`
	}
	s.mux.HandleFunc(artifactService+"CreateArtifact", call(s, http.StatusOK,
		func(r *http.Request, b *session, asked *create) (any, error) {
			url, err := s.createArtifact(r, b, asked.Name, asked.MIME)
			return map[string]any{"ok": err == nil, "signed_upload_url": url}, err
		}))
	type finalize struct {
		ids
		Name string `json:"name"`
		Size number `json:"size"`
		Hash string `json:"hash"`
	}
	s.mux.HandleFunc(artifactService+"FinalizeArtifact", call(s, http.StatusOK,
		func(_ *http.Request, b *session, asked *finalize) (any, error) {
			id, err := s.finalizeArtifact(b, asked.Name, int64(asked.Size), asked.Hash)
			return map[string]any{"ok": err == nil, "artifact_id": strconv.FormatInt(id, 10)}, err
		}))
	type list struct {
		ids
		Name *string `json:"name_filter"`
		ID   *number `json:"id_filter"`
	}
	s.mux.HandleFunc(artifactService+"ListArtifacts", call(s, http.StatusOK,
		func(_ *http.Request, b *session, asked *list) (any, error) {
			return map[string]any{"artifacts": s.listArtifacts(b, asked.Name, asked.ID)}, nil
		}))
	type named struct {
		ids
		Name string `json:"name"`
	}
	s.mux.HandleFunc(artifactService+"GetSignedArtifactURL", call(s, http.StatusOK,
		func(r *http.Request, b *session, asked *named) (any, error) {
			a := s.artifact(b, asked.Name)
			if a == nil {
				return nil, notFound(asked.Name)
			}
			return map[string]string{"signed_url": s.signed(r, b, fmt.Sprintf("/artifacts/%d", a.id))}, nil
		}))
	s.mux.HandleFunc(artifactService+"DeleteArtifact", call(s, http.StatusOK,
		func(_ *http.Request, b *session, asked *named) (any, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			all := s.runOf(b).artifacts
			a := all[asked.Name]
			if a == nil {
				return nil, notFound(asked.Name)
			}
			delete(all, asked.Name)
			s.remove(a.id, a.size)
			return map[string]any{"ok": true, "artifact_id": strconv.FormatInt(a.id, 10)}, nil
		}))
	s.mux.HandleFunc("GET /artifacts/{id}", s.bySignature(s.download))
}

func notFound(name string) error {
	return refuse(http.StatusNotFound, "there is no artifact %.256q", name)
}

// checkName returns an error unless name can be that of an artifact.
func checkName(name string) error {
	if name == "" || len(name) > 256 || strings.ContainsAny(name, "\\/\":<>|*?\r\n") ||
		strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return refuse(http.StatusBadRequest, "%.256q is no name of an artifact", name)
	}
	return nil
}

// createArtifact begins an artifact, and returns the URL to which its file is sent.
func (s *Server) createArtifact(r *http.Request, b *session, name, mime string) (url string, err error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	if len(mime) > 256 || strings.ContainsAny(mime, "\r\n") {
		return "", refuse(http.StatusBadRequest, "the type of the artifact is not valid")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runOf(b).artifacts[name] != nil {
		return "", refuse(http.StatusConflict, "the run has an artifact %.256q already; a name can be used once", name)
	}
	u, err := s.begin(b, s.cfg.MaxArtifacts-s.bytes)
	if err != nil {
		return "", err
	}
	u.artifact = artifact{id: u.id, name: name, mime: mime, job: b.Name}
	return s.signed(r, b, fmt.Sprintf("/uploads/%d", u.id)), nil
}

// begin begins an upload of at most limit bytes. s.mu is held.
func (s *Server) begin(b *session, limit int64) (*upload, error) {
	if len(s.uploads) >= maxArtifacts || len(s.runOf(b).artifacts) >= maxArtifacts {
		return nil, refuse(http.StatusRequestEntityTooLarge, "there are too many artifacts")
	}
	if s.sessions[b.id] != b {
		return nil, errSealed
	}
	id := s.next()
	file, err := newSpool(s.path(id), max(limit, 0))
	if err != nil {
		return nil, err
	}
	u := &upload{id: id, session: b, spool: file}
	s.uploads[id] = u
	return u, nil
}

// discard ends an upload, and removes its file.
func (s *Server) discard(u *upload) {
	s.mu.Lock()
	delete(s.uploads, u.id)
	s.mu.Unlock()
	u.discard()
}

// discard removes the file of the upload.
func (u *upload) discard() {
	u.spool.discard()
	if u.cache != nil {
		_ = rmtree.Remove(filepath.Dir(u.spool.path)) // what is left is removed when it was not used for long
	}
}

// checked ends an upload that cannot go on because of err, so that the job can begin it again, and returns err. After
// an error of the client or of the connection it goes on.
func (s *Server) checked(u *upload, err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		s.discard(u)
	}
	return err
}

// find returns the upload of a job for which is returns true, or nil. Of several it is the last one.
func (s *Server) find(b *session, is func(*upload) bool) (found *upload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.uploads {
		if u.session == b && is(u) && (found == nil || found.id < u.id) {
			found = u
		}
	}
	return found
}

// finalizeArtifact ends the upload of an artifact.
func (s *Server) finalizeArtifact(b *session, name string, size int64, digest string) (id int64, err error) {
	if len(digest) > 256 {
		return 0, refuse(http.StatusBadRequest, "the digest of the artifact is not valid")
	}
	u := s.find(b, func(u *upload) bool { return u.cache == nil && u.name == name })
	if u == nil {
		return 0, notFound(name)
	}
	if size < 0 {
		return 0, refuse(http.StatusBadRequest, "the artifact has no size")
	}
	if _, err := u.spool.seal(size); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.uploads, u.id)
	all := s.runOf(b).artifacts
	s.bytes += size
	if all[name] != nil || s.bytes > s.cfg.MaxArtifacts {
		s.remove(u.id, size)
		if all[name] != nil {
			return 0, refuse(http.StatusConflict, "the run has an artifact %.256q already; a name can be used once", name)
		}
		return 0, errTooBig
	}
	a := u.artifact
	a.size, a.digest, a.created = size, digest, time.Now()
	all[name] = &a
	b.made = true
	return a.id, nil
}

// artifact returns an artifact of the job's run, or nil.
func (s *Server) artifact(b *session, name string) *artifact {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runOf(b).artifacts[name]
}

// listArtifacts returns the artifacts of the job's run that match the filters, the latest first.
func (s *Server) listArtifacts(b *session, name *string, id *number) []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*artifact
	for _, a := range s.runOf(b).artifacts {
		if (name == nil || *name == a.name) && (id == nil || int64(*id) == a.id) {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *artifact) int { return cmp.Compare(b.id, a.id) })
	list := []map[string]any{}
	for _, a := range all {
		one := map[string]any{
			"workflow_run_backend_id": b.Run, "workflow_job_run_backend_id": a.job, "name": a.name,
			"database_id": strconv.FormatInt(a.id, 10), "size": strconv.FormatInt(a.size, 10),
			"created_at": a.created.UTC().Format(time.RFC3339),
		}
		if a.digest != "" {
			one["digest"] = a.digest
		}
		list = append(list, one)
	}
	return list
}

// download answers with the file of an artifact.
func (s *Server) download(w http.ResponseWriter, r *http.Request, b *session) error {
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64) // 0 is no artifact
	s.mu.Lock()
	var found *artifact
	for _, a := range s.runOf(b).artifacts {
		if a.id == id {
			found = a
		}
	}
	s.mu.Unlock()
	if found == nil {
		return refuse(http.StatusNotFound, "there is no such artifact any more")
	}
	file, name := cmp.Or(found.mime, "application/zip"), found.name
	if file == "application/zip" {
		name += ".zip"
	}
	w.Header().Set("Content-Type", file)
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s"`, name)) // checkName allows no quotes
	return send(w, r, s.path(found.id), found.size, found.created)
}

// send answers with a file, or with parts of it.
func send(w http.ResponseWriter, r *http.Request, path string, size int64, at time.Time) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	transfer(w, size)
	http.ServeContent(w, r, "", at, file)
	return nil
}
