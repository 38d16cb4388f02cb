package manager_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager"
	"github.com/stepmux/stepmux/instance/manager/access"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/page"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// browser is a client of a status page.
type browser struct {
	http.Client
	t      *testing.T
	at     string
	token  string
	signer *access.Token // nil without a token
}

// servePage serves the status page of a manager. Without a token it is read-only.
func (r *running) servePage(t *testing.T, withToken bool) *browser {
	t.Helper()
	cfg := page.Config{Manager: r.ManagerClient, As: manager.ContextFor, Hook: r.m.ServeHook, Version: "test"}
	b := &browser{t: t}
	if withToken {
		file := filepath.Join(t.TempDir(), "token")
		token, err := access.OpenToken(file)
		require.NoError(t, err)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		cfg.Token, b.token, b.signer = token, strings.TrimSpace(string(text)), token
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b.at = "http://" + listener.Addr().String()
	server := page.Serve(listener, cfg)
	b.Jar, err = cookiejar.New(nil)
	require.NoError(t, err)
	transport := &http.Transport{}
	b.Transport = transport
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
	})
	return b
}

// reply is the head of an answer.
type reply struct {
	StatusCode int
	Header     http.Header
}

// do sends a request and returns the answer and its text. headers are names and values.
func (b *browser) do(method, path string, form url.Values, headers ...string) (reply, string) {
	b.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.at+path, body)
	require.NoError(b.t, err)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	resp, err := b.Do(req)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	return reply{resp.StatusCode, resp.Header}, string(text)
}

// get returns the text of a page.
func (b *browser) get(path string) string {
	b.t.Helper()
	resp, text := b.do("GET", path, nil)
	require.Equal(b.t, http.StatusOK, resp.StatusCode, "%s: %s", path, text)
	return text
}

// json reads the twin of a page.
func (b *browser) json(path string, to any) {
	b.t.Helper()
	require.NoError(b.t, json.Unmarshal([]byte(b.get(path)), to), path)
}

// events reads a stream until take returns true.
func (b *browser) events(path string, take func(kind, data string) bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), sshtest.Bound)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", b.at+path, nil)
	require.NoError(b.t, err)
	resp, err := b.Do(req)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	require.Equal(b.t, "text/event-stream", resp.Header.Get("Content-Type"))
	kind, data := "", ""
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "event":
			kind = value
		case "data":
			data += value + "\n"
		case "":
			if take(kind, data) {
				return
			}
			kind, data = "", ""
		}
	}
	require.Fail(b.t, "the stream has ended")
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

//stepmux:faults vulnerabilities | A foreign site makes a browser drain VMs (CSRF), or reaches the page of this machine
//stepmux:more under its own name (DNS rebinding) | forms have a secret of the login, requests of other sites are
//stepmux:more refused, and a page without a token answers to this machine's names alone
//stepmux:with instance/manager.TestThePageWithoutATokenIsReadOnlyAndForThisMachine
func TestThePageLetsInThoseWithTheToken(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	b := m.servePage(t, true)
	b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, _ := b.do("GET", "/", nil)
	require.Equal(t, "/login", resp.Header.Get("Location"))
	require.Contains(t, b.get("/login"), `type="password"`)
	require.Equal(t, "ok\n", b.get("/healthz"))
	for _, path := range []string{"/overview.json", "/events", "/builds/1-ab/events", "/metrics"} {
		resp, text := b.do("GET", path, nil)
		require.Equal(t, http.StatusUnauthorized, resp.StatusCode, "%s: %s", path, text)
	}
	for _, path := range []string{"/?token=" + b.token, "/login?access_token=" + b.token, "/?q=a&q=b", "/?%zz"} {
		resp, text := b.do("GET", path, nil)
		require.Equal(t, http.StatusBadRequest, resp.StatusCode)
		require.NotContains(t, text, b.token)
	}
	resp, _ = b.do("GET", "/overview.json", nil, "Authorization", "Bearer "+b.token)
	require.Equal(t, http.StatusOK, resp.StatusCode, "a program shows it in a header")
	resp, text := b.do("POST", "/login", url.Values{"token": {"x" + b.token}})
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	require.Contains(t, text, "This is not the token")
	require.NotContains(t, text, b.token)
	resp, _ = b.do("POST", "/login", url.Values{"token": {b.token}}, "Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	resp, _ = b.do("POST", "/login", url.Values{"token": {b.token}})
	require.Equal(t, "/", resp.Header.Get("Location"))
	cookie := resp.Header.Get("Set-Cookie")
	require.Contains(t, cookie, "HttpOnly; SameSite=Strict")
	require.NotContains(t, cookie, b.token)
	resp, text = b.do("GET", "/vms/vm-1", nil)
	require.Contains(t, resp.Header.Get("Content-Security-Policy"), "default-src 'none'; style-src 'nonce-")
	csrf := csrfField.FindStringSubmatch(text)
	require.NotNil(t, csrf, text)

	zone := regexp.QuoteMeta(time.Now().Format("MST")) // whoever reads the page may be elsewhere
	drain := url.Values{"csrf": {csrf[1]}, "note": {"<b>why & \x1b[2J</b>"}, "for": {"1h"}}
	for _, bad := range []url.Values{{"note": {"x"}}, {"csrf": {"x"}}, {"csrf": {csrf[1]}, "for": {"soon"}}} {
		resp, text = b.do("POST", "/vms/vm-1/drain", bad)
		require.GreaterOrEqual(t, resp.StatusCode, 400, text)
	}
	resp, _ = b.do("POST", "/vms/vm-1/drain", drain, "Origin", "https://evil.example")
	require.Equal(t, http.StatusForbidden, resp.StatusCode, "of another site")
	require.NotContains(t, b.get("/vms/vm-1"), `class="draining"`)
	resp, _ = b.do("POST", "/vms/vm-1/drain", drain, "Origin", b.at)
	require.Equal(t, "/vms/vm-1", resp.Header.Get("Location"))
	text = b.get("/vms/vm-1")
	require.Contains(t, text, `class="draining">draining`)
	require.Regexp(t, `&lt;b&gt;why &amp; \?\[2J&lt;/b&gt; \(until [-0-9]+ [:0-9]+ `+zone+`\)`, text)

	id := m.submit("echo never")
	require.Eventually(t, func() bool { return strings.Contains(b.get("/"), "no VM takes builds: 1 draining") },
		sshtest.Bound, 10*time.Millisecond)
	text = b.get("/builds/" + id)
	resp, _ = b.do("POST", "/builds/"+id+"/cancel", url.Values{"csrf": {csrfField.FindStringSubmatch(text)[1]}})
	require.Equal(t, "/builds/"+id, resp.Header.Get("Location"))
	resp, _ = b.do("POST", "/vms/vm-1/undrain", url.Values{"csrf": {csrf[1]}})
	require.Equal(t, http.StatusSeeOther, resp.StatusCode)
	_, done := m.wait(id, 0)
	require.True(t, done.GetCanceled())
	var audit struct {
		Actions []struct{ Who, Action, Subject string }
	}
	b.json("/audit.json", &audit)
	require.Equal(t, []struct{ Who, Action, Subject string }{
		{"page, 127.0.0.1", "undrain", "vm-1"}, {"page, 127.0.0.1", "cancel", id}, {"page, 127.0.0.1", "drain", "vm-1"},
	}, audit.Actions)
	require.Regexp(t, `<td>[-0-9]+ [:0-9]+ `+zone+`</td><td>page, 127.0.0.1`, b.get("/audit"))

	resp, _ = b.do("POST", "/logout", url.Values{})
	require.Contains(t, resp.Header.Get("Set-Cookie"), "Max-Age=0")
	resp, _ = b.do("GET", "/", nil)
	require.Equal(t, "/login", resp.Header.Get("Location"))
	resp, _ = b.do("GET", "/", nil, "Cookie", "stepmux-page=99999999999.x.y")
	require.Equal(t, "/login", resp.Header.Get("Location"), "a forged cookie")
}

//stepmux:faults vulnerabilities | A build's output is taken for a page's HTML or script | it is escaped, and the policy
//stepmux:more of the page allows no script but its own
func TestThePageWithoutATokenIsReadOnlyAndForThisMachine(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	b := m.servePage(t, false)
	wait, open := gate(t)
	id := m.submit("printf '<script>one</script>\\033[31mred\\033[m\\007\\n'\n" + wait +
		"\necho two; printf three; exit 7")
	m.await(id, "one")
	text := b.get("/builds/" + id)
	require.Contains(t, text, "&lt;script&gt;one&lt;/script&gt;red\\a\n</pre>")
	require.NotContains(t, text, `name="csrf"`)
	var now struct {
		Slots   struct{ Total, Busy, Free int }
		Waiting int
		VMs     map[string]int
	}
	b.json("/overview.json", &now)
	require.Equal(t, []int{2, 1, 1, 0, 1},
		[]int{now.Slots.Total, now.Slots.Busy, now.Slots.Free, now.Waiting, now.VMs["ready"]})

	// The log grows in the open page, and the page's head changes.
	log := ""
	b.events("/builds/"+id+"/events?offset=0", func(kind, data string) bool {
		switch kind {
		case "page":
			if strings.Contains(data, ">running<") {
				open()
			}
		case "log":
			var piece string
			require.NoError(t, json.Unmarshal([]byte(data), &piece))
			log += piece
		case "end":
			return true
		}
		require.NotContains(t, data, "<script>")
		return false
	})
	require.Equal(t, "<script>one</script>red\\a\ntwo\nthree", log)
	text = b.get("/builds/" + id)
	require.Contains(t, text, "three</pre>")
	require.NotContains(t, text, "/events", "what has ended does not change")
	b.events("/events", func(kind, data string) bool { return kind == "page" && strings.Contains(data, "VMs ready") })
	b.events("/vms/vm-1/events", func(kind, data string) bool { return strings.Contains(data, id) })
	require.Eventually(t, func() bool { return strings.Contains(b.get("/failures"), "exit code 7") }, sshtest.Bound,
		10*time.Millisecond)
	require.Contains(t, b.get("/builds?q="+id), "script_failure 7")
	require.NotContains(t, b.get("/builds?q=nothing"), id)
	require.Contains(t, b.get("/?q=ready"), "vm-1")
	require.Contains(t, b.get("/?q=nothing"), "There is no such VM")
	var build struct {
		Build pb.BuildJSON
		Log   string
	}
	b.json("/builds/"+id+".json", &build)
	require.EqualValues(t, 7, *build.Build.ExitCode)
	require.Positive(t, build.Build.Connect)
	require.Greater(t, build.Build.FirstOutput, build.Build.Connect)
	require.Equal(t, log, build.Log)
	for _, path := range []string{"/builds.json", "/failures.json", "/audit.json", "/vm-events.json", "/vms/vm-1.json"} {
		b.json(path, &map[string]any{})
	}
	for path, want := range map[string]int{"/builds/9-ab": 404, "/vms/x": 404, "/x": 404, "/builds/..%2f": 404} {
		resp, text := b.do("GET", path, nil)
		require.Equal(t, want, resp.StatusCode, "%s: %s", path, text)
	}
	for _, path := range []string{"/vms/vm-1/drain", "/builds/" + id + "/cancel", "/login"} {
		resp, text := b.do("POST", path, url.Values{"csrf": {""}, "token": {""}})
		require.Equal(t, http.StatusForbidden, resp.StatusCode)
		require.Contains(t, text, "read-only")
	}
	for _, host := range []string{"evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.0.2.7", ""} {
		if host == "" {
			host = "localhost.evil.example"
		}
		resp, text := b.do("GET", "/", nil, "Host", host)
		require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s: %s", host, text)
	}
	resp, _ := b.do("GET", "/", nil, "Host", "localhost:1234")
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

// make prove WHAT=page runs it in a browser, and CI without one.
func TestThePageInABrowser(t *testing.T) {
	m := newFleet(t).start(t)
	b := m.servePage(t, true)
	if os.Getenv("STEPMUX_BROWSER") != "" {
		testInABrowser(t, m, b)
		return
	}
	text := b.get("/login")
	require.Contains(t, text, `<meta name="viewport"`)
	require.NotContains(t, text, "style=", "the policy allows no style there")
	require.NotContains(t, text, " on", "and no script")
}

// A page begins with the end of a log, whatever its length.
func TestThePageBeginsWithTheEndOfALog(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	b := m.servePage(t, false)
	id := m.submit("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); echo line $i; done")
	whole, _ := m.wait(id, 0)
	var build struct {
		Log              string
		From, To         int64
		LogFrom, LogTo   int64 `json:"-"`
		FromJSON, ToJSON int64 `json:"-"`
	}
	text := b.get("/builds/" + id + ".json")
	require.NoError(t, json.Unmarshal([]byte(text), &build))
	require.True(t, strings.HasSuffix(whole, "\n"+build.Log))
	require.Greater(t, len(build.Log), 60_000)
	require.Less(t, len(build.Log), 70_000)
	for _, from := range []int64{0, 1, 5000, int64(len(whole)) - 1, int64(len(whole))} {
		text, _ := m.wait(id, from)
		require.Equal(t, whole[from:], text)
	}
}

// A browser that does not read costs a bounded time and memory, and does not hold up the end of the server.
func TestBrowsersThatDoNotReadAreGivenUp(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	b := m.servePage(t, false)
	id := m.submit("head -c 12000000 /dev/zero | tr '\\0' '\\n'")
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.at, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
	_, err = io.WriteString(conn, "GET /builds/"+id+"/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	text, _ := m.wait(id, 0)
	require.Len(t, text, 12_000_000)
	b.get("/")
	require.Eventually(t, func() bool { return m.m.Readers(t) <= 1 }, sshtest.Bound, time.Millisecond)
}

// An open page showed the fleet to a login that was over, for as long as its connection lasted.
func TestAnOpenPageEndsWithItsLogin(t *testing.T) {
	t.Parallel()
	b := newFleet(t).start(t).servePage(t, true)
	signed := strconv.FormatInt(time.Now().Add(2*time.Second).Unix(), 10) + ".x"
	ctx, cancel := context.WithTimeout(t.Context(), sshtest.Bound)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", b.at+"/events", nil)
	require.NoError(t, err)
	req.Header.Set("Cookie", "stepmux-page="+signed+"."+b.signer.Sign("login:"+signed))
	resp, err := b.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), "event: page")
}

func TestThePageOfABuildTellsOfItsTrace(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	traced := job("true")
	traced.Trace = true
	id := m.submitJob(traced)
	m.wait(id, 0)
	require.Contains(t, m.servePage(t, false).get("/builds/"+id), "stepmux trace get "+id+" FILE")
}

// Symptom: the column File of a running build was empty, and Undrain was there for a VM that was not drained.
func TestThePageHasTheFilesOfBuildsThatRunAndUndrainsWhatIsDrained(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	wait, open := gate(t)
	defer open()
	m.await(m.submit("echo on\n"+wait), "on\n")
	page := m.servePage(t, false)
	for _, path := range []string{"/builds", "/vms/vm-1"} {
		require.Contains(t, page.get(path), `<td class="wide">job.yml</td>`, path)
	}
	require.Contains(t, page.get("/vms/vm-1"), "data-undrained>ready")
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return strings.Contains(page.get("/vms/vm-1"), `class="draining">draining`)
	}, sshtest.Bound, 10*time.Millisecond)
}

// The page shows pipelines and the jobs of one by stage, without markup of theirs. Operators start, retry and cancel.
func TestThePageShowsPipelines(t *testing.T) {
	t.Parallel()
	m := withPipelines(newFleet(t)).start(t)
	b := m.servePage(t, true)
	b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	_, _ = b.do("POST", "/login", url.Values{"token": {b.token}})
	id := m.submitPipeline(pipelineOf(t, `
stages: [build, "<b>test"]
a: {stage: build, script: [":"]}
"<script>x": {stage: "<b>test", script: [exit 3], allow_failure: true}
m: {stage: "<b>test", script: [":"], when: manual, allow_failure: false}
`))
	m.restOf(id)
	require.Contains(t, b.get("/pipelines"), `<a href="/pipelines/`+id+`">`)
	text := b.get("/pipelines/" + id)
	for _, shown := range []string{
		`<b>&lt;b&gt;test</b>`, `<div class="manual">m<br>manual`, `&lt;script&gt;x</a><br>warning 3`,
		`class="blocked">blocked`,
	} {
		require.Contains(t, text, shown)
	}
	require.NotContains(t, text, "<script>x")
	csrf := regexp.MustCompile(`name="csrf" value="([^"]+)"`).FindStringSubmatch(text)[1]
	post := func(path string, form url.Values) (reply, string) {
		form.Set("csrf", csrf)
		return b.do("POST", "/pipelines/"+id+path, form)
	}
	resp, text := post("/play", url.Values{"job": {"a"}})
	require.Equal(t, http.StatusConflict, resp.StatusCode, text)
	resp, text = post("/play", url.Values{"job": {"m"}})
	require.Equal(t, http.StatusSeeOther, resp.StatusCode, text)
	require.Equal(t, "success", m.restOf(id).GetStatus())
	resp, text = post("/retry", url.Values{})
	require.Equal(t, http.StatusSeeOther, resp.StatusCode, text)
	require.Equal(t, "success", m.restOf(id).GetStatus())
	resp, text = post("/cancel", url.Values{})
	require.Equal(t, http.StatusSeeOther, resp.StatusCode, text)
	var all struct{ Pipelines []pb.PipelineJSON }
	b.json("/pipelines.json", &all)
	require.Equal(t, "success", all.Pipelines[0].Status)
	b.events("/pipelines/"+id+"/events", func(_, data string) bool { return strings.Contains(data, "success") })
	resp, _ = b.do("GET", "/pipelines/p-000000000000", nil)
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
}
