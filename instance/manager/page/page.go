package page

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"html/template"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance/manager/access"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/boundedhttp"
)

// askTimeout bounds a call to the manager.
const askTimeout = 30 * time.Second

// Config is the configuration of a page.
type Config struct {
	// Manager is a client of the manager. The caller closes its connection after the server. Required.
	Manager pb.ManagerClient
	// As returns a context for calls on behalf of somebody. May be nil.
	As func(ctx context.Context, who string) context.Context
	// Token is the token that browsers log in with. If nil, the page is read-only and answers to the names of this machine
	// alone, and the listener must be one that no other machine reaches.
	Token *access.Token
	// TLS says that the listener speaks TLS.
	TLS bool
	// Metrics serves /metrics. May be nil.
	Metrics http.Handler
	// Hook takes a webhook of a server that the manager takes jobs from. It checks the sender, and bounds the body. May be
	// nil.
	Hook func(server string, w http.ResponseWriter, r *http.Request)
	// Version is the program's version.
	Version string
	// Logger receives the server's errors. If nil, slog.Default.
	Logger *slog.Logger
}

// Serve answers on a listener, which it closes, until the returned server is closed.
func Serve(listener net.Listener, cfg Config) *boundedhttp.Server {
	all := newPages(cfg)
	forms := http.MaxBytesHandler(all, boundedhttp.MaxBody)
	return boundedhttp.ServeFiles(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, hooks) {
			all.ServeHTTP(w, r)
			return
		}
		forms.ServeHTTP(w, r)
	}), cfg.Logger)
}

//go:embed page.html
var pageText string

// pages are the handlers. They own no goroutine.
type pages struct {
	cfg     Config
	mux     *http.ServeMux
	origins *http.CrossOriginProtection
	layout  *template.Template
	facts   facts
	streams chan struct{} // places of streams
}

func newPages(cfg Config) *pages {
	p := &pages{
		cfg: cfg, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(),
		layout: template.Must(template.New("").Funcs(functions).Parse(pageText)), streams: make(chan struct{}, maxStreams),
	}
	p.facts.manager = cfg.Manager
	page := func(name string, data pageData, paths ...string) {
		for _, path := range paths {
			p.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
				defer cancel()
				v, err := data(ctx, r)
				p.answer(w, r, name, v, err)
			})
		}
	}
	page("overview", p.overview, "/{$}", "/overview.json")
	page("builds", p.builds, "/builds", "/builds.json")
	page("build", p.build, "/builds/{id}")
	page("pipelines", p.pipelines, "/pipelines", "/pipelines.json")
	page("pipeline", p.pipeline, "/pipelines/{id}")
	page("vm", p.vm, "/vms/{id}")
	page("failures", p.failures, "/failures", "/failures.json")
	page("audit", p.audit, "/audit", "/audit.json")
	page("events", p.events, "/vm-events", "/vm-events.json")
	p.mux.HandleFunc("GET /events", p.liveOverview)
	p.mux.HandleFunc("GET /vms/{id}/events", p.liveVM)
	p.mux.HandleFunc("GET /builds/{id}/events", p.liveBuild)
	p.mux.HandleFunc("GET /pipelines/events", p.livePipelines)
	p.mux.HandleFunc("GET /pipelines/{id}/events", p.livePipeline)
	p.mux.HandleFunc("POST /vms/{id}/drain", p.action(p.drain))
	p.mux.HandleFunc("POST /vms/{id}/undrain", p.action(p.undrain))
	p.mux.HandleFunc("POST /builds/{id}/cancel", p.action(p.cancel))
	p.mux.HandleFunc("POST /pipelines/{id}/cancel", p.action(p.cancel))
	p.mux.HandleFunc("POST /pipelines/{id}/retry", p.action(p.retry))
	p.mux.HandleFunc("POST /pipelines/{id}/play", p.action(p.play))
	p.mux.HandleFunc("GET /login", p.showLogin)
	p.mux.HandleFunc("POST /login", p.login)
	p.mux.HandleFunc("POST /logout", p.logout)
	p.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // a client that hangs up does not need it
	})
	if cfg.Metrics != nil {
		p.mux.Handle("GET /metrics", cfg.Metrics)
	}
	if cfg.Hook != nil {
		p.mux.HandleFunc("POST "+hooks+"{server}", func(w http.ResponseWriter, r *http.Request) {
			cfg.Hook(r.PathValue("server"), w, r)
		})
	}
	return p
}

// hooks is the path of webhooks, before the name of a server.
const hooks = "/hooks/gitea/"

// pageData returns the data that a page shows.
type pageData func(context.Context, *http.Request) (any, error)

// nonceKey is the key of a request's nonce (Content Security Policy) in its context.
type nonceKey struct{}

// parameters are those that a URL may have.
var parameters = map[string]bool{"q": true, "sort": true, "offset": true}

// ServeHTTP implements http.Handler: it lets in those that may see a page.
func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	nonce := rand.Text()
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+nonce+"'; script-src 'nonce-"+nonce+
		"'; img-src data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	r = r.WithContext(context.WithValue(r.Context(), nonceKey{}, nonce))
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		p.refuse(w, r, http.StatusBadRequest, "the query of the address is not valid")
		return
	}
	for name, values := range query {
		if !parameters[name] || len(values) != 1 || len(values[0]) > maxQuery {
			p.refuse(w, r, http.StatusBadRequest, "the address has a parameter that this page does not take. A token does "+
				"not belong there: addresses are kept in histories and logs. Log in, or send it in the header Authorization")
			return
		}
	}
	if p.cfg.Token == nil && !isThisMachine(r.Host) {
		p.refuse(w, r, http.StatusForbidden, "without a token this page answers to localhost and 127.0.0.1 alone")
		return
	}
	if err := p.origins.Check(r); err != nil {
		p.refuse(w, r, http.StatusForbidden, "another site has sent this request")
		return
	}
	open := r.URL.Path == "/login" || r.URL.Path == "/healthz" || strings.HasPrefix(r.URL.Path, hooks)
	if !open && !p.seesPages(r) {
		if r.Method == http.MethodGet && !wantsJSON(r) && !strings.HasSuffix(r.URL.Path, "/events") &&
			r.URL.Path != "/events" && r.URL.Path != "/metrics" {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		h.Set("WWW-Authenticate", "Bearer")
		p.refuse(w, r, http.StatusUnauthorized, "log in, or send the token in the header Authorization: Bearer")
		return
	}
	if _, pattern := p.mux.Handler(r); pattern == "" {
		p.refuse(w, r, http.StatusNotFound, "there is no such page")
		return
	}
	p.mux.ServeHTTP(w, r)
}

// maxQuery bounds a parameter of a URL, in bytes.
const maxQuery = 300

// isThisMachine reports whether the header Host names this machine by a name that no name server can give to another
// one: a page of a foreign site could reach this one under its own name otherwise.
func isThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// wantsJSON reports whether the twin in JSON of a page is wanted.
func wantsJSON(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, ".json") || strings.Contains(r.Header.Get("Accept"), "application/json")
}

// frame is the data of a page's template.
type frame struct {
	Title, Nonce, Version string
	Path                  string // of the page
	CSRF                  string // for forms; empty if they are not allowed
	LoggedIn              bool
	Metrics               bool
	Data                  any
}

// answer sends a page, or its twin in JSON.
func (p *pages) answer(w http.ResponseWriter, r *http.Request, name string, data any, err error) {
	if err != nil {
		code, text := http.StatusInternalServerError, "the manager cannot tell: "
		switch status.Code(err) {
		case codes.NotFound:
			code, text = http.StatusNotFound, ""
		case codes.InvalidArgument:
			code, text = http.StatusBadRequest, ""
		case codes.FailedPrecondition:
			code, text = http.StatusConflict, ""
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			code = http.StatusServiceUnavailable
		default: // it is the manager's
		}
		p.refuse(w, r, code, text+status.Convert(err).Message())
		return
	}
	p.send(w, r, http.StatusOK, name, data)
}

// problem is an error as JSON.
type problem struct {
	Error string `json:"error"`
}

// refuse answers with an error.
func (p *pages) refuse(w http.ResponseWriter, r *http.Request, code int, text string) {
	p.send(w, r, code, "problem", problem{text})
}

func (p *pages) send(w http.ResponseWriter, r *http.Request, code int, name string, data any) {
	var text bytes.Buffer
	kind := "text/html; charset=utf-8"
	var err error
	if wantsJSON(r) {
		kind = "application/json"
		enc := json.NewEncoder(&text)
		enc.SetIndent("", "  ")
		err = enc.Encode(data)
	} else {
		err = p.layout.ExecuteTemplate(&text, name, p.frame(r, name, data))
	}
	if err != nil {
		panic("BUG: write a page: " + err.Error()) // it is written to memory, from data that always has a form
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	_, _ = w.Write(text.Bytes()) // the browser may have gone
}

func (p *pages) frame(r *http.Request, name string, data any) frame {
	nonce, _ := r.Context().Value(nonceKey{}).(string)
	f := frame{
		Title: name, Nonce: nonce, Version: p.cfg.Version, Path: r.URL.Path, Data: data, Metrics: p.cfg.Metrics != nil,
	}
	if cookie := p.session(r); cookie != "" {
		f.LoggedIn, f.CSRF = true, p.formToken(cookie)
	}
	return f
}
