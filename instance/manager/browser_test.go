package manager_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// chromium is a browser that the test drives by a pair of pipes (Chrome DevTools Protocol): each message is JSON and
// ends with a zero byte.
type chromium struct {
	t       *testing.T
	to      *os.File
	from    *bufio.Reader
	id      int
	session string // of its tab
	dir     string // for pictures
}

// startChromium starts the browser of STEPMUX_BROWSER.
func startChromium(t *testing.T) *chromium {
	t.Helper()
	in, to, err := os.Pipe()
	require.NoError(t, err)
	from, out, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(os.Getenv("STEPMUX_BROWSER"), "--headless=new", "--remote-debugging-pipe", "--disable-gpu",
		"--no-sandbox", "--no-first-run", "--disable-extensions", "--hide-scrollbars", "--user-data-dir="+t.TempDir())
	cmd.ExtraFiles = []*os.File{in, out} // 3 and 4
	require.NoError(t, cmd.Start())
	require.NoError(t, in.Close())
	require.NoError(t, out.Close())
	c := &chromium{t: t, to: to, from: bufio.NewReader(from), dir: os.Getenv("STEPMUX_PICTURES")}
	t.Cleanup(func() {
		c.session = ""
		c.call("Browser.close", nil, nil)
		_ = cmd.Wait()
		to.Close()
		from.Close()
	})
	require.NoError(t, from.SetReadDeadline(time.Now().Add(2*sshtest.Bound)))
	var tab struct{ TargetID, SessionID string }
	c.call("Target.createTarget", map[string]any{"url": "about:blank"}, &tab)
	c.call("Target.attachToTarget", map[string]any{"targetId": tab.TargetID, "flatten": true}, &tab)
	c.session = tab.SessionID
	c.call("Page.enable", nil, nil)
	return c
}

// call calls a method of the protocol.
func (c *chromium) call(method string, params, result any) {
	c.t.Helper()
	c.id++
	msg := map[string]any{"id": c.id, "method": method}
	if params != nil {
		msg["params"] = params
	}
	if c.session != "" {
		msg["sessionId"] = c.session
	}
	text, err := json.Marshal(msg)
	require.NoError(c.t, err)
	_, err = c.to.Write(append(text, 0))
	require.NoError(c.t, err)
	for {
		text, err := c.from.ReadBytes(0)
		require.NoError(c.t, err, method)
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  struct{ Message string }
		}
		require.NoError(c.t, json.Unmarshal(text[:len(text)-1], &answer))
		if answer.ID != c.id {
			continue // an event, or the answer to an earlier call
		}
		require.Empty(c.t, answer.Error.Message, method)
		if result != nil {
			require.NoError(c.t, json.Unmarshal(answer.Result, result))
		}
		return
	}
}

// eval returns the value of a JavaScript expression in the page, as a text.
func (c *chromium) eval(expression string) string {
	c.t.Helper()
	var answer struct {
		Result struct{ Value any }
	}
	c.call("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")", "returnByValue": true}, &answer)
	return fmt.Sprint(answer.Result.Value)
}

// until waits until an expression is true in the page.
func (c *chromium) until(expression string) {
	c.t.Helper()
	require.Eventually(c.t, func() bool { return c.eval(expression) == "true" }, sshtest.Bound, 20*time.Millisecond,
		"%s: %s", expression, c.eval("document.body.innerText"))
}

func (c *chromium) open(url string) {
	c.t.Helper()
	c.call("Page.navigate", map[string]any{"url": url}, nil)
	c.until(`document.readyState == "complete" && location.href != "about:blank"`)
}

// click clicks on an element, where it is on the screen.
func (c *chromium) click(selector string) {
	c.t.Helper()
	var at struct{ X, Y float64 }
	text := c.eval(`(() => { const e = document.querySelector("` + selector + `"); e.scrollIntoView();
		const r = e.getBoundingClientRect(); return JSON.stringify({X: r.x + r.width / 2, Y: r.y + r.height / 2}) })()`)
	require.NoError(c.t, json.Unmarshal([]byte(text), &at), text)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		c.call("Input.dispatchMouseEvent", map[string]any{
			"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1,
		}, nil)
	}
}

// typeInto types a text into a field.
func (c *chromium) typeInto(selector, text string) {
	c.t.Helper()
	c.click(selector)
	c.call("Input.insertText", map[string]any{"text": text}, nil)
}

// pictures takes pictures of the page on a desk and on a phone, light and dark, and checks that nothing is wider than
// the screen.
func (c *chromium) pictures(name string) {
	c.t.Helper()
	for _, width := range []int{1280, 375} {
		for _, scheme := range []string{"light", "dark"} {
			c.call("Emulation.setDeviceMetricsOverride", map[string]any{
				"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500,
			}, nil)
			c.call("Emulation.setEmulatedMedia", map[string]any{
				"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}},
			}, nil)
			require.Equal(c.t, "true", c.eval("document.documentElement.scrollWidth <= innerWidth"), "%s, %d", name, width)
			bright := c.eval(`getComputedStyle(document.body).backgroundColor == "rgb(255, 255, 255)"`)
			require.Equal(c.t, fmt.Sprint(scheme == "light"), bright)
			if c.dir == "" {
				continue
			}
			var picture struct{ Data string }
			c.call("Page.captureScreenshot", map[string]any{"format": "png"}, &picture)
			data, err := base64.StdEncoding.DecodeString(picture.Data)
			require.NoError(c.t, err)
			file := filepath.Join(c.dir, fmt.Sprintf("%s-%d-%s.png", name, width, scheme))
			require.NoError(c.t, os.WriteFile(file, data, 0o600))
		}
	}
	c.call("Emulation.clearDeviceMetricsOverride", nil, nil)
}

// The page in a real browser: make prove WHAT=page. Without one, the tests of page_test.go have the same pages by plain
// HTTP.
func testInABrowser(t *testing.T, m *running, b *browser) {
	c := startChromium(t)
	c.open(b.at)
	c.until(`location.pathname == "/login"`)
	c.pictures("login")
	c.typeInto("input[name=token]", b.token)
	c.click("#login")
	c.until(`location.pathname == "/"`)

	wait, open := gate(t)
	id := m.submit(`printf 'one <b>bold</b> \033[31mred\033[m\n'` + "\n" + wait +
		"\nfor i in 1 2 3; do echo line $i; done; exit 3")
	m.await(id, "one")
	c.until(`document.body.innerText.includes("1/2")`) // by itself
	c.open(b.at + "/builds/" + id)
	c.until(`document.querySelector("#log").textContent == "one <b>bold</b> red\n"`)
	require.Equal(t, "running", c.eval(`document.querySelector("#result").textContent`))
	c.pictures("running")
	open()
	c.until(`document.querySelector("#log").textContent.endsWith("line 3\n")`)
	c.until(`document.querySelector("#result").textContent == "script_failure 3"`)
	require.Equal(t, "1", c.eval(`document.querySelector("#log").textContent.split("line 1").length - 1`), "once")
	require.Equal(t, "null", c.eval(`document.querySelector("#cancel")`), "it has ended")
	c.pictures("ended")

	c.open(b.at + "/vms/vm-1")
	const undrain = `getComputedStyle(document.querySelector("#undrain")).display`
	require.Equal(t, "none", c.eval(undrain), "it is not drained")
	c.typeInto("input[name=note]", "a new <disk>")
	c.click("#drain")
	c.until(`document.querySelector("#state").textContent == "draining"`)
	c.until(undrain + ` != "none"`)
	c.pictures("vm")
	st, err := m.Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err)
	require.Contains(t, string(st.GetJson()), `"state":"draining"`)
	waiting := m.submit("echo waits")
	c.open(b.at + "/")
	c.until(`document.body.innerText.includes("no VM takes builds: 1 draining")`)
	// A name does not break in a word, however narrow its column is.
	c.until(`(() => {
		const a = document.createElement("a"), cell = document.querySelector("td:not(.n)");
		a.textContent = "linux_large_builder_number_0001";
		cell.prepend(a);
		cell.style.width = "1px";
		const lines = a.getClientRects().length;
		a.remove();
		cell.style.width = "";
		return lines == 1;
	})()`)
	c.pictures("overview")
	for _, name := range []string{"builds", "failures", "audit"} {
		c.open(b.at + "/" + name)
		c.pictures(name)
	}
	c.open(b.at + "/builds/" + waiting)
	c.click("#cancel")
	c.until(`document.querySelector("#result").textContent == "job_canceled"`)
	c.open(b.at + "/?token=" + strings.Repeat("x", 43))
	c.until(`document.body.innerText.includes("A token does not belong there")`)
	c.pictures("problem")
}
