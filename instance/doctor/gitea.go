package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/giteadoor"
)

// The checks of a server, in the order of a report.
const (
	checkURL     = "url"
	checkAnswer  = "answer"
	checkVersion = "version"
	checkActions = "actions"
	checkToken   = "token"
	checkLabels  = "labels"
	checkWebhook = "webhook"
	checkVMs     = "VMs"
)

const (
	// serverTimeout bounds the examination of a server without its VMs, and vmTimeout that from a VM.
	serverTimeout, vmTimeout = 30 * time.Second, 20 * time.Second
	// maxVersion bounds the answer with a server's version, in bytes.
	maxVersion = 64 << 10
	// triedGitea is the version with which this program is tested, oldestGitea the first one with runners.
	triedGitea, oldestGitea = "1.26", "1.19"
)

// ExamineGitea examines a Gitea server for a manager that takes its jobs, and the files that the configuration names.
// It registers no runner, and changes nothing on the server. vms are the labels of each VM; nil: they are not known.
// ctx bounds it, and 30 s do.
func ExamineGitea(ctx context.Context, cfg giteadoor.Config, vms []map[string]string) Report {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	start := time.Now()
	r := Report{Instance: cfg.Name, Addr: cfg.URL, User: cfg.Runner, of: "jobs"}
	if u, err := url.Parse(cfg.URL); err == nil {
		r.Addr = u.Redacted()
	}
	if r.serverURL(cfg.URL) {
		r.giteaAnswers(ctx, cfg.URL)
	} else {
		r.skip("the url is wrong", checkAnswer, checkVersion, checkActions, checkClock)
	}
	r.secretFile(checkToken, cfg.TokenFile, cfg.Token,
		"it is tried when the manager registers: a check would leave a runner")
	r.giteaLabels(&cfg, vms)
	if cfg.Secret != nil {
		r.secretFile(checkWebhook, cfg.SecretFile, cfg.Secret, "give it to the webhook on the server")
	}
	r.finish(time.Since(start))
	return r
}

// serverURL judges the form of a URL.
func (r *Report) serverURL(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		r.add(failure(checkURL, fmt.Sprintf("%.160q is no URL of a server", text),
			"write the one that people open in a browser, as https://HOST"))
		return false
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		r.add(failure(checkURL, "it has more than a host and a path", "remove user, password, query and fragment"))
		return false
	}
	path := strings.Trim(u.Path, "/")
	if strings.HasPrefix(path+"/", "api/") {
		r.add(failure(checkURL, "it is that of the API", "write the one that people open in a browser, without /api"))
		return false
	}
	detail := "has the form of one"
	if path != "" {
		detail = "the server is expected below /" + path
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		r.add(warning(checkURL, detail+"; there is no TLS", "use https://", "nobody on the network reads tokens and secrets"))
	} else {
		r.add(okay(checkURL, detail))
	}
	return true
}

// giteaAnswers asks the server for its version, and examines more if it answers.
func (r *Report) giteaAnswers(ctx context.Context, root string) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(root, "/")+"/api/v1/version", nil)
	var resp *http.Response
	if err == nil {
		resp, err = client.Do(req)
	}
	if err != nil {
		if told, is := errors.AsType[*url.Error](err); is {
			err = told.Err // the URL is shown already
		}
		r.add(failure(checkAnswer, err.Error(), adviceFor(err)))
		r.skip("the server does not answer", checkVersion, checkActions, checkClock)
		return
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxVersion))
	elsewhere := resp.Header.Get("Location")
	switch {
	case err != nil:
		r.add(failure(checkAnswer, err.Error(), adviceFor(err)))
	case resp.StatusCode/100 == 3 && elsewhere != "":
		r.add(failure(checkAnswer, fmt.Sprintf("the server sends %s on to %.200q", root, elsewhere),
			"write the URL to which it sends; a redirect gets no tokens"))
	case strings.Contains(string(text), "HTTP request to an HTTPS server"):
		r.add(failure(checkAnswer, "the server wants TLS", "write https:// in the url"))
	default:
		r.giteaServices(ctx, root, resp, text)
		return
	}
	r.skip("the server does not answer as a Gitea", checkVersion, checkActions, checkClock)
}

// giteaServices judges an answer with a version, and asks the service for runners for a sign of life.
func (r *Report) giteaServices(ctx context.Context, root string, resp *http.Response, text []byte) {
	var told struct{ Version string }
	known := resp.StatusCode == http.StatusOK && json.Unmarshal(text, &told) == nil && told.Version != ""
	if known {
		r.add(okay(checkAnswer, "it is a Gitea or Forgejo"))
		r.add(judgeGitea(told.Version))
	} else {
		r.add(warning(checkAnswer, fmt.Sprintf("%s for its version: %.60q", resp.Status, text),
			"check that the url is that of a Gitea or Forgejo, and proxies in between", "the version is known"))
		r.skip("the server does not tell it", checkVersion)
	}
	door := giteadoor.NewClient(root)
	defer door.Close()
	switch err := door.Ping(ctx); {
	case err == nil:
		r.add(okay(checkActions, "the service for runners answers"))
	case known:
		r.add(failure(checkActions, err.Error(),
			"set ENABLED = true in [actions] of the server's app.ini, and let proxies pass "+root+"/api/actions"))
	default:
		r.add(failure(checkActions, err.Error(), "write the url that people open in a browser"))
	}
	r.clock(resp.Header.Get("Date"))
}

// adviceFor returns the change to make after an error of a connection.
func adviceFor(err error) string {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, name := errors.AsType[x509.HostnameError](err)
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	_, dns := errors.AsType[*net.DNSError](err)
	switch {
	case unknown:
		return "add the server's authority to those of this system, or name its file in SSL_CERT_FILE"
	case name:
		return "write a name that the server's certificate has"
	case isInvalid && invalid.Reason == x509.Expired:
		return "renew the server's certificate, and compare the clocks"
	case noTLS || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "the server has no TLS at this port: write its port of https, or http://"
	case dns:
		return "check the host of the url, and the name servers of this machine"
	}
	return "check host and port of the url, firewalls, and the proxy in HTTPS_PROXY and NO_PROXY"
}

// judgeGitea judges a version: 1.26.0, or that of a Forgejo as 11.0.1+gitea-1.22.0.
func judgeGitea(version string) Finding {
	number, forgejo := version, strings.Contains(version, "+gitea-")
	if _, like, ok := strings.Cut(version, "+gitea-"); ok {
		number = like
	}
	tried := "jobs are tried with Gitea " + triedGitea
	switch {
	case isBefore(number, oldestGitea):
		return failure(checkVersion, version+" has no runners", "use Gitea "+triedGitea)
	case forgejo:
		return warning(checkVersion, "Forgejo "+version, "try a job: "+tried, "faults show before people meet them")
	case isBefore(number, triedGitea):
		return warning(checkVersion, version, "use Gitea "+triedGitea+" or later: "+tried, "it works as docs/gitea.md says")
	}
	return okay(checkVersion, version+"; "+tried)
}

// isBefore reports whether a version is before another one, by their first two numbers. A text without numbers is not.
func isBefore(version, other string) bool {
	numbers := func(text string) (n [2]int, ok bool) {
		parts := strings.SplitN(text, ".", 3)
		for i := range min(len(parts), 2) {
			var err error
			if n[i], err = strconv.Atoi(parts[i]); err != nil {
				return n, false
			}
		}
		return n, len(parts) > 1
	}
	a, ok := numbers(version)
	b, _ := numbers(other)
	return ok && slices.Compare(a[:], b[:]) < 0
}

// clock compares the clock of a server, as its header Date has it, with that of this machine.
func (r *Report) clock(date string) {
	at, err := http.ParseTime(date)
	if err != nil {
		r.skip("the server sends no date", checkClock)
		return
	}
	if skew := time.Until(at).Round(time.Second); skew.Abs() > maxSkew {
		r.add(warning(checkClock, fmt.Sprintf("the server's differs from this machine's by %v", skew),
			"let both follow a time server", "times of steps and rows are right on the server"))
		return
	}
	r.add(okay(checkClock, "as this machine's"))
}

// secretFile judges a file with a secret. more is the part that a check cannot show.
func (r *Report) secretFile(check, name string, read func() (string, error), more string) {
	text, err := read()
	switch {
	case err != nil:
		r.add(failure(check, err.Error(), "write the file, and let the manager's user read it"))
		return
	case strings.ContainsFunc(text, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }):
		r.add(failure(check, name+" has more than one word", "leave the secret alone in it"))
		return
	}
	detail := name + " can be read; " + more
	if info, err := os.Stat(name); err == nil && info.Mode().Perm()&0o077 != 0 {
		r.add(warning(check, fmt.Sprintf("%s: its mode is %#o", detail, info.Mode().Perm()), "chmod 600 "+name,
			"other users of this machine cannot read it"))
		return
	}
	r.add(okay(check, detail))
}

// giteaLabels judges which jobs come here: those whose labels a VM has.
func (r *Report) giteaLabels(cfg *giteadoor.Config, vms []map[string]string) {
	labels := cfg.Declared(vms)
	if vms == nil {
		r.add(Finding{Check: checkLabels, Status: Skip, Detail: strings.Join(labels, ", ") +
			"; the file names no VMs with labels"})
		return
	}
	known := (&giteadoor.Config{}).Declared(vms)
	var strange []string
	for _, label := range labels {
		if !slices.Contains(known, label) && !strings.HasPrefix(label, "ubuntu-") && cfg.Images[label] == "" {
			strange = append(strange, label)
		}
	}
	if len(strange) > 0 {
		r.add(warning(checkLabels, "no VM has "+strings.Join(strange, ", "),
			"give the label to VMs in the inventory, give it an image in images, or remove it from labels",
			"a job with it runs where it expects to run; now it runs on any VM"))
		return
	}
	r.add(okay(checkLabels, "jobs come here with "+strings.Join(labels, ", ")))
}

// Reaches reports whether a VM reaches the server at a URL, over a connection of its own to the VM.
func Reaches(ctx context.Context, p *instance.Provider, in instance.Instance, server string) Finding {
	ctx, cancel := context.WithTimeout(ctx, vmTimeout)
	defer cancel()
	u, err := url.Parse(server)
	if err != nil {
		return Finding{Check: checkVMs, Status: Skip, Detail: "the url is wrong"}
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	conn, err := p.Dial(ctx, in.ID, nil)
	if err != nil {
		return Finding{Check: checkVMs, Status: Skip, Detail: in.ID + ": " + err.Error() + " (see stepmux doctor)"}
	}
	defer conn.Close()
	at := net.JoinHostPort(u.Hostname(), port)
	stream, err := conn.Dial(ctx, "tcp", at)
	if err != nil && strings.Contains(err.Error(), "prohibited") {
		return Finding{
			Check: checkVMs, Status: Skip, Detail: in.ID + ": its sshd forwards no connections, so it is not known",
		}
	}
	if err != nil {
		return warning(checkVMs, fmt.Sprintf("%s does not reach %s: %v", in.ID, at, err),
			"open the way from the VM, or set reach: manager", "jobs check out, fetch actions and keep artifacts there")
	}
	_ = stream.Close() // it was not used
	return okay(checkVMs, in.ID+" reaches "+at)
}
