package jobdoor

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/internal/yamltree"
)

// Named is a description of a server in a manager's file.
type Named interface {
	// ID is the name of the server.
	ID() string
}

// Servers is the value of a key of a manager's file that describes servers: a mapping, or a list of them.
type Servers[C Named] []C

// String implements pflag.Value, as do the following.
func (s *Servers[C]) String() string { return "" }

// Type returns the name of the type.
func (s *Servers[C]) Type() string { return "servers" }

// Set fails: the value is no text.
func (s *Servers[C]) Set(string) error {
	return errors.New("this is a key of the file of --config: write its keys url and token-file there")
}

// ReadAll reads the value of a key, each server by read.
func (s *Servers[C]) ReadAll(
	r *yamltree.Reader, n *yaml.Node, key string, read func(r *yamltree.Reader, n *yaml.Node) C,
) {
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		items = r.List(n, key)
	}
	for _, item := range items {
		server := read(r, item)
		if slices.ContainsFunc(*s, func(other C) bool { return other.ID() == server.ID() }) {
			r.Failf(item, "there are two servers %s: give each another name", server.ID())
		}
		if r.Err != nil {
			return
		}
		*s = append(*s, server)
	}
}

// Text and Count are the schemas of a text and of a positive number.
var (
	Text  = map[string]any{"type": []string{"string", "number"}}
	Count = map[string]any{"type": "integer", "minimum": 1}
)

// SchemaOf returns the schema of servers with these keys, of which url and token-file are required.
func SchemaOf(keys map[string]any) map[string]any {
	server := map[string]any{
		"type": "object", "additionalProperties": false, "required": []string{"url", "token-file"}, "properties": keys,
	}
	return map[string]any{"oneOf": []any{server, map[string]any{"type": "array", "items": server}}}
}

// ReadCount reads a positive number.
func ReadCount(r *yamltree.Reader, e yamltree.Entry) int {
	text := r.String(e.Value, e.Key)
	count, err := strconv.Atoi(text)
	if r.Err == nil && (err != nil || count < 1) {
		r.Failf(e.Value, "%s %.40q: write a positive number", e.Key, text)
	}
	return count
}

// CheckEnvironment fails if variables cannot be in an environment: each job would fail.
func CheckEnvironment(r *yamltree.Reader, e yamltree.Entry, variables map[string]string) {
	for _, name := range sortedkeys.Of(variables) {
		switch {
		case name == "" || strings.ContainsAny(name, "= \t\r\n\x00"):
			r.Failf(e.Value, "%s: %.40q cannot be the name of a variable: write letters, digits and _", e.Key, name)
		case strings.Contains(variables[name], "\x00"):
			r.Failf(e.Value, "%s: the value of %.40q has a NUL byte", e.Key, name)
		}
	}
}

// NameOf returns the name of a server by its URL.
func NameOf(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(u.Host))
	return strings.Trim(name[:min(len(name), 32)], "-")
}

// maxToken bounds the file of a token, in bytes.
const maxToken = 4 << 10

// ReadToken reads a file with a token. An error about an empty file describes the token.
func ReadToken(name, what string) (string, error) {
	text, err := boundedfile.ReadBy(os.OpenFile, name, maxToken)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("%s is empty: it has %s", name, what)
	}
	return token, nil
}
