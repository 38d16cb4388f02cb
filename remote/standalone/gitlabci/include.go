package gitlabci

import (
	"errors"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// maxIncludes is the largest number of included files, direct and indirect.
const maxIncludes = 150

// includer reads the files a file includes.
type includer struct {
	file  *File
	open  func(path string) ([]byte, error)
	stack []string // the files being read, the outermost first
	count int
}

// load returns the content of src, merged over its includes.
func (in *includer) load(src *lang.Source) *yaml.Node {
	top := in.file.topOf(src)
	include := find(top, "include")
	if isNull(include) {
		return top
	}
	var base *yaml.Node
	for _, entry := range itemsOf(include) {
		base = in.file.tree.merge(base, in.entry(entry))
	}
	return in.file.tree.merge(base, top)
}

// kinds has the kinds of include that are refused, and the source of their files.
var kinds = map[string]string{
	"remote":    "a URL",
	"project":   "another project",
	"template":  "GitLab's templates",
	"component": "the catalog",
	"artifact":  "a job's artifacts",
}

// entry reads the file that one entry of include names.
func (in *includer) entry(n *yaml.Node) *yaml.Node {
	t := in.file.tree
	name, at := "", n
	switch n.Kind { //nolint:exhaustive // there are no others
	case yaml.ScalarNode:
		if name = n.Value; strings.Contains(name, "://") {
			return in.refuse(n, "remote")
		}
	case yaml.MappingNode:
		for _, key := range keys(n) {
			switch {
			case key == "local":
				at = find(n, key)
				name = at.Value
			case kinds[key] != "":
				return in.refuse(findKey(n, key), key)
			case key == "rules":
				in.file.notice("rules of include")
			case key == "inputs":
				in.file.notice("inputs of include")
			case key == "file" || key == "ref" || key == "job": // keys of the refused kinds
			default:
				return t.failf(findKey(n, key), "unknown key%s of include; use local", lang.Quote(key))
			}
		}
	}
	if name == "" || at.Kind != yaml.ScalarNode {
		return t.failf(at, "include takes the path of a file of this project, such as - local: ci/jobs.yml")
	}
	return in.read(at, name)
}

func (in *includer) refuse(n *yaml.Node, kind string) *yaml.Node {
	return in.file.tree.failf(n, "include: %s takes files from %s, which this program does not fetch; save the file "+
		"in the project and use local", kind, kinds[kind])
}

// read reads the file name, which stands at the node at.
func (in *includer) read(at *yaml.Node, name string) *yaml.Node {
	t := in.file.tree
	if t.err != nil {
		return &yaml.Node{}
	}
	shown := lang.Quote(strings.ReplaceAll(name, "/", " "))
	if shown != "" {
		shown = ` "` + name + `"`
	}
	switch {
	case strings.ContainsAny(name, "*?["):
		return t.failf(at, "include: wildcards are not supported; name each file")
	case strings.Contains(name, "$"):
		return t.failf(at, "include: variables are not supported; write the path out")
	case in.open == nil:
		return t.failf(at, "include: no other files can be read here")
	}
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if slices.Contains(in.stack, name) {
		return t.failf(at, "include: the file%s includes itself", shown)
	}
	if in.count++; in.count > maxIncludes {
		return t.failf(at, "include: there are more than %d files", maxIncludes)
	}
	data, err := in.open(name)
	if err != nil {
		return t.failf(at, "include: read%s: %v", shown, bare(err))
	}
	src, err := lang.Load(name, data)
	if err != nil {
		return t.fail(err)
	}
	in.stack = append(in.stack, name)
	defer func() { in.stack = in.stack[:len(in.stack)-1] }()
	return in.load(src)
}

// bare returns the innermost error of err; the others only repeat the path.
func bare(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
