package fetch

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// loginProxy is a server on this machine from which git fetches a private repository. It passes git's requests on with
// the login. So the login is presented even if the server does not ask for it: some servers answer 403 or 404 to a
// request without a login, and git before 2.46 presents a login only after a 401. git and its helpers get only a
// password for the proxy, which is valid while git runs. The owner calls close.
type loginProxy struct {
	repo     *repository
	upstream *url.URL // the repository
	origin   string   // of the proxy
	password string
	server   http.Server
	wg       sync.WaitGroup

	mu  sync.Mutex // guards the following
	err error      // the cause of the first request that failed
}

// maxProxyHeader bounds the header of a request to a loginProxy, in bytes.
const maxProxyHeader = 64 << 10

// newLoginProxy starts a proxy for repo, which has a login. It asks the server by transport.
func newLoginProxy(ctx context.Context, repo *repository, transport http.RoundTripper) (*loginProxy, error) {
	upstream, err := url.Parse(repo.url)
	if err != nil {
		return nil, err // probe has checked it
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fault{fmt.Errorf("listen for git: %w", err)}
	}
	p := &loginProxy{
		repo: repo, upstream: upstream, origin: "http://" + listener.Addr().String(), password: rand.Text(),
	}
	quiet := log.New(io.Discard, "", 0)
	forward := &httputil.ReverseProxy{
		Rewrite: p.rewrite, Transport: transport, ModifyResponse: p.look, ErrorHandler: p.failed, FlushInterval: -1,
		ErrorLog: quiet,
	}
	p.server = http.Server{
		Handler: p.admit(forward), ReadHeaderTimeout: stallTime, MaxHeaderBytes: maxProxyHeader, ErrorLog: quiet,
		ConnState: p.count,
	}
	p.wg.Go(func() { _ = p.server.Serve(listener) }) // until close
	return p, nil
}

// url returns the address of the repository for git.
func (p *loginProxy) url() string { return p.origin + p.upstream.EscapedPath() } // ends with close

// count counts the goroutines of connections.
func (p *loginProxy) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		p.wg.Add(1)
	case http.StateClosed, http.StateHijacked:
		p.wg.Done()
	case http.StateActive, http.StateIdle:
	}
}

// close ends the proxy and its connections, and waits for its goroutines. Requests that are under way fail.
func (p *loginProxy) close() {
	_ = p.server.Close()
	p.wg.Wait()
}

// The paths of git's requests, below that of the repository.
const (
	pathRefs = "/info/refs"
	pathPack = "/git-upload-pack"
)

// admit passes the requests of our git to next, and refuses the requests of other processes.
func (p *loginProxy) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(password), []byte(p.password)) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="stepmux"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.URL.Path != p.upstream.Path+pathRefs && r.URL.Path != p.upstream.Path+pathPack {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// rewrite turns a request that admit has passed into a request to the server.
func (p *loginProxy) rewrite(r *httputil.ProxyRequest) {
	path := r.Out.URL.Path
	r.Out.URL = &url.URL{Scheme: p.upstream.Scheme, Host: p.upstream.Host, Path: path, RawQuery: r.In.URL.RawQuery}
	r.Out.Host = ""
	r.Out.Header.Set("Authorization", basicAuth(p.repo.login))
}

// look keeps the server's refusal of the login. git reports only the status.
func (p *loginProxy) look(resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		p.keep(&AccessError{Status: resp.StatusCode, Presented: true})
	}
	return nil
}

// failed answers a request that did not reach the server.
func (p *loginProxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil { // otherwise git has gone
		p.keep(err)
	}
	w.WriteHeader(http.StatusBadGateway)
}

func (p *loginProxy) keep(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

// cause returns the error of the first request that failed, or nil.
func (p *loginProxy) cause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// options returns the options of git for the proxy.
func (p *loginProxy) options() []string {
	return []string{"-c", "credential." + p.origin + ".helper=" + passwordHelper, "-c", "http.proxy="}
}

// passwordHelper is the program that git asks for the password. It copies the lines of [loginProxy.socket]. It needs no
// program but the shell that git starts helpers by.
const passwordHelper = `!f() { while IFS= read -r line; do printf '%s\n' "$line"; done <&4; }; f`

// socket returns a socket that has the password, for descriptor 4 of git. Every process of this user can read git's
// arguments and environment, and can open the files and pipes that git has open, but no sockets.
func (p *loginProxy) socket() (*os.File, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fault{fmt.Errorf("make a socket for git: %w", err)}
	}
	defer func() { _ = unix.Close(ends[0]) }() // the bytes in the socket stay readable
	socket := os.NewFile(uintptr(ends[1]), "password")
	text := "username=stepmux\npassword=" + p.password + "\n"
	if _, err := unix.SendmsgN(ends[0], []byte(text), nil, nil, unix.MSG_DONTWAIT); err != nil {
		socket.Close()
		return nil, fault{fmt.Errorf("write to a socket for git: %w", err)}
	}
	return socket, nil
}
