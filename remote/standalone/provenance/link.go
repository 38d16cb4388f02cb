package provenance

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/gowebpki/jcs"
	link "github.com/in-toto/attestation/go/predicates/link/v0"
	intoto "github.com/in-toto/attestation/go/v1"

	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Link is the statement about one command.
type Link struct {
	// File is a name for its file: the place of the step among the others, and its name.
	File string
	Data []byte
}

// Links returns a statement for each command that was run, in the order of the steps.
func Links(t *trace.Trace) ([]Link, error) {
	var links []Link
	var failed error
	count := 0
	walk(t.Identity.Steps, nil, func(s *trace.Step, names []string) {
		if s.Exec == nil || failed != nil {
			return
		}
		count++
		data, err := linkOf(s, strings.Join(names, "/"))
		if err != nil {
			failed = fmt.Errorf("step %q: %w", strings.Join(names, "."), err)
			return
		}
		links = append(links, Link{fileName(count, names), data})
	})
	return links, failed
}

// unusual matches characters that names of steps do not have.
var unusual = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// fileName names the file of a link. Names of a trace that was not written by us are made fit for one.
func fileName(number int, names []string) string {
	name := unusual.ReplaceAllString(strings.Join(names, "-"), "_")
	return fmt.Sprintf("%03d-%.100s.link.json", number, name)
}

func linkOf(s *trace.Step, name string) ([]byte, error) {
	outputs, err := digestOf(s.Outputs)
	if err != nil {
		return nil, err
	}
	byproducts := map[string]any{"exit_code": s.Exec.ExitCode, "return-value": s.Exec.ExitCode}
	subjects := []Subject{{"outputs", outputs}}
	if s.Logs.Stdout.SHA256 != "" {
		byproducts["stdout"] = trace.SHA256 + ":" + s.Logs.Stdout.SHA256
		byproducts["stderr"] = trace.SHA256 + ":" + s.Logs.Stderr.SHA256
	}
	p := &link.Link{Name: name, Materials: named(distinct(materials(s)))}
	for _, arg := range s.Exec.Argv {
		p.Command = append(p.Command, textOf(arg))
	}
	if p.Byproducts, err = structOf(byproducts); err != nil {
		return nil, err
	}
	p.Environment, err = structOf(map[string]any{
		"variables": sortedKeys(s.Env), "work_dir": textOf(s.Exec.WorkDir),
	})
	if err != nil {
		return nil, err
	}
	for _, m := range p.GetMaterials() {
		if err := m.Validate(); err != nil {
			return nil, fmt.Errorf("write provenance: %w", err)
		}
	}
	return encode(LinkType, p, subjects)
}

// named makes the names in list differ: a link's materials are known by them.
func named(list []*intoto.ResourceDescriptor) []*intoto.ResourceDescriptor {
	seen := map[string]int{}
	for _, r := range list {
		if seen[r.GetName()]++; seen[r.GetName()] > 1 {
			r.Name = fmt.Sprintf("%s (%d)", r.GetName(), seen[r.GetName()])
		}
	}
	return list
}

// digestOf is the digest of values as the trace has them, in the canonical form of JSON.
func digestOf(values mask.Values) (string, error) {
	data, err := json.Marshal(values)
	if err == nil {
		data, err = jcs.Transform(data)
	}
	if err != nil {
		return "", fmt.Errorf("write provenance: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data)), nil
}
