package gitlabtest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// recorded has the conversation of GitLab Runner's own client with a Fake, as lines of JSON: the module in the folder
// runner writes it.
//
//go:embed testdata/runner-19.4.0.jsonl
var recorded []byte

// Line is a line of the conversation: either an act on the Fake, or a call with its answer.
type Line struct {
	// Act happens at the server before the next call: see [Fake.Act].
	Act string `json:"act,omitempty"`

	Method  string            `json:"method,omitempty"`
	Path    string            `json:"path,omitempty"`
	Header  map[string]string `json:"header,omitempty"`
	Request json.RawMessage   `json:"request,omitempty"` // JSON, or a text
	Status  int               `json:"status,omitempty"`
	Told    map[string]string `json:"told,omitempty"` // the header of the answer
	Answer  json.RawMessage   `json:"answer,omitempty"`
}

// Conversation returns the recorded conversation.
func Conversation(t testing.TB) (all []Line) {
	t.Helper()
	for text := range bytes.Lines(recorded) {
		var l Line
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatalf("the recorded conversation: %v", err)
		}
		all = append(all, l)
	}
	return all
}

// Act does an act of the conversation at the server: "add SCRIPT", "cancel ID", "end ID STATUS", "cut ID SIZE" or
// "revoke".
func (f *Fake) Act(act string) {
	word, rest, _ := strings.Cut(act, " ")
	first, last, _ := strings.Cut(rest, " ")
	id, _ := strconv.ParseInt(first, 10, 64)
	size, _ := strconv.Atoi(last)
	switch word {
	case "add":
		f.Add(Script(rest))
	case "cancel":
		f.Cancel(id)
	case "end":
		f.End(id, last)
	case "cut":
		f.Cut(id, size)
	case "revoke":
		f.Revoke()
	default:
		panic(fmt.Sprintf("BUG: the act %q", act))
	}
}

var (
	saidHeaders = []string{
		"Accept", "Content-Range", "Content-Type", "Job-Token", "Private-Token", "Runner-Token",
	}
	toldHeaders = []string{
		"Content-Type", "Gitlab-Ci-Builds-Polling", "Job-Status", "Location", "Range", "X-Gitlab-Last-Update",
		"X-Gitlab-Trace-Update-Interval",
	}
)

// Line returns a call as a line, without the parts that differ each time.
func (c *Call) Line() Line {
	l := Line{
		Method: c.Method, Path: c.Path, Header: picked(c.Header, saidHeaders), Request: without(asJSON(c.Body)),
		Status: c.Status,
		Told:   picked(c.Answer, toldHeaders), Answer: asJSON(c.Text),
	}
	if kind := c.Header.Get("Content-Type"); strings.HasPrefix(kind, "multipart/") {
		l.Header["Content-Type"], _, _ = strings.Cut(kind, ";")
		text, err := fileOf(kind, c.Body)
		if err != nil {
			text = []byte(err.Error())
		}
		l.Request = asJSON(text)
	}
	return l
}

// without removes the facts about a runner that depend on the machine or the version.
func without(request json.RawMessage) json.RawMessage {
	var fields map[string]any
	if json.Unmarshal(request, &fields) != nil {
		return request
	}
	if info, is := fields["info"].(map[string]any); is {
		for _, name := range []string{"architecture", "platform", "revision", "version"} {
			if _, has := info[name]; has {
				info[name] = "a " + name
			}
		}
	}
	text, _ := json.Marshal(fields) // it was JSON
	return text
}

func picked(h http.Header, names []string) map[string]string {
	all := map[string]string{}
	for name := range h {
		if slices.Contains(names, name) {
			all[name] = h.Get(name)
		}
	}
	return all
}

// asJSON returns a text as JSON with sorted keys, or as a text of JSON if it is not JSON.
func asJSON(text []byte) json.RawMessage {
	if len(text) == 0 {
		return nil
	}
	var value any
	if json.Unmarshal(text, &value) != nil {
		value = string(text)
	}
	all, _ := json.Marshal(value) // of JSON, or a text
	return all
}
