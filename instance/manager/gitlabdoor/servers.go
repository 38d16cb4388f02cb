package gitlabdoor

import (
	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/internal/yamltree"
)

// Servers is the value of the key gitlab of a manager's file. It is a flagfile.Structured.
type Servers struct{ jobdoor.Servers[DoorConfig] }

// ID implements jobdoor.Named.
func (cfg DoorConfig) ID() string { return cfg.Name }

var serverKeys = []string{
	"url", "token-file", "name", "limit", "share", "image", "labels", "environment", "ca", "cert", "key",
}

// Read implements flagfile.Structured.
func (s *Servers) Read(r *yamltree.Reader, n *yaml.Node) { s.ReadAll(r, n, "gitlab", readServer) }

func readServer(r *yamltree.Reader, n *yaml.Node) (server DoorConfig) {
	for _, e := range r.Known(r.Mapping(n, "gitlab"), "gitlab", serverKeys) {
		switch e.Key {
		case "url":
			server.URL = r.String(e.Value, e.Key)
		case "token-file":
			server.TokenFile = r.String(e.Value, e.Key)
		case "name":
			server.Name = r.String(e.Value, e.Key)
		case "limit":
			server.Limit = jobdoor.ReadCount(r, e)
		case "share":
			server.Share = jobdoor.ReadCount(r, e)
		case "image":
			server.Image = r.String(e.Value, e.Key)
		case "labels":
			server.Labels = readTexts(r, e)
		case "environment":
			server.Environment = readTexts(r, e)
			jobdoor.CheckEnvironment(r, e, server.Environment)
		case "ca":
			server.Files.CA = r.String(e.Value, e.Key)
		case "cert":
			server.Files.Cert = r.String(e.Value, e.Key)
		case "key":
			server.Files.Key = r.String(e.Value, e.Key)
		}
	}
	if server.Name == "" {
		server.Name = jobdoor.NameOf(server.URL)
	}
	file := server.TokenFile
	server.Token = func() (string, error) { return jobdoor.ReadToken(file, "the token of the runner, glrt-...") }
	if err := server.Check(); err != nil {
		r.Failf(n, "gitlab: %v", err)
	} else if file == "" {
		r.Failf(n, "gitlab: token-file is missing: a file with the token of the runner, glrt-...")
	}
	return server
}

// readTexts reads texts by their names.
func readTexts(r *yamltree.Reader, e yamltree.Entry) map[string]string {
	all := map[string]string{}
	for _, v := range r.Mapping(e.Value, e.Key) {
		all[v.Key] = r.String(v.Value, v.Key)
	}
	return all
}

// Schema implements flagfile.Structured.
func (s *Servers) Schema() map[string]any {
	text := jobdoor.Text
	texts := map[string]any{"type": "object", "additionalProperties": text}
	return jobdoor.SchemaOf(map[string]any{
		"url": text, "token-file": text, "name": text, "image": text, "limit": jobdoor.Count, "share": jobdoor.Count,
		"ca": text, "cert": text, "key": text,
		"labels": texts, "environment": texts,
	})
}
