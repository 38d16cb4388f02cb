package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/instance/manager"
	"github.com/stepmux/stepmux/instance/manager/access"
	"github.com/stepmux/stepmux/instance/manager/giteadoor"
	"github.com/stepmux/stepmux/instance/manager/gitlabdoor"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/page"
	"github.com/stepmux/stepmux/instance/manager/sshdoor"
)

// doorFlags are the flags for the services of a manager on TCP: SSH, its API and its status page.
type doorFlags struct {
	ssh, sshKeys         string
	sshForward           bool
	api, page            string
	cert, certKey, token string
	gitea                giteadoor.Servers
	gitlab               gitlabdoor.Servers
}

func (f *doorFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.ssh, "ssh-listen", "", "serve SSH on `[HOST]:PORT`: each login gets a slot on a VM (default off)")
	fl.StringVar(&f.sshKeys, "ssh-authorized-keys", "",
		"`FILE` with the public keys that may log in over --ssh-listen, and so run any program on the VMs")
	fl.BoolVar(&f.sshForward, "ssh-forward", false,
		"let logins over --ssh-listen connect to addresses and unix sockets from their VM")
	grouped(fl, sshGroup)
	fl.StringVar(&f.api, "api-listen", "",
		"serve the commands' API by TLS on [HOST]:PORT, to clients that show the token (default off)")
	fl.StringVar(&f.page, "http-listen", "", "serve the status page on [HOST]:PORT; without HOST for this machine only; "+
		"without --token-file to this machine only, and read-only (default off)")
	fl.StringVar(&f.cert, "tls-cert", "", "file with the certificate of --api-listen and --http-listen, in PEM (default "+
		"a self-signed one, created at the first start: -v logs its fingerprint)")
	fl.StringVar(&f.certKey, "tls-key", "", "file with the key of --tls-cert, in PEM")
	fl.StringVar(&f.token, "token-file", "", "file with the token for --api-listen and --http-listen; it is made if it "+
		"is missing (default for --api-listen token in the state directory)")
	fl.Var(&f.gitea, "gitea", "take jobs from Gitea and Forgejo servers: a mapping with url, token-file and other keys "+
		"for each, see docs/gitea.md (default off)")
	fl.Var(&f.gitlab, "gitlab", "take jobs from GitLab servers: a mapping with url, token-file and other keys for each, "+
		"see docs/gitlab.md (default off)")
	grouped(fl, doorGroup)
}

// shares are those of the servers among the parties that wait for slots.
func (f *doorFlags) shares() map[string]int {
	shares := map[string]int{}
	for _, c := range f.gitea.Servers {
		shares[c.Party()] = c.Share
	}
	for _, c := range f.gitlab.Servers {
		shares[c.Party()] = c.Share
	}
	return shares
}

// tcpDoors are the TCP listeners of a manager.
type tcpDoors struct {
	flags          *doorFlags
	ssh, api, page net.Listener // nil if not requested
}

// check checks the flags, and completes the address of the page.
func (f *doorFlags) check() error {
	switch {
	case f.ssh == "" && (f.sshKeys != "" || f.sshForward):
		return errors.New("--ssh-authorized-keys and --ssh-forward need --ssh-listen")
	case f.ssh != "" && f.sshKeys == "":
		return errors.New("--ssh-listen needs --ssh-authorized-keys")
	case (f.cert == "") != (f.certKey == ""):
		return errors.New("--tls-cert and --tls-key need each other")
	case f.api == "" && f.page == "" && (f.cert != "" || f.token != ""):
		return errors.New("--tls-cert and --token-file need --api-listen or --http-listen")
	}
	if f.page == "" && slices.ContainsFunc(f.gitea.Servers, func(c giteadoor.Config) bool { return c.Secret != nil }) {
		return errors.New("webhook-secret-file needs --http-listen: webhooks come to the address of the status page")
	}
	names := map[string]bool{}
	for _, c := range f.gitea.Servers {
		names[c.Name] = true
	}
	for _, c := range f.gitlab.Servers {
		if names[c.Name] {
			return fmt.Errorf("a server of gitea and one of gitlab have the name %s: give one of them another", c.Name)
		}
		if _, err := c.Files.Config(); err != nil {
			return fmt.Errorf("gitlab %s: %w", c.Name, err)
		}
	}
	if f.page != "" && !strings.Contains(f.page, ":") {
		f.page = ":" + f.page
	}
	if strings.HasPrefix(f.page, ":") {
		f.page = "127.0.0.1" + f.page
	}
	if f.page != "" && f.token == "" && !isLoopback(f.page) {
		return fmt.Errorf("--http-listen %s: other machines can reach it: use --token-file, or an address of this "+
			"machine alone, as in 127.0.0.1:8080", f.page)
	}
	return nil
}

// checkFiles checks the files of the doors of a manager with this state directory, and makes none.
func (f *doorFlags) checkFiles(state string) error {
	if f.ssh != "" {
		if err := (sshdoor.Config{KeysFile: f.sshKeys}).Check(state); err != nil {
			return err
		}
	}
	cert, token := f.files(state, f.page != "" && f.hasTLS(f.page))
	var err error
	switch {
	case f.cert != "":
		_, err = access.Certificate(f.cert, f.certKey)
	case cert != "":
		err = access.CheckOwnCertificate(cert, state)
	}
	if err == nil && token != "" {
		err = access.CheckToken(token, state)
	}
	return err
}

// hasTLS reports whether the page at an address is served by TLS.
func (f *doorFlags) hasTLS(page string) bool { return f.cert != "" || !isLoopback(page) }

// files returns the files of the certificate and of the token, empty if none is needed. pageTLS says that the page is
// served by TLS.
func (f *doorFlags) files(state string, pageTLS bool) (cert, token string) {
	if cert = f.cert; cert == "" && (f.api != "" || pageTLS) {
		cert = filepath.Join(state, "tls.pem")
	}
	if token = f.token; token == "" && f.api != "" {
		token = filepath.Join(state, "token")
	}
	return cert, token
}

// open listens as the flags request. With taken, an address may be in use.
func (f *doorFlags) open(taken bool) (d *tcpDoors, err error) {
	d = &tcpDoors{flags: f}
	for _, door := range []struct {
		flag, addr string
		to         *net.Listener
	}{{"ssh", f.ssh, &d.ssh}, {"api", f.api, &d.api}, {"http", f.page, &d.page}} {
		if door.addr == "" {
			continue
		}
		*door.to, err = net.Listen("tcp", door.addr)
		if err != nil && (!taken || !errors.Is(err, syscall.EADDRINUSE)) {
			d.close()
			return nil, fmt.Errorf("--%s-listen: %w", door.flag, err)
		}
	}
	return d, nil
}

// isLoopback reports whether only this machine can connect to an address.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// close is idempotent.
func (d *tcpDoors) close() {
	for _, l := range []net.Listener{d.ssh, d.api, d.page} {
		if l != nil {
			_ = l.Close() // it may be closed already
		}
	}
}

// serve serves until ctx or the manager ends. Failures go to failed, which must have room for two errors. The caller
// calls the returned function at the end: it waits for all goroutines. socket is the manager's.
func (d *tcpDoors) serve(
	ctx context.Context, m *manager.Manager, socket string, cfg manager.Config, metrics http.Handler, failed chan<- error,
) (stop func(), err error) {
	pageTLS := d.page != nil && d.flags.hasTLS(d.page.Addr().String())
	certFile, file := d.flags.files(cfg.Dir, pageTLS)
	var cert tls.Certificate
	switch {
	case d.flags.cert != "":
		cert, err = access.Certificate(certFile, d.flags.certKey)
	case certFile != "":
		cert, err = access.OwnCertificate(certFile)
	}
	var token *access.Token
	if err == nil && file != "" {
		token, err = access.OpenToken(file)
	}
	if err != nil {
		return nil, err
	}
	if len(cert.Certificate) > 0 {
		cfg.Logger.Info("certificate", "fingerprint", access.Fingerprint(cert))
	}
	closePage := func() {}
	if d.page != nil {
		if closePage, err = d.servePage(m, socket, cfg, metrics, cert, token); err != nil {
			return nil, err
		}
	}
	var serving sync.WaitGroup // its goroutines end with the manager
	if d.ssh != nil {
		serving.Go(func() {
			failed <- m.ServeSSH(ctx, d.ssh, sshdoor.Config{KeysFile: d.flags.sshKeys, Forward: d.flags.sshForward})
		})
	}
	if d.api != nil {
		cfg.Logger.Info("API listens", "url", "https://"+d.api.Addr().String(), "token", file)
		serving.Go(func() { failed <- m.ServeTCP(ctx, d.api, cert, token) })
	}
	for _, server := range d.flags.gitea.Servers {
		serving.Go(func() { m.ServeGitea(ctx, server) })
	}
	for _, server := range d.flags.gitlab.Servers {
		serving.Go(func() {
			if err := m.ServeGitLab(ctx, server); err != nil { // its files were there when the manager started
				cfg.Logger.Error("a server is not served", "server", server.Name, "error", err)
			}
		})
	}
	return func() {
		closePage()
		serving.Wait()
	}, nil
}

// servePage serves the status page, by TLS with a certificate if other machines can reach it.
func (d *tcpDoors) servePage(
	m *manager.Manager, socket string, cfg manager.Config, metrics http.Handler, cert tls.Certificate, token *access.Token,
) (closePage func(), err error) {
	listener, scheme, pageTLS := d.page, "http://", d.flags.hasTLS(d.page.Addr().String())
	if pageTLS {
		scheme = "https://"
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{cert}})
	}
	if d.flags.token == "" {
		token = nil
	}
	conn, err := pb.Dial(socket)
	if err != nil {
		return nil, err
	}
	server := page.Serve(listener, page.Config{
		Manager: pb.NewManagerClient(conn), As: manager.ContextFor, Token: token, TLS: pageTLS, Metrics: metrics,
		Hook:    m.ServeHook,
		Version: cfg.Version, Logger: cfg.Logger,
	})
	cfg.Logger.Info("status page", "url", scheme+d.page.Addr().String()+"/", "token", tokenText(d.flags.token))
	return func() {
		server.Close()
		_ = conn.Close() // it was not used
	}, nil
}

func tokenText(file string) string {
	if file == "" {
		return "none: read-only"
	}
	return file
}
