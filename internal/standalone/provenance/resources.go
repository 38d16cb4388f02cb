package provenance

import (
	"cmp"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

const maskedText = "[MASKED]"

func textOf(t mask.Text) string {
	if t.Masked {
		return maskedText
	}
	return t.Value
}

// sortedKeys returns the keys of m, sorted. It is never nil, so that its JSON is a list.
func sortedKeys[T any](m map[string]T) []string {
	return append([]string{}, slices.Sorted(maps.Keys(m))...)
}

// descriptor describes a file by its SHA-256.
func descriptor(name, uri, digest string) *intoto.ResourceDescriptor {
	return &intoto.ResourceDescriptor{Name: name, Uri: uri, Digest: map[string]string{trace.SHA256: digest}}
}

// walk calls visit for each of steps and for the steps below it, with the names that lead there.
func walk(steps []trace.Step, names []string, visit func(s *trace.Step, names []string)) {
	for i := range steps {
		s := &steps[i]
		own := append(slices.Clip(names), s.Name)
		visit(s, own)
		walk(s.Steps, own, visit)
	}
}

// dependencies returns the image of the job, and the components and the programs of its steps, each once.
func dependencies(id *trace.Identity) []*intoto.ResourceDescriptor {
	list := []*intoto.ResourceDescriptor{}
	if name, digest, ok := strings.Cut(id.Runtime.Image, trace.SHA256+":"); ok && isDigest(trace.SHA256, digest) {
		uri := "" // empty for an image that came from no registry
		if name != "" {
			uri = "docker://" + id.Runtime.Image
		}
		list = append(list, descriptor(cmp.Or(strings.TrimSuffix(name, "@"), "image"), uri, digest))
	}
	walk(id.Steps, nil, func(s *trace.Step, _ []string) { list = append(list, materials(s)...) })
	return distinct(list)
}

// distinct returns list without duplicates of the same name.
func distinct(list []*intoto.ResourceDescriptor) []*intoto.ResourceDescriptor {
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(r *intoto.ResourceDescriptor) bool {
		key := r.GetName() + "\x00" + r.GetUri()
		for _, kind := range sortedKeys(r.GetDigest()) {
			key += "\x00" + r.GetDigest()[kind]
		}
		was := seen[key]
		seen[key] = true
		return was
	})
}

// materials returns the component and the programs of one step.
func materials(s *trace.Step) []*intoto.ResourceDescriptor {
	var list []*intoto.ResourceDescriptor
	if s.Component != nil {
		list = component(s.Component)
	}
	if s.Exec != nil {
		for _, p := range []*trace.Program{s.Exec.Program, s.Exec.Interpreter} {
			if r := program(p); r != nil {
				list = append(list, r)
			}
		}
	}
	return list
}

// component describes the place where a step was found. A component without a digest is left out: it could not be
// recognised.
func component(c *trace.Component) []*intoto.ResourceDescriptor {
	switch c.Kind {
	case trace.Local:
		return local(c)
	case trace.Git, trace.Zip, trace.OCI:
	default:
		return nil
	}
	r := &intoto.ResourceDescriptor{Name: c.Location, Uri: uri(c), Digest: map[string]string{}}
	about := map[string]any{}
	for kind, digest := range c.Digest {
		if isDigest(kind, digest) {
			r.Digest[kind] = digest
		} else if kind == trace.GitCommit || kind == trace.GitTree {
			about[kind] = digest // the repository names objects by SHA-256, which the library does not support
		}
	}
	if len(about) > 0 {
		r.Annotations, _ = structpb.NewStruct(about) // texts are always valid
	}
	if len(r.GetDigest()) == 0 {
		return nil
	}
	return []*intoto.ResourceDescriptor{r}
}

// local describes a step of the project: its directory, and the file of its definition.
func local(c *trace.Component) []*intoto.ResourceDescriptor {
	var list []*intoto.ResourceDescriptor
	add := func(name, kind string) {
		if digest := c.Digest[kind]; isDigest(kind, digest) {
			list = append(list,
				&intoto.ResourceDescriptor{Name: name, Uri: fileURI(name), Digest: map[string]string{kind: digest}})
		}
	}
	add(c.Location, trace.SHA256Tree)
	add(path.Join(c.Location, c.File), trace.SHA256)
	return list
}

// program describes a program file. It returns nil for a part of a component, which is described with the component.
func program(p *trace.Program) *intoto.ResourceDescriptor {
	if p == nil || p.Path.Masked || strings.HasPrefix(p.Path.Value, trace.CacheDir+"/") ||
		!isDigest(trace.SHA256, p.Digest[trace.SHA256]) {
		return nil
	}
	return descriptor(p.Path.Value, fileURI(p.Path.Value), p.Digest[trace.SHA256])
}

// fileURI returns the URI of a path. In the job's directory it is relative.
func fileURI(name string) string {
	rel, inside := strings.CutPrefix(name, trace.WorkDir)
	switch {
	case inside:
		return "file:" + (&url.URL{Path: path.Join(".", rel)}).EscapedPath()
	case strings.HasPrefix(name, "/"):
		return (&url.URL{Scheme: "file", Path: name}).String()
	default:
		return ""
	}
}

// uri returns the URI of a fetched component: git+https://host/project@ref, the URL of an archive, or a package URL
// (purl).
func uri(c *trace.Component) string {
	switch c.Kind {
	case trace.Git:
		return "git+" + c.Location + "@" + cmp.Or(c.ResolvedRef, c.Version)
	case trace.OCI:
		u := "pkg:oci/" + url.PathEscape(path.Base(c.Location)) + "@sha256%3A" + c.Digest[trace.SHA256]
		options := url.Values{"repository_url": {c.Location}}
		if !strings.HasPrefix(c.Version, "sha256:") {
			options.Set("tag", c.Version)
		}
		return u + "?" + options.Encode()
	default:
		return c.Location
	}
}

// isDigest reports whether text is a digest of this kind, in hexadecimal.
func isDigest(kind, text string) bool {
	length := 64
	switch kind {
	case trace.GitCommit, trace.GitTree:
		length = 40
	case trace.SHA256, trace.SHA256Tree:
	default:
		return false
	}
	return len(text) == length && strings.Trim(text, "0123456789abcdef") == ""
}

// logs returns descriptions of the output of the commands.
func logs(id *trace.Identity) []*intoto.ResourceDescriptor {
	var list []*intoto.ResourceDescriptor
	walk(id.Steps, nil, func(s *trace.Step, names []string) {
		for _, stream := range []struct{ name, digest string }{
			{"stdout", s.Logs.Stdout.SHA256}, {"stderr", s.Logs.Stderr.SHA256},
		} {
			if isDigest(trace.SHA256, stream.digest) {
				list = append(list, descriptor(strings.Join(names, "/")+"/"+stream.name, "", stream.digest))
			}
		}
	})
	return list
}
