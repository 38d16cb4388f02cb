package gitlabtest

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
)

// patch appends to a trace. The end of the Content-Range does not count: the server takes that of the body.
func (f *Fake) patch(req *http.Request, id int64, body []byte) *answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, a := f.jobLocked(id, req.Header.Get("Job-Token"))
	if a != nil {
		return a
	}
	if req.Header.Get("Content-Range") == "" {
		return of(http.StatusBadRequest, map[string]string{"error": "400 Missing header Content-Range"})
	}
	first, _, _ := strings.Cut(req.Header.Get("Content-Range"), "-")
	start, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		start = 0 // as Ruby reads it
	}
	end := start + int64(len(body))
	if end > f.cfg.MaxTrace {
		j.Reason = "trace_size_exceeded"
		f.endLocked(j, Failed)
		return of(http.StatusForbidden, map[string]string{"error": "403 Forbidden"})
	}
	if start == int64(len(j.Trace)) {
		j.Trace = append(j.Trace, body...)
	}
	size := strconv.Itoa(len(j.Trace))
	if int64(len(j.Trace)) != end {
		return of(http.StatusRequestedRangeNotSatisfiable, map[string]string{"error": "416 Range Not Satisfiable"},
			"Range", "0-"+size)
	}
	interval := strconv.Itoa(int(f.cfg.Interval.Seconds()))
	a = j.status(http.StatusAccepted, "Range", "0-"+size, "X-GitLab-Trace-Update-Interval", interval)
	a.text = nil
	return a
}

// upload takes an artifact, or says in which store it belongs.
func (f *Fake) upload(req *http.Request, id int64, body []byte) *answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, a := f.jobLocked(id, req.Header.Get("Job-Token"))
	if a != nil {
		return a
	}
	if int64(len(body)) > f.cfg.MaxArtifact {
		return refused(http.StatusRequestEntityTooLarge, "")
	}
	kind := req.URL.Query().Get("artifact_type")
	if kind == "" {
		kind = "archive"
	}
	if f.cfg.Store != "" {
		return of(http.StatusTemporaryRedirect, nil, "Location", f.address(j, kind))
	}
	text, err := fileOf(req.Header.Get("Content-Type"), body)
	if err != nil {
		return of(http.StatusBadRequest, map[string]string{"error": err.Error()})
	}
	j.Artifacts[kind] = text
	return of(http.StatusCreated, http.StatusCreated)
}

// address returns the URL of an artifact in the store.
func (f *Fake) address(j *Job, kind string) string {
	return strings.TrimRight(f.cfg.Store, "/") + "/store/" + strconv.FormatInt(j.ID, 10) + "/" + kind + "?signature=fake"
}

// fileOf returns the file of a form.
func fileOf(contentType string, body []byte) ([]byte, error) {
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, err
	}
	parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := parts.NextPart()
		if err != nil {
			return nil, err
		}
		if part.FormName() == "file" {
			return io.ReadAll(part)
		}
	}
}

// download gives the archive of a job to whoever has its token, which the jobs that depend on it have.
func (f *Fake) download(req *http.Request, id int64) *answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	token := req.Header.Get("Job-Token")
	j := f.jobs[id]
	switch {
	case token == "":
		return refused(http.StatusUnauthorized, "")
	case j == nil || j.Token != token:
		return refused(http.StatusForbidden, "")
	case j.Artifacts["archive"] == nil:
		return refused(http.StatusNotFound, "")
	case f.cfg.Store != "" && req.URL.Query().Get("direct_download") == "true":
		return of(http.StatusFound, nil, "Location", f.address(j, "archive"))
	}
	header := http.Header{"Content-Type": {"application/octet-stream"}}
	return &answer{status: http.StatusOK, header: header, text: j.Artifacts["archive"]}
}

// serveStore is a store of objects: the signature in the URL is enough.
func (f *Fake) serveStore(req *http.Request, key string, body []byte) *answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, kind, _ := strings.Cut(key, "/")
	number, _ := strconv.ParseInt(id, 10, 64) // 0 is no job
	j := f.jobs[number]
	if j == nil || req.URL.Query().Get("signature") != "fake" {
		return &answer{status: http.StatusForbidden, header: http.Header{"Content-Type": {"application/xml"}}, text: []byte(
			"<Error><Code>AccessDenied</Code><Message>no signature</Message></Error>")}
	}
	if req.Method == http.MethodGet {
		return &answer{status: http.StatusOK, header: http.Header{}, text: j.Artifacts[kind]}
	}
	text, err := fileOf(req.Header.Get("Content-Type"), body)
	if err != nil {
		return &answer{status: http.StatusBadRequest}
	}
	j.Artifacts[kind] = text
	return of(http.StatusCreated, nil)
}
