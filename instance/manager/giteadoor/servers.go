package giteadoor

import (
	"os"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/internal/yamltree"
)

// Servers is the value of the key gitea of a manager's file. It is a flagfile.Structured.
type Servers struct{ jobdoor.Servers[Config] }

// ID implements jobdoor.Named.
func (cfg Config) ID() string { return cfg.Name }

var serverKeys = []string{
	"url", "token-file", "labels", "name", "runner", "limit", "share", "ephemeral",
	"images", "environment", "reach", "webhook-secret-file",
}

// Read implements flagfile.Structured.
func (s *Servers) Read(r *yamltree.Reader, n *yaml.Node) { s.ReadAll(r, n, "gitea", readServer) }

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
			server.Limit = jobdoor.ReadCount(r, e)
		case "images":
			server.Images = readTexts(r, e, server.Images)
		case "environment":
			server.Environment = readTexts(r, e, nil)
			jobdoor.CheckEnvironment(r, e, server.Environment)
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
			server.Share = jobdoor.ReadCount(r, e)
		}
	}
	if server.Name == "" {
		server.Name = jobdoor.NameOf(server.URL)
	}
	if server.Runner == "" {
		server.Runner, _ = os.Hostname()
	}
	server.TokenFile, server.SecretFile = file, secret
	server.Token = func() (string, error) { return jobdoor.ReadToken(file, "the registration token of the server") }
	if secret != "" {
		server.Secret = func() (string, error) { return jobdoor.ReadToken(secret, "the secret of the webhook") }
	}
	if err := server.Check(); err != nil {
		r.Failf(n, "gitea: %v", err)
	} else if file == "" {
		r.Failf(n, "gitea: token-file is missing: a file with the registration token of the server")
	}
	return server
}

// Schema implements flagfile.Structured.
func (s *Servers) Schema() map[string]any {
	text := jobdoor.Text
	texts := map[string]any{"type": "object", "additionalProperties": text}
	return jobdoor.SchemaOf(map[string]any{
		"url": text, "token-file": text, "name": text, "runner": text, "limit": jobdoor.Count, "share": jobdoor.Count,
		"webhook-secret-file": text, "ephemeral": map[string]any{"type": "boolean"},
		"reach": map[string]any{"enum": []string{"vm", "manager"}}, "images": texts, "environment": texts,
		"labels": map[string]any{"type": "array", "items": text},
	})
}
