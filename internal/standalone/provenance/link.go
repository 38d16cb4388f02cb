package provenance

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	link "github.com/in-toto/attestation/go/predicates/link/v0"
	intoto "github.com/in-toto/attestation/go/v1"

	"github.com/stepmux/stepmux/remote/step/trace"
)

// Link is the statement about one command.
type Link struct {
	// File is a name for its file, made from the step's position and name.
	File string
	Data []byte
}

// linkType is the type of links in in-toto's own format, which its verifiers read.
const linkType = "link"

// maxFileName is the longest name of a file, in bytes (NAME_MAX of Linux).
const maxFileName = 255

// Links returns a statement for each command, in the order of the steps. With a key, each is a link in in-toto's own
// format, in a DSSE envelope that the key has signed, and File is the name that in-toto's verifiers expect. It is an
// error if that name is too long for a file, or if two steps have the same name.
func Links(t *trace.Trace, key *Key) ([]Link, error) {
	var links []Link
	var failed error
	steps := map[string]string{} // by the file of their link
	walk(t.Identity.Steps, nil, func(s *trace.Step, names []string) {
		if s.Exec == nil || failed != nil {
			return
		}
		l := Link{File: fmt.Sprintf("%03d-%.100s.link.json", len(links)+1, fit(names, "-"))}
		if key == nil {
			l.Data, failed = linkOf(s, strings.Join(names, "/"))
		} else {
			l.File = fmt.Sprintf("%s.%.8s.link", fit(names, "."), key.ID)
			if l.Data, failed = signedLink(s, names); failed == nil {
				l.Data, failed = key.Sign(l.Data)
			}
		}
		name := strings.Join(names, ".")
		switch other, taken := steps[l.File]; {
		case failed != nil:
		case len(l.File) > maxFileName:
			failed = fmt.Errorf("the file name of its link would have %d bytes, and can have %d; shorten the names of the steps",
				len(l.File), maxFileName)
		case taken:
			failed = fmt.Errorf("the link of this step would have the file name of that of step %.64q, %.100q; "+
				"rename one of the steps", other, l.File)
		}
		if failed != nil {
			failed = fmt.Errorf("step %.64q: %w", name, failed)
			return
		}
		steps[l.File] = name
		links = append(links, l)
	})
	return links, failed
}

// unusual matches characters that are not allowed in names of steps.
var unusual = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// fit joins names to a part of a file name. It replaces unusual characters, because the trace may come from another
// program.
func fit(names []string, with string) string {
	fitting := make([]string, len(names))
	for i, name := range names {
		fitting[i] = unusual.ReplaceAllString(name, "_")
	}
	return strings.Join(fitting, with)
}

// linkOf returns the statement about the command of s.
func linkOf(s *trace.Step, name string) ([]byte, error) {
	p, outputs, err := predicate(s, name)
	if err != nil {
		return nil, err
	}
	return encode(LinkType, p, []Subject{{"outputs", outputs}})
}

// signedLink returns the link about the command of s in in-toto's own format, as canonical JSON.
func signedLink(s *trace.Step, names []string) ([]byte, error) {
	p, outputs, err := predicate(s, strings.Join(names, "."))
	if err != nil {
		return nil, err
	}
	materials := map[string]any{}
	for _, m := range p.GetMaterials() {
		materials[m.GetName()] = m.GetDigest()
	}
	return canonical(json.Marshal(map[string]any{
		"_type": linkType, "name": p.GetName(), "command": append([]string{}, p.GetCommand()...),
		"materials": materials, "products": map[string]any{"outputs": map[string]string{trace.SHA256: outputs}},
		"byproducts": p.GetByproducts().AsMap(), "environment": p.GetEnvironment().AsMap(),
	}))
}

// predicate describes the command of s. outputs is the digest of the step's outputs.
func predicate(s *trace.Step, name string) (p *link.Link, outputs string, err error) {
	data, err := canonical(json.Marshal(s.Outputs))
	if err != nil {
		return nil, "", err
	}
	byproducts := map[string]any{}
	if code := s.Exec.ExitCode; code != nil {
		byproducts["exit_code"], byproducts["return-value"] = *code, *code
	}
	if s.Logs.Stdout.SHA256 != "" {
		byproducts["stdout"] = trace.SHA256 + ":" + s.Logs.Stdout.SHA256
		byproducts["stderr"] = trace.SHA256 + ":" + s.Logs.Stderr.SHA256
	}
	p = &link.Link{Name: name, Materials: named(distinct(materials(s)))}
	for _, arg := range s.Exec.Argv {
		p.Command = append(p.Command, textOf(arg))
	}
	if p.Byproducts, err = structOf(json.Marshal(byproducts)); err != nil {
		return nil, "", err
	}
	about := map[string]any{"variables": sortedKeys(s.Env), "work_dir": textOf(s.Exec.WorkDir)}
	if p.Environment, err = structOf(json.Marshal(about)); err != nil {
		return nil, "", err
	}
	for _, m := range p.GetMaterials() {
		if err := m.Validate(); err != nil {
			return nil, "", fmt.Errorf("write provenance: %w", err)
		}
	}
	return p, fmt.Sprintf("%x", sha256.Sum256(data)), nil
}

// named makes the names in list unique, because a link's materials are looked up by name.
func named(list []*intoto.ResourceDescriptor) []*intoto.ResourceDescriptor {
	seen := map[string]int{}
	for _, r := range list {
		if seen[r.GetName()]++; seen[r.GetName()] > 1 {
			r.Name = fmt.Sprintf("%s (%d)", r.GetName(), seen[r.GetName()])
		}
	}
	return list
}
