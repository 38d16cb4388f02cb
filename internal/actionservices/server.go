package actionservices

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/oserr"
)

const (
	// maxRequest bounds a request that is no file, in bytes.
	maxRequest = 1 << 20
	// slowest is the slowest transfer that is waited for, in bytes a second, after patience.
	slowest  = 64 << 10
	patience = time.Minute
)

// DefaultArtifacts bounds the artifacts of a run, in bytes, and defaultCaches all caches.
const (
	DefaultArtifacts = 20 << 30
	defaultCaches    = 10 << 30
)

// Config says where a Server keeps files.
type Config struct {
	// Dir is a new directory of this user's, for the artifacts. The owner removes it after Close. Unused with a Store.
	Dir string
	// Caches is a directory for the caches of a project. Several processes may use it at the same time. It is made when
	// the first cache is saved. If empty, there is no cache: nothing is found, and nothing is saved. Unused with a Store.
	Caches string
	// Store keeps artifacts and caches. If nil, they are in Dir and Caches. With a Store, the service for artifacts before
	// v4 is refused: it has thousands of files, one by one.
	Store Store
	// MaxArtifacts bounds the artifacts of a run, in bytes; zero: 20 GiB. MaxCaches bounds a cache, and the directory
	// Caches, of which the least recently used are removed; zero: 10 GiB. MaxUploads bounds all uploads that are not
	// complete; zero: both together.
	MaxArtifacts, MaxCaches, MaxUploads int64
	// Reserve is the room on the disk that uploads leave to others, in bytes.
	Reserve int64
	// Secret signs URLs. If empty, a new one.
	Secret []byte
	// Resume says that uploads which are not complete stay in the Store's Scratch when the process ends. Another one with
	// the same Secret goes on with them when it begins the same Job. Scratch is one directory then.
	Resume bool
}

// Job describes a job to the services.
type Job struct {
	// Run is the run of the job: its jobs see each other's artifacts. It has no colon.
	Run string
	// Name is the name of the job. Build is its build, and Attempt that of the run: an artifact of an earlier Attempt, or
	// of another Build of the job, makes way for one of the same name, as on GitHub.
	Name, Build string
	Attempt     int
	// Project has the caches that the job finds. With the directory Caches it is unused.
	Project string
	// Scopes are the references of git whose caches the job finds, such as refs/heads/main, in order. It saves to the
	// first one. If empty, there is one scope for all.
	Scopes []string
	// Key makes the token, with the other fields: the same Job has the same token in each process. If empty, a new one.
	Key string
	// Began is the time in the token. If zero, now.
	Began time.Time
	// Token is the token of the job, if another server has made it. If empty, a new one.
	Token string
}

// Server serves artifacts and caches. It is safe for concurrent use.
type Server struct {
	cfg   Config
	store Store
	room  room // for uploads that are not complete
	mux   *http.ServeMux

	mu       sync.Mutex // guards the following
	number   int64      // of uploads and artifacts
	sessions map[string]*session
	runs     map[string]*run
	uploads  map[int64]*upload
}

// session is a job that has not ended.
type session struct {
	Job
	id   string // the digest of the token
	made bool   // artifacts; guarded by Server.mu
}

// run has the artifacts of a run that are trees of files.
type run struct {
	containers map[string]*container
	bytes      int64 // of them
}

// New returns a Server. The caller closes it.
func New(cfg Config) *Server {
	if cfg.MaxArtifacts == 0 {
		cfg.MaxArtifacts = DefaultArtifacts
	}
	if cfg.MaxCaches == 0 {
		cfg.MaxCaches = defaultCaches
	}
	if cfg.MaxUploads == 0 {
		cfg.MaxUploads = cfg.MaxArtifacts + cfg.MaxCaches
	}
	if len(cfg.Secret) == 0 {
		cfg.Secret = make([]byte, sha256.Size)
		_, _ = rand.Read(cfg.Secret) // it never fails
	}
	s := &Server{
		cfg: cfg, store: cfg.Store, room: room{left: cfg.MaxUploads, reserve: cfg.Reserve}, mux: http.NewServeMux(),
		sessions: map[string]*session{}, runs: map[string]*run{}, uploads: map[int64]*upload{},
	}
	s.handleArtifacts()
	if s.store == nil {
		s.store = &dirs{dir: cfg.Dir, caches: cfg.Caches, maxCaches: cfg.MaxCaches, runs: map[string]map[string]Artifact{}}
		s.handleContainers()
	} else {
		s.mux.HandleFunc("/_apis/pipelines/workflows/", s.authorized(refuseContainers))
	}
	s.handleCaches()
	s.handleBlobs()
	return s
}

// Begin registers a job, and returns its token and a function for its end, which reports whether the job has made
// artifacts. After that the token opens nothing, and the uploads that the job has not finished are gone.
func (s *Server) Begin(j Job) (token string, end func() (made bool)) {
	if len(j.Scopes) == 0 {
		j.Scopes = []string{""}
	}
	if token = j.Token; token == "" {
		token = newToken(j)
	}
	b := &session{Job: j, id: idOf(token)}
	s.mu.Lock()
	s.sessions[b.id] = b
	if s.cfg.Resume {
		s.resume(b)
	}
	s.mu.Unlock()
	return token, func() bool {
		s.mu.Lock()
		made := b.made
		if s.sessions[b.id] == b {
			delete(s.sessions, b.id)
		}
		var left []*upload
		for _, u := range s.uploads {
			if u.session == b {
				left = append(left, u)
			}
		}
		s.dropItems(b)
		s.mu.Unlock()
		for _, u := range left {
			s.discard(u)
		}
		return made
	}
}

// Forget removes the artifacts of a run without jobs.
func (s *Server) Forget(ctx context.Context, run string) {
	all, err := s.store.Artifacts(ctx, run)
	if err != nil {
		return // the Store keeps them as long as others
	}
	for _, a := range all {
		_ = s.store.RemoveArtifact(ctx, run, a.Name) // as above
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[run]; r != nil {
		for _, c := range r.containers {
			for _, f := range c.files {
				_ = os.Remove(f.spool.at()) // its directory goes later
			}
		}
		delete(s.runs, run)
	}
}

// Close ends the uploads that are not complete, and removes them unless another process goes on with them. The owner
// has closed the listener.
func (s *Server) Close() {
	s.mu.Lock()
	left := s.uploads
	s.uploads = map[int64]*upload{}
	s.dropItems(nil)
	s.mu.Unlock()
	for _, u := range left {
		if s.cfg.Resume {
			u.spool.leave()
		} else {
			u.spool.discard()
		}
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// newToken returns a token in the form of a JSON Web Token (RFC 7519), as the clients read from it the run and the job.
// Its last part is secret: the token is known, and no signature is checked.
func newToken(j Job) string {
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err) // there are texts and numbers only
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	now := j.Began
	if now.IsZero() {
		now = time.Now()
	}
	key := j.Key
	if key == "" {
		key = rand.Text()
	}
	access, _ := json.Marshal([]map[string]any{{"Scope": cut(j.Scopes[0]), "Permission": 3}}) // as above
	return part(map[string]string{"alg": "HS256", "typ": "JWT"}) + "." + part(map[string]any{
		"scp": fmt.Sprintf("Actions.Results:%s:%s", j.Run, hex.EncodeToString([]byte(cut(j.Name)))), "ac": string(access),
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(24 * time.Hour).Unix(),
	}) + "." + key
}

// cut cuts a text for the token, which a step runner bounds. It is for the messages of clients.
func cut(text string) string { return text[:min(len(text), 256)] }

// idOf returns the name under which a token is known. A lookup by it tells nothing about the token by its time.
func idOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// session returns the job with an id, or nil.
func (s *Server) session(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// authorized returns a handler that calls next with the job of a request's token, and answers others.
func (s *Server) authorized(next func(http.ResponseWriter, *http.Request, *session) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		b := s.session(idOf(token))
		if !ok || b == nil {
			answer(w, &refusal{http.StatusUnauthorized, "the token is missing or wrong, or its job has ended"})
			return
		}
		answer(w, next(w, r, b))
	}
}

// signed returns a URL of this server that needs no token, until the job ends.
func (s *Server) signed(r *http.Request, b *session, path string) string {
	at := &url.URL{Scheme: "http", Host: r.Host, Path: path}
	at.RawQuery = url.Values{"job": {b.id}, "sig": {s.sign(b, path)}}.Encode()
	return at.String()
}

func (s *Server) sign(b *session, path string) string {
	sum := hmac.New(sha256.New, s.cfg.Secret)
	fmt.Fprintf(sum, "%s %s", b.id, path)
	return hex.EncodeToString(sum.Sum(nil))
}

// bySignature is authorized for signed URLs.
func (s *Server) bySignature(next func(http.ResponseWriter, *http.Request, *session) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		given := r.URL.Query()
		b := s.session(given.Get("job"))
		if b == nil || !hmac.Equal([]byte(s.sign(b, r.URL.Path)), []byte(given.Get("sig"))) {
			answer(w, &refusal{http.StatusUnauthorized, "the URL is not signed, or its job has ended"})
			return
		}
		answer(w, next(w, r, b))
	}
}

// refusal is an error that a client may see.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

func refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

var errFull = &refusal{http.StatusInsufficientStorage, "there is no room for it on the disk of stepmux"}

// codes are Twirp's words for statuses.
var codes = map[int]string{
	http.StatusBadRequest: "invalid_argument", http.StatusUnauthorized: "unauthenticated",
	http.StatusNotFound: "not_found", http.StatusConflict: "already_exists",
	http.StatusRequestEntityTooLarge: "resource_exhausted", http.StatusInsufficientStorage: "resource_exhausted",
}

// answer answers a request that has failed, as Twirp does; the older clients show the text of any answer. Of a reason
// of this machine the client gets the words of the system, and no path.
func answer(w http.ResponseWriter, err error) {
	if err == nil {
		return
	}
	told, ok := errors.AsType[*refusal](err)
	switch {
	case ok:
	case oserr.NoSpace(err):
		told = errFull
	default: // the clients try again after a 500, and this stays
		told = &refusal{http.StatusInsufficientStorage, "stepmux could not store or read the file"}
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			told.text += ": " + errno.Error()
		}
	}
	code := codes[told.status]
	if code == "" {
		code = "internal"
	}
	reply(w, told.status, map[string]string{"code": code, "msg": told.text, "message": told.text})
}

// reply answers with JSON.
func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}

// request is a request whose answer may take long: see transfer.
type request struct {
	*http.Request
	w     http.ResponseWriter
	saved *saved // is set if the request has saved a cache
}

// call returns a handler for requests and answers in JSON.
func call[T any](s *Server, status int, do func(request, *session, *T) (any, error)) http.HandlerFunc {
	return s.authorized(func(w http.ResponseWriter, r *http.Request, b *session) error {
		asked := new(T)
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(asked); err != nil {
			return refuse(http.StatusBadRequest, "the request is no JSON of its kind, or too long")
		}
		var kept saved
		said, err := do(request{r, w, &kept}, b, asked)
		switch {
		case err != nil:
		case kept.sum != "":
			replySaved(w, status, said, kept)
		default:
			reply(w, status, said)
		}
		return err
	})
}

// number is a number that JSON may have as a text, as protobuf does for 64 bits.
type number int64

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(text []byte) error {
	return json.Unmarshal([]byte(strings.Trim(string(text), `"`)), (*int64)(n))
}

// next returns a new number, above those of a process before. s.mu is held.
func (s *Server) next() int64 {
	s.number = max(s.number+1, time.Now().UnixMicro())
	return s.number
}

// runOf returns the run of a job. s.mu is held.
func (s *Server) runOf(b *session) *run {
	r := s.runs[b.Run]
	if r == nil {
		r = &run{containers: map[string]*container{}}
		s.runs[b.Run] = r
	}
	return r
}

// scratch returns the path for a new file of a job that is not complete.
func (s *Server) scratch(b *session, id int64, caches bool) (string, error) {
	dir, err := s.store.Scratch(caches)
	return filepath.Join(dir, s.scratchName(b)+strconv.FormatInt(id, 10)), err
}

// scratchName returns the beginning of the names of a job's files that are not complete.
func (s *Server) scratchName(b *session) string { return fmt.Sprintf("%s%.32s-", scratchPrefix, b.id) }

// transfer gives a request the time that a file of size bytes may take.
func transfer(w http.ResponseWriter, size int64) {
	until := time.Now().Add(patience + time.Duration(size/slowest)*time.Second)
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(until)  // a connection has deadlines
	_ = c.SetWriteDeadline(until) // as above
}
