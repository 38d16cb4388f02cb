package gitlabci

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// maxIncludes bounds the included files, direct and indirect.
const maxIncludes = 150

// includer reads the files that a file includes.
type includer struct {
	file  *File
	open  func(path string) ([]byte, error) // opens files of the project whose file is being read
	stack []string                          // the files being read, the outermost first
	place string                            // the project whose file is being read; empty for our own
	count int
}

// load returns the content of src, with its inputs, merged over its includes. given has the inputs of the include, or
// is nil.
func (in *includer) load(src *lang.Source, given *yaml.Node) *yaml.Node {
	header, content := in.file.topOf(src)
	top := in.fill(header, content, given)
	include := find(top, "include")
	if isNull(include) {
		return top
	}
	var base *yaml.Node
	for _, entry := range itemsOf(include) {
		if in.wanted(entry) {
			base = in.file.tree.merge(base, in.entry(entry))
		}
	}
	return in.file.tree.merge(base, top)
}

// wanted reports whether the rules of an entry include it. As with GitLab, they can use only predefined and given
// variables.
func (in *includer) wanted(entry *yaml.Node) bool {
	rules := find(entry, "rules")
	return isNull(rules) || in.file.matched(rules, includeRuleKeys, in.known()) != nil
}

// known returns an expander with the variables that include can use.
func (in *includer) known() *expander {
	f := in.file
	return f.expander(f.literal(f.literal(nil, f.cfg.Predefined), f.cfg.Given))
}

// kinds are the kinds of include from places that are not this project.
var kinds = []string{"remote", "project", "template", "component", "artifact"}

// otherIncludeKeys are the keys of include that are not kinds.
var otherIncludeKeys = []string{"inputs", "rules", "file", "ref", "job", "integrity", "cache"}

// entry reads the file of one entry of include.
func (in *includer) entry(n *yaml.Node) *yaml.Node {
	t := in.file.tree
	name, at := "", n
	switch n.Kind { //nolint:exhaustive // there are no other kinds
	case yaml.ScalarNode:
		if name = n.Value; strings.Contains(name, "://") {
			return in.elsewhere(n, "remote", n)
		}
	case yaml.MappingNode:
		for key, value := range entries(n) {
			switch {
			case key.Value == "local":
				name, at = value.Value, value
			case slices.Contains(kinds, key.Value):
				return in.elsewhere(key, key.Value, n)
			case !slices.Contains(otherIncludeKeys, key.Value):
				return t.failf(key, "%s", yamltree.Unknown(key.Value, "include", nil, "; use local"))
			}
		}
	}
	if name == "" || at.Kind != yaml.ScalarNode {
		return t.failf(at, "include takes the path of a file of this project, such as - local: ci/jobs.yml")
	}
	return in.read(n, at, name)
}

// elsewhere reads the files that an entry, at the node at, includes from another place. They are in a directory for
// such files. Without that directory they are left out, and the error of a job that needs them says so.
func (in *includer) elsewhere(at *yaml.Node, kind string, entry *yaml.Node) *yaml.Node {
	value := entry
	if entry.Kind == yaml.MappingNode {
		value = find(entry, kind)
	}
	if own := ownComponent.FindStringSubmatch(value.Value); kind == "component" && own != nil && in.place == "" {
		return in.component(at, entry, own[1])
	}
	expand := func(n *yaml.Node) string { return in.known().expand(variable{at: n, value: n.Value}) }
	top, files := "", []string{expand(value)}
	switch kind {
	case "remote":
		_, rest, _ := strings.Cut(files[0], "://")
		rest, _, _ = strings.Cut(rest, "?")
		files[0] = rest
	case "template":
		top = "templates"
	case "component":
		name, _, _ := strings.Cut(files[0], "@")
		files[0] = name + ".yml"
	case "project":
		list := find(entry, "file")
		if isNull(list) {
			return in.file.tree.failf(at, "include: project needs file, the path of a file there")
		}
		top, files = files[0], nil
		for _, file := range itemsOf(list) {
			files = append(files, expand(file))
		}
	}
	what := fmt.Sprintf("%s %.160q", kind, value.Value)
	if kind == "project" {
		what += fmt.Sprintf(" %.160q", strings.Join(files, " "))
	}
	if kind == "artifact" && in.file.cfg.artifact != nil {
		return in.made(at, entry, files[0])
	}
	if in.file.cfg.Other == nil || kind == "artifact" || strings.Contains(top+strings.Join(files, ""), "$") {
		in.file.notice("include: " + what)
		in.file.left = append(in.file.left, what)
		return &yaml.Node{Kind: yaml.MappingNode}
	}
	own := in.open
	defer func() { in.open = own }()
	in.open = func(name string) ([]byte, error) { return in.file.cfg.Other(path.Join(top, name)) }
	var all *yaml.Node
	for _, file := range files {
		all = in.file.tree.merge(all, in.readAs(entry, at, file, otherPlace+top))
	}
	return all
}

// ownComponent matches a component of the project itself, as of its commit: so projects test their components.
var ownComponent = regexp.MustCompile(
	`^\$\{?CI_SERVER_(?:FQDN|HOST)\}?/\$\{?CI_PROJECT_PATH\}?/([\w-]+)@\$\{?CI_COMMIT_\w+\}?$`,
)

// component reads a component of the project: templates/NAME.yml or templates/NAME/template.yml.
func (in *includer) component(at, entry *yaml.Node, name string) *yaml.Node {
	file := "templates/" + name + ".yml"
	if in.open != nil {
		if _, err := in.open(file); err != nil {
			file = "templates/" + name + "/template.yml"
		}
	}
	return in.readAs(entry, at, file, "")
}

// otherPlace is the beginning of the place of a file in the directory for files from elsewhere.
const otherPlace = "other: "

// made reads a file of an entry that a job has made.
func (in *includer) made(at, entry *yaml.Node, file string) *yaml.Node {
	job := valueOfNode(find(entry, "job"))
	own := in.open
	defer func() { in.open = own }()
	in.open = func(name string) ([]byte, error) { return in.file.cfg.artifact(job, name) }
	return in.readAs(entry, at, file, "artifact: "+job)
}

// mayBeElsewhere returns the left-out files, in words for the error about a job that does not exist.
func (f *File) mayBeElsewhere() string {
	if len(f.left) == 0 {
		return ""
	}
	return fmt.Sprintf("; it may be in a file that this one includes from elsewhere (%s): save such files in a "+
		"directory, and name it by --includes", strings.Join(f.left, ", "))
}

// read reads the file name of this project, or all files that match if it has wildcards. at is the node of the name in
// the entry.
func (in *includer) read(entry, at *yaml.Node, name string) *yaml.Node {
	t := in.file.tree
	name = in.known().expand(variable{at: at, value: name})
	switch {
	case strings.Contains(name, "$"):
		return t.failf(at, "include: a variable in this path has no value; give it one by --var")
	case !strings.Contains(name, "*"):
		return in.readAs(entry, at, name, in.place)
	case in.place != "":
		in.file.notice("include with wildcards in a file from elsewhere")
		return &yaml.Node{Kind: yaml.MappingNode}
	}
	pattern, err := includePattern(strings.TrimPrefix(name, "/"))
	if err != nil {
		return t.failf(at, "include: the pattern is not valid: %v", bare(err))
	}
	paths, err := in.file.list()
	if err != nil {
		return t.failf(at, "include: %v", err)
	}
	all := &yaml.Node{Kind: yaml.MappingNode}
	for _, file := range paths {
		if pattern.MatchString(file) && !slices.Contains(in.stack, file) {
			all = t.merge(all, in.readAs(entry, at, file, ""))
		}
	}
	return all
}

// readAs reads a file of an entry. place is the project of the file, or empty for this project.
func (in *includer) readAs(entry, at *yaml.Node, name, place string) *yaml.Node {
	t := in.file.tree
	if t.Err != nil {
		return &yaml.Node{}
	}
	shown := fmt.Sprintf(" %.160q", name)
	if top, isOther := strings.CutPrefix(place, otherPlace); isOther {
		shown = fmt.Sprintf(" %.160q", path.Join(top, name)) // its path in the directory for such files
	}
	if strings.Contains(at.Value, "$") && lang.Quote(strings.ReplaceAll(name, "/", " ")) == "" {
		shown = "" // it has the value of a variable
	}
	if in.open == nil {
		return t.failf(at, "include: no other files can be read here")
	}
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	key := place + "/" + name
	if place == "" {
		key = name
	}
	if slices.Contains(in.stack, key) {
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
	was := in.place
	in.place, in.stack = place, append(in.stack, key)
	defer func() { in.place, in.stack = was, in.stack[:len(in.stack)-1] }()
	return in.load(src, find(entry, "inputs"))
}

// bare returns the innermost error of err. The outer ones only repeat the path.
func bare(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
