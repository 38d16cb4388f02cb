// Package artifactstest is a server for tests of artifacts and caches. It follows GitLab's API for the artifacts of
// runners, and it stores objects behind presigned URLs. [New] starts a [Server]; the end of the test stops it.
package artifactstest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// Token is the token of all jobs, and Signature is in the query of all presigned URLs.
const (
	Token     = "glcbt-64_secret"
	Signature = "X-Signature=topsecret"
)

// maxKept bounds an upload whose bytes are kept.
const maxKept = 32 << 20

// Upload is one artifact that was stored.
type Upload struct {
	Job      string // its number
	Query    url.Values
	Filename string
	Data     []byte // nil if there are more than 32 MiB
	SHA256   string
	Size     int64
}

// Request is the head of a request that was received.
type Request struct {
	Method, Path string
	Query        url.Values
	Header       http.Header
}

// Server is the server. Its fields are set before it is used.
type Server struct {
	URL string
	// Answer, if set, may answer a request in the server's place; then it returns true. n counts the requests from 0.
	Answer func(w http.ResponseWriter, r *http.Request, n int) bool

	mu       sync.Mutex // guards the following
	requests []Request
	uploads  []Upload
	objects  map[string]object
}

type object struct {
	data   []byte
	header http.Header
}

// New starts a server.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{objects: map[string]object{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// Requests returns the requests so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// Uploads returns the artifacts that were stored.
func (s *Server) Uploads() []Upload {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uploads
}

// Object returns the bytes and the headers of an object, or nil.
func (s *Server) Object(key string) ([]byte, http.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[key]
	return o.data, o.header
}

// Put stores an object. header can have a Last-Modified.
func (s *Server) Put(key string, data []byte, header http.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = object{data, header}
}

// Presigned returns a URL of an object.
func (s *Server) Presigned(key string) string { return s.URL + "/store/" + key + "?" + Signature }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	n := len(s.requests)
	s.requests = append(s.requests, Request{r.Method, r.URL.Path, r.URL.Query(), r.Header.Clone()})
	s.mu.Unlock()
	if s.Answer != nil && s.Answer(w, r, n) {
		return
	}
	if key, found := strings.CutPrefix(r.URL.Path, "/store/"); found {
		s.store(w, r, key)
		return
	}
	job, found := strings.CutPrefix(r.URL.Path, "/api/v4/jobs/")
	job, isArtifacts := strings.CutSuffix(job, "/artifacts")
	switch {
	case !found || !isArtifacts:
		Refuse(w, http.StatusNotFound, "404 Not Found")
	case r.Header.Get("JOB-TOKEN") != Token:
		Refuse(w, http.StatusForbidden, "403 Forbidden")
	case r.Method == http.MethodPost:
		s.take(w, r, job)
	case r.Method == http.MethodGet:
		s.give(w, job)
	default:
		Refuse(w, http.StatusMethodNotAllowed, "405 Method Not Allowed")
	}
}

// Refuse answers as the API does.
func Refuse(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"message":%q}`, message)
}

// take stores an upload.
func (s *Server) take(w http.ResponseWriter, r *http.Request, job string) {
	parts, err := r.MultipartReader()
	if err != nil {
		Refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	part, err := parts.NextPart()
	if err != nil || part.FormName() != "file" {
		Refuse(w, http.StatusBadRequest, "file is missing")
		return
	}
	u := Upload{Job: job, Query: r.URL.Query(), Filename: part.FileName()}
	var kept bytes.Buffer
	h := sha256.New()
	first, err := io.Copy(io.MultiWriter(h, &kept), io.LimitReader(part, maxKept))
	if err == nil {
		var rest int64
		rest, err = io.Copy(h, part)
		u.Size = first + rest
		if u.Data = kept.Bytes(); rest > 0 {
			u.Data = nil
		}
	}
	if err == nil { // the upload is complete with the last boundary
		if _, err = parts.NextPart(); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		Refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	u.SHA256 = hex.EncodeToString(h.Sum(nil))
	s.mu.Lock()
	s.uploads = append(s.uploads, u)
	s.mu.Unlock()
	Refuse(w, http.StatusCreated, "201 Created")
}

// give sends the newest archive of a job. Other jobs cannot get reports.
func (s *Server) give(w http.ResponseWriter, job string) {
	for i := len(s.Uploads()) - 1; i >= 0; i-- {
		if u := s.Uploads()[i]; u.Job == job && cmp.Or(u.Query.Get("artifact_type"), "archive") == "archive" {
			w.Header().Set("Content-Type", "application/zip")
			_, _ = w.Write(u.Data)
			return
		}
	}
	Refuse(w, http.StatusNotFound, "404 Not Found")
}

// store is the object store.
func (s *Server) store(w http.ResponseWriter, r *http.Request, key string) {
	if r.URL.RawQuery != Signature {
		http.Error(w, "<Error><Code>SignatureDoesNotMatch</Code></Error>", http.StatusForbidden)
		return
	}
	if r.Method == http.MethodPut {
		data, err := io.ReadAll(r.Body)
		if err != nil || int64(len(data)) != r.ContentLength {
			http.Error(w, "incomplete", http.StatusBadRequest)
			return
		}
		s.Put(key, data, r.Header.Clone())
		return
	}
	data, header := s.Object(key)
	if data == nil {
		http.Error(w, "<Error><Code>NoSuchKey</Code></Error>", http.StatusNotFound)
		return
	}
	for name, values := range header {
		if strings.HasPrefix(name, "X-Amz-Meta-") {
			w.Header()[name] = values
		}
	}
	w.Header().Set("Last-Modified", cmp.Or(header.Get("Last-Modified"), time.Now().UTC().Format(http.TimeFormat)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(data)
	}
}
