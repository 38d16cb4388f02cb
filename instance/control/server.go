package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/boundedhttp"
)

// Config is the configuration of a Server.
type Config struct {
	// Path is where the socket is made. If empty, a name unique to the process in Dir.
	Path string
	// Status describes Provider, and drain acts on Group. Both are required.
	Provider *instance.Provider
	Group    *instance.Group
	// Version is the program's version.
	Version string
	// InventoryErr returns the error in the inventory's newest version, or nil. May be nil.
	InventoryErr func() error
}

// Server answers the requests of operators.
type Server struct {
	cfg   Config
	path  string
	dir   string // to be removed with the socket; empty if it is not ours
	since time.Time
	http  *boundedhttp.Server
	close sync.Once
}

// Serve makes the socket and answers requests until Close. The socket of a dead process is replaced; that of a living
// one is an error.
func Serve(cfg Config) (*Server, error) {
	if cfg.Provider == nil || cfg.Group == nil {
		return nil, errors.New("control: Config.Provider or Group is nil")
	}
	listener, dir, err := listen(cfg.Path)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, path: listener.Addr().String(), dir: dir, since: time.Now()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, StatusOf(s.cfg, s.since))
	})
	mux.HandleFunc("POST /v1/instances/{id}/drain", change(cfg.Group.Drain))
	mux.HandleFunc("POST /v1/instances/{id}/undrain", change(cfg.Group.Undrain))
	s.http = boundedhttp.Serve(ownListener{listener}, mux, nil)
	return s, nil
}

// Path returns the path of the socket.
func (s *Server) Path() string { return s.path }

// Close removes the socket, ends the connections and waits for them. Idempotent.
func (s *Server) Close() {
	s.close.Do(func() {
		s.http.Close()
		if s.dir != "" {
			_ = os.Remove(s.dir) // unless another manager has its socket there
		}
	})
}

// change returns the handler of a verb for one instance.
func change(verb func(id string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch err := verb(r.PathValue("id")); {
		case err == nil:
			w.WriteHeader(http.StatusNoContent)
		case errors.Is(err, instance.ErrUnknown):
			answer(w, http.StatusNotFound, problem{err.Error()})
		default:
			answer(w, http.StatusInternalServerError, problem{err.Error()})
		}
	}
}

// problem is the answer to a request that failed.
type problem struct {
	Error string `json:"error"`
}

func answer(w http.ResponseWriter, code int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("BUG: encode %T: %v", body, err)) // only our own types come here
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(text) // a client that hangs up does not need the rest
}
