package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

const (
	// sessionTime is how long a login lasts.
	sessionTime = 12 * time.Hour
	// cookieName and secureCookie name the cookie of a login: browsers take the latter by TLS alone.
	cookieName, secureCookie = "stepmux-page", "__Host-stepmux-page"
)

func (p *pages) cookie() string {
	if p.cfg.TLS {
		return secureCookie
	}
	return cookieName
}

// session returns the cookie of a request that has a login, else an empty text. A cookie is a time, a random text and
// their signature with the token: a new token ends all logins.
func (p *pages) session(r *http.Request) string {
	if p.cfg.Token == nil {
		return ""
	}
	c, err := r.Cookie(p.cookie())
	if err != nil {
		return ""
	}
	signed, signature, _ := cutLast(c.Value, '.')
	until, _, _ := strings.Cut(signed, ".")
	seconds, err := strconv.ParseInt(until, 10, 64)
	if err != nil || !equal(signature, p.cfg.Token.Sign("login:"+signed)) || time.Now().After(time.Unix(seconds, 0)) {
		return ""
	}
	return c.Value
}

// cutLast is strings.Cut at the last separator.
func cutLast(text string, separator byte) (before, after string, found bool) {
	i := strings.LastIndexByte(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+1:], true
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// formToken returns the hidden field of the forms of a login.
func (p *pages) formToken(cookie string) string { return p.cfg.Token.Sign("form:" + cookie) }

// shows reports whether a request has the token in its header.
func (p *pages) shows(r *http.Request) bool {
	return p.cfg.Token != nil && p.cfg.Token.Authorizes(r.Header.Get("Authorization"))
}

// seesPages reports whether a request may see pages.
func (p *pages) seesPages(r *http.Request) bool {
	return p.cfg.Token == nil || p.session(r) != "" || p.shows(r)
}

// loginForm is the data of the form.
type loginForm struct {
	Error    string `json:"error,omitempty"`
	Possible bool   `json:"possible"` // this page has a token
}

func (p *pages) showLogin(w http.ResponseWriter, r *http.Request) {
	p.send(w, r, http.StatusOK, "login", loginForm{Possible: p.cfg.Token != nil})
}

func (p *pages) login(w http.ResponseWriter, r *http.Request) {
	if p.cfg.Token == nil {
		p.refuse(w, r, http.StatusForbidden, readOnly)
		return
	}
	if err := r.ParseForm(); err != nil || !p.cfg.Token.Matches(strings.TrimSpace(r.PostForm.Get("token"))) {
		p.send(w, r, http.StatusForbidden, "login", loginForm{"This is not the token.", true})
		return
	}
	signed := strconv.FormatInt(time.Now().Add(sessionTime).Unix(), 10) + "." + rand.Text()
	p.setCookie(w, signed+"."+p.cfg.Token.Sign("login:"+signed), int(sessionTime.Seconds()))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (p *pages) setCookie(w http.ResponseWriter, value string, seconds int) {
	http.SetCookie(w, &http.Cookie{
		Name: p.cookie(), Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: p.cfg.TLS,
		SameSite: http.SameSiteStrictMode,
	})
}

func (p *pages) logout(w http.ResponseWriter, r *http.Request) {
	p.setCookie(w, "", -1)
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

const readOnly = "this page is read-only: start the manager with --token-file to log in here, or use the commands " +
	"drain, undrain and cancel"

// action returns a handler for a form that changes something. do returns an error for the user.
func (p *pages) action(do func(context.Context, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if p.cfg.Token == nil {
			p.refuse(w, r, http.StatusForbidden, readOnly)
			return
		}
		if err := r.ParseForm(); err != nil {
			p.refuse(w, r, http.StatusBadRequest, "the form is not valid, or too large")
			return
		}
		cookie := p.session(r)
		if !p.shows(r) && (cookie == "" || !equal(r.PostForm.Get("csrf"), p.formToken(cookie))) {
			p.refuse(w, r, http.StatusForbidden, "the form is not from this login: load the page again")
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		if p.cfg.As != nil {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			ctx = p.cfg.As(ctx, "page, "+host)
		}
		if err := do(ctx, r); err != nil { //nolint:contextcheck // ctx is that of the request
			p.answer(w, r, "", nil, err)
			return
		}
		p.facts.forget()
		back, _, _ := cutLast(r.URL.EscapedPath(), '/')
		http.Redirect(w, r, back, http.StatusSeeOther)
	}
}

func (p *pages) drain(ctx context.Context, r *http.Request) error {
	req := &pb.DrainRequest{Instances: []string{r.PathValue("id")}, Note: r.PostForm.Get("note")}
	if text := strings.TrimSpace(r.PostForm.Get("for")); text != "" {
		limit, err := time.ParseDuration(text)
		if err != nil || limit <= 0 {
			return status.Error(codes.InvalidArgument, "the time: use a number and a unit, as in 90m or 2h")
		}
		req.For = durationpb.New(limit)
	}
	_, err := p.cfg.Manager.Drain(ctx, req)
	return err
}

func (p *pages) undrain(ctx context.Context, r *http.Request) error {
	_, err := p.cfg.Manager.Undrain(ctx, &pb.UndrainRequest{Instances: []string{r.PathValue("id")}})
	return err
}

func (p *pages) cancel(ctx context.Context, r *http.Request) error {
	_, err := p.cfg.Manager.Cancel(ctx, &pb.CancelRequest{Id: r.PathValue("id")})
	return err
}

// pathTo returns the path of the page of a VM or a build.
func pathTo(kind, id string) string { return "/" + kind + "/" + url.PathEscape(id) }
