package actionservices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// upload is a file that is not complete.
type upload struct {
	id      int64
	session *session
	spool   *spool
	// The file becomes one of these.
	artifact *Artifact
	cache    *Cache
}

// maxUploads bounds the uploads of a job that are not complete.
const maxUploads = 64

// maxArtifacts bounds the artifacts of a run.
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
		func(r request, b *session, asked *create) (any, error) {
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
		func(r request, b *session, asked *finalize) (any, error) {
			id, err := s.finalizeArtifact(r, b, asked.Name, int64(asked.Size), asked.Hash)
			return map[string]any{"ok": err == nil, "artifact_id": strconv.FormatInt(id, 10)}, err
		}))
	type list struct {
		ids
		Name *string `json:"name_filter"`
		ID   *number `json:"id_filter"`
	}
	s.mux.HandleFunc(artifactService+"ListArtifacts", call(s, http.StatusOK,
		func(r request, b *session, asked *list) (any, error) {
			list, err := s.listArtifacts(r, b, asked.Name, asked.ID)
			return map[string]any{"artifacts": list}, err
		}))
	type named struct {
		ids
		Name string `json:"name"`
	}
	s.mux.HandleFunc(artifactService+"GetSignedArtifactURL", call(s, http.StatusOK,
		func(r request, b *session, asked *named) (any, error) {
			a, err := s.artifact(r.Context(), b, asked.Name)
			if err != nil {
				return nil, err
			}
			return map[string]string{"signed_url": s.signed(r.Request, b, fmt.Sprintf("/artifacts/%d", a.ID))}, nil
		}))
	s.mux.HandleFunc(artifactService+"DeleteArtifact", call(s, http.StatusOK,
		func(r request, b *session, asked *named) (any, error) {
			a, err := s.artifact(r.Context(), b, asked.Name)
			if err == nil {
				err = s.store.RemoveArtifact(r.Context(), b.Run, a.Name)
			}
			if err != nil {
				return nil, err
			}
			return map[string]any{"ok": true, "artifact_id": strconv.FormatInt(a.ID, 10)}, nil
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

func taken(name string) error {
	return refuse(http.StatusConflict, "the run has an artifact %.256q already; a name can be used once", name)
}

// replaces reports whether the job may replace an artifact: that of an earlier attempt.
func (b *session) replaces(a *Artifact) bool {
	return a.Attempt < b.Attempt || a.Job == b.Name && a.Build != b.Build
}

// createArtifact begins an artifact, and returns the URL to which its file is sent.
func (s *Server) createArtifact(r request, b *session, name, mime string) (url string, err error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	if len(mime) > 256 || strings.ContainsAny(mime, "\r\n") {
		return "", refuse(http.StatusBadRequest, "the type of the artifact is not valid")
	}
	left, err := s.roomFor(r.Context(), b, name)
	if err != nil {
		return "", err
	}
	u, err := s.begin(b, left, &upload{artifact: &Artifact{
		Name: name, MIME: mime, Job: b.Name, Attempt: b.Attempt, Build: b.Build,
	}})
	if err != nil {
		return "", err
	}
	return s.signed(r.Request, b, fmt.Sprintf("/uploads/%d", u.id)), nil
}

// roomFor returns how many bytes an artifact of a name may have in the job's run.
func (s *Server) roomFor(ctx context.Context, b *session, name string) (int64, error) {
	all, err := s.store.Artifacts(ctx, b.Run)
	if err != nil {
		return 0, err
	}
	if len(all) >= maxArtifacts {
		return 0, refuse(http.StatusRequestEntityTooLarge, "there are too many artifacts")
	}
	s.mu.Lock()
	left := s.cfg.MaxArtifacts - s.runOf(b).bytes
	s.mu.Unlock()
	for _, a := range all {
		if a.Name != name {
			left -= a.Size
		} else if !b.replaces(&a) {
			return 0, taken(name)
		}
	}
	return max(left, 0), nil
}

// begin begins an upload of at most limit bytes.
func (s *Server) begin(b *session, limit int64, u *upload) (*upload, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := 0
	for _, other := range s.uploads {
		if other.session == b {
			own++
		}
		if u.cache != nil && other.cache != nil && other.session.Project == b.Project && *u.cache == *other.cache {
			return nil, refuse(http.StatusConflict, "another job is creating this cache")
		}
	}
	if own >= maxUploads {
		return nil, refuse(http.StatusRequestEntityTooLarge, "the job has too many uploads that are not complete")
	}
	if s.sessions[b.id] != b {
		return nil, errSealed
	}
	u.id, u.session = s.next(), b
	path, err := s.scratch(b, u.id, u.cache != nil)
	if err == nil {
		u.spool, err = newSpool(path, limit, &s.room)
	}
	if err == nil && s.cfg.Resume {
		if err = u.keepJournal(); err != nil {
			u.spool.discard()
		}
	}
	if err != nil {
		return nil, err
	}
	s.uploads[u.id] = u
	return u, nil
}

// discard ends an upload, and removes its file.
func (s *Server) discard(u *upload) {
	s.mu.Lock()
	delete(s.uploads, u.id)
	s.mu.Unlock()
	u.spool.discard()
}

// complete ends an upload with size bytes, and gives its file to keep. After an error of the client the upload goes on.
func (s *Server) complete(r request, u *upload, size int64, keep func(ctx context.Context, file string) error) error {
	if size < 0 {
		return refuse(http.StatusBadRequest, "the file has no size")
	}
	if _, err := u.spool.seal(size); err != nil {
		return err
	}
	transfer(r.w, size)
	err := s.room.leaves(u.spool.at(), size) // a Store may copy it
	if err == nil {
		err = keep(r.Context(), u.spool.at())
	}
	if err != nil {
		_ = os.Remove(u.spool.at()) // it may be the Store's
	}
	u.spool.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.uploads, u.id)
	return err
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
func (s *Server) finalizeArtifact(
	r request, b *session, name string, size int64, digest string,
) (id int64, err error) {
	if len(digest) > 256 {
		return 0, refuse(http.StatusBadRequest, "the digest of the artifact is not valid")
	}
	u := s.find(b, func(u *upload) bool { return u.artifact != nil && u.artifact.Name == name })
	if u == nil {
		a, err := s.artifact(r.Context(), b, name)
		if err == nil && (a.Job != b.Name || a.Build != b.Build || a.Attempt != b.Attempt || a.Size != size) {
			err = taken(name)
		}
		return a.ID, err // if it is the job's own, an answer was lost
	}
	if a, err := s.artifact(r.Context(), b, name); err == nil && a.ID == u.id { // the process before has kept it
		s.discard(u)
		return a.ID, nil
	}
	left, err := s.roomFor(r.Context(), b, name)
	if err == nil && size > left {
		err = errTooBig
	}
	if err != nil {
		s.discard(u)
		return 0, err
	}
	a := *u.artifact
	a.ID, a.Size, a.Digest, a.Created = u.id, size, digest, time.Now()
	err = s.complete(r, u, size, func(ctx context.Context, file string) error {
		return s.store.KeepArtifact(ctx, b.Run, a, file, b.replaces)
	})
	if errors.Is(err, fs.ErrExist) {
		err = taken(name)
	}
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.made = true
	return a.ID, nil
}

// artifact returns an artifact of the job's run.
func (s *Server) artifact(ctx context.Context, b *session, name string) (a Artifact, err error) {
	all, err := s.store.Artifacts(ctx, b.Run)
	if err != nil {
		return a, err
	}
	i := slices.IndexFunc(all, func(a Artifact) bool { return a.Name == name })
	if i < 0 {
		return a, notFound(name)
	}
	return all[i], nil
}

// listArtifacts returns the artifacts of the job's run that match the filters, the latest first.
func (s *Server) listArtifacts(r request, b *session, name *string, id *number) ([]map[string]any, error) {
	all, err := s.store.Artifacts(r.Context(), b.Run)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Artifact) int { return cmp.Compare(b.ID, a.ID) })
	list := []map[string]any{}
	for _, a := range all {
		if name != nil && *name != a.Name || id != nil && int64(*id) != a.ID {
			continue
		}
		one := map[string]any{
			"workflow_run_backend_id": b.Run, "workflow_job_run_backend_id": a.Job, "name": a.Name,
			"database_id": strconv.FormatInt(a.ID, 10), "size": strconv.FormatInt(a.Size, 10),
			"created_at": a.Created.UTC().Format(time.RFC3339),
		}
		if a.Digest != "" {
			one["digest"] = a.Digest
		}
		list = append(list, one)
	}
	return list, nil
}

// download answers with the file of an artifact.
func (s *Server) download(w http.ResponseWriter, r *http.Request, b *session) error {
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64) // 0 is no artifact
	all, err := s.store.Artifacts(r.Context(), b.Run)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(a Artifact) bool { return a.ID == id })
	if i < 0 {
		return errGone
	}
	a := &all[i]
	kind, name := cmp.Or(a.MIME, "application/zip"), a.Name
	if kind == "application/zip" {
		name += ".zip"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s"`, name)) // checkName allows no quotes
	transfer(w, a.Size)
	file, _, err := s.store.Open(r.Context(), a.Content) // without the sum: most are downloaded once on a VM
	return send(w, r, opened{File: file}, err, a.Created)
}

var errGone = refuse(http.StatusNotFound, "there is no such file any more")
