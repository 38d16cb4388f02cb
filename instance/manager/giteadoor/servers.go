package giteadoor

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
	"github.com/stepmux/stepmux/internal/yamltree"
)

// Servers is the value of the key gitea of a manager's file: a mapping, or a list of them. It is a flagfile.Structured.
type Servers []Config

// String implements pflag.Value, as do the following.
func (s *Servers) String() string { return "" }

// Type returns the name of the type.
func (s *Servers) Type() string { return "servers" }

// Set fails: the value is no text.
func (s *Servers) Set(string) error {
	return errors.New("this is a key of the file of --config: write its keys url and token-file there")
}

var serverKeys = []string{"url", "token-file", "labels", "name", "runner", "limit", "share", "ephemeral",
	"images", "environment", "reach", "webhook-secret-file"}

// Read implements flagfile.Structured.
func (s *Servers) Read(r *yamltree.Reader, n *yaml.Node) {
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		items = r.List(n, "gitea")
	}
	for _, item := range items {
		server := readServer(r, item)
		if slices.ContainsFunc(*s, func(other Config) bool { return other.Name == server.Name }) {
			r.Failf(item, "there are two servers %s: give each another name", server.Name)
		}
		if r.Err != nil {
			return
		}
		*s = append(*s, server)
	}
}

func readServer(r *yamltree.Reader, n *yaml.Node) (server Config) {
	file, secret, label := "", "", "gitea"
	for _, e := range r.Known(r.Mapping(n, label), label, serverKeys) {
		switch e.Key {
		case "url":
			server.URL = r.String(e.Value, e.Key)
		case "token-file":
			file = r.String(e.Value, e.Key)
		case "webhook-secret-file":
			secret = r.String(e.Value, e.Key)
		case "labels":
			for _, l := range r.List(e.Value, e.Key) {
				server.addLabel(r.String(l, "a label"))
			}
		case "name":
			server.Name = r.String(e.Value, e.Key)
		case "runner":
			server.Runner = r.String(e.Value, e.Key)
		case "limit":
			server.Limit = readCount(r, e)
		case "images":
			server.Images = readTexts(r, e, server.Images)
		case "environment":
			server.Environment = readTexts(r, e, nil)
		case "reach":
			switch reach := r.String(e.Value, e.Key); {
			case r.Err != nil:
			case reach == "manager" || reach == "vm":
				server.Relayed = reach == "manager"
			default:
				r.Failf(e.Value, "reach %.40q: write vm or manager", reach)
			}
		case "ephemeral":
			server.Ephemeral = r.Bool(e.Value, e.Key)
		case "share":
			server.Share = readCount(r, e)
		}
	}
	if server.Name == "" {
		server.Name = nameOf(server.URL)
	}
	if server.Runner == "" {
		server.Runner, _ = os.Hostname()
	}
	server.TokenFile, server.SecretFile = file, secret
	server.Token = func() (string, error) { return readToken(file, "the registration token of the server") }
	if secret != "" {
		server.Secret = func() (string, error) { return readToken(secret, "the secret of the webhook") }
	}
	if err := server.Check(); err != nil {
		r.Failf(n, "gitea: %v", err)
	} else if file == "" {
		r.Failf(n, "gitea: token-file is missing: a file with the registration token of the server")
	}
	return server
}

// readCount reads a positive number.
func readCount(r *yamltree.Reader, e yamltree.Entry) int {
	text := r.String(e.Value, e.Key)
	count, err := strconv.Atoi(text)
	if r.Err == nil && (err != nil || count < 1) {
		r.Failf(e.Value, "%s %.40q: write a positive number", e.Key, text)
	}
	return count
}

// nameOf returns the name of a server by its URL.
func nameOf(server string) string {
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

// readToken reads a file with a token.
func readToken(name, what string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := boundedfile.ReadAll(file, name, maxToken)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("%s is empty: it has %s", name, what)
	}
	return token, nil
}

// Schema implements flagfile.Structured.
func (s *Servers) Schema() map[string]any {
	text, count := map[string]any{"type": []string{"string", "number"}}, map[string]any{"type": "integer", "minimum": 1}
	texts := map[string]any{"type": "object", "additionalProperties": text}
	server := map[string]any{
		"type": "object", "additionalProperties": false, "required": []string{"url", "token-file"},
		"properties": map[string]any{
			"url": text, "token-file": text, "name": text, "runner": text, "limit": count, "share": count,
			"webhook-secret-file": text, "ephemeral": map[string]any{"type": "boolean"},
			"reach": map[string]any{"enum": []string{"vm", "manager"}}, "images": texts, "environment": texts,
			"labels": map[string]any{"type": "array", "items": text},
		},
	}
	return map[string]any{"oneOf": []any{server, map[string]any{"type": "array", "items": server}}}
}

// Shares returns the shares of the servers among those that wait for slots, by their parties.
func (s Servers) Shares() map[string]int {
	shares := map[string]int{}
	for _, server := range s {
		shares[server.Party()] = server.Share
	}
	return shares
}
