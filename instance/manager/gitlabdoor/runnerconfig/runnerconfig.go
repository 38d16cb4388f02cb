// Package runnerconfig makes the file of a manager from the config.toml of a GitLab Runner: see [Convert]. Each key
// of GitLab Runner 19.4 either has a place in that file, or a note that says what to do.
package runnerconfig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/internal/sortedkeys"
)

// MaxFile bounds a config.toml, in bytes.
const MaxFile = 1 << 20

// Converted is what Convert makes.
type Converted struct {
	// File is the file of the manager, with a comment for each note.
	File []byte
	// Tokens are the tokens of the runners, by the names of their files.
	Tokens map[string]string
}

// Convert converts a config.toml. tokens is the directory for the files of the tokens. An error is about a mistake in
// the text.
func Convert(text []byte, tokens string) (*Converted, error) {
	var tree map[string]any
	if _, err := toml.NewDecoder(bytes.NewReader(text)).Decode(&tree); err != nil {
		if at, ok := errors.AsType[toml.ParseError](err); ok {
			return nil, fmt.Errorf("line %d: %s", at.Position.Line, at.Message)
		}
		return nil, err
	}
	c := &conversion{values: map[string]any{}, owner: map[string]string{}, notes: map[string]bool{}}
	runners, err := tables(tree, "runners")
	switch {
	case err != nil:
		return nil, err
	case len(runners) == 0:
		return nil, errors.New("there is no [[runners]] in it: is it the config.toml of a GitLab Runner?")
	}
	for _, r := range runners {
		c.executors = append(c.executors, executorOf(r))
	}
	c.runners = len(runners)
	c.set("state", "/var/lib/stepmux")
	c.set("bootstrap", true)
	delete(tree, "runners")
	c.walk(tree, "")
	all := []*runner{}
	for i, table := range runners {
		r := &runner{table: table, executor: c.executors[i]}
		c.current, c.notes = r, map[string]bool{}
		r.name = c.nameOf(table, all)
		c.walk(table, "runners.")
		c.vms(r)
		if c.err != nil {
			return nil, fmt.Errorf("[[runners]] %d: %w", i+1, c.err)
		}
		if r.url == "" {
			return nil, fmt.Errorf("[[runners]] %d: url is missing", i+1)
		}
		all = append(all, r)
	}
	if c.err != nil {
		return nil, c.err
	}
	return c.write(all, tokens)
}

// runner is an element of [[runners]].
type runner struct {
	table                map[string]any
	executor             string
	name, url, token     string
	image, ca, cert, key string
	limit                int
	environment          map[string]string
	notes                []string
}

// conversion makes a Converted.
type conversion struct {
	keys   []string // of the file, in their order
	values map[string]any
	owner  map[string]string // of a value: the name of the runner
	global []string          // notes

	executors  []string
	runners    int
	concurrent int
	current    *runner         // nil: the part before the runners
	notes      map[string]bool // that the current part has
	err        error           // the first one
}

// set sets a key of the manager's file. A manager has one value for all runners.
func (c *conversion) set(key string, value any) {
	name := ""
	if c.current != nil {
		name = c.current.name
	}
	old, known := c.values[key]
	switch {
	case !known:
		c.keys = append(c.keys, key)
		c.values[key], c.owner[key] = value, name
	case !reflect.DeepEqual(old, value):
		c.note(fmt.Sprintf("the key %s is that of %s, and a manager has one: for %v, run another manager", key,
			cmp.Or(c.owner[key], "all"), value))
	}
}

// note adds a note to the part that is converted.
func (c *conversion) note(text string) {
	if c.notes[text] {
		return
	}
	c.notes[text] = true
	if c.current == nil {
		c.global = append(c.global, text)
		return
	}
	c.current.notes = append(c.current.notes, text)
}

// fail keeps the first error.
func (c *conversion) fail(key, want string, value any) {
	if c.err == nil {
		c.err = fmt.Errorf("%s is %.60s: write %s", key, fmt.Sprint(value), want)
	}
}

// walk converts the keys of a table, whose names begin with prefix.
func (c *conversion) walk(table map[string]any, prefix string) {
	for _, key := range sortedkeys.Of(table) {
		value, full := table[key], prefix+key
		found, known := rules[strings.ToLower(full)]
		switch {
		case isEmpty(value):
		case !known:
			c.note(strings.TrimPrefix(full, "runners.") + ": GitLab Runner 19.4 does not have this key")
		case found.do != nil:
			found.do(c, strings.TrimPrefix(full, "runners."), value)
		case found.note != "":
			c.note(strings.TrimPrefix(full, "runners.") + ": " + found.note)
		default:
			c.descend(full, value, found.executors)
		}
	}
}

// descend converts a table that is for some executors, or for all.
func (c *conversion) descend(full string, value any, executors []string) {
	table, is := value.(map[string]any)
	name := strings.TrimPrefix(full, "runners.")
	if !is {
		c.fail(name, "a table", value)
		return
	}
	if len(executors) > 0 && c.current != nil && !slices.Contains(executors, c.current.executor) {
		c.note(fmt.Sprintf("%s: the executor %s does not use it", name, c.current.executor))
		return
	}
	c.walk(table, full+".")
}

// isEmpty reports whether a value is that of a key that is not there.
func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case time.Time:
		return v.IsZero()
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, inner := range v {
			if !isEmpty(inner) {
				return false
			}
		}
		return true
	case []map[string]any:
		return len(v) == 0
	}
	return reflect.ValueOf(value).IsZero()
}

// tables returns the tables of a list.
func tables(of map[string]any, key string) ([]map[string]any, error) {
	switch list := of[key].(type) {
	case nil:
		return nil, nil
	case []map[string]any:
		return list, nil
	}
	return nil, fmt.Errorf("%s is not a list of tables: write [[%s]]", key, key)
}

func executorOf(table map[string]any) string {
	text, _ := table["executor"].(string) // another value is an error of its rule
	return text
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// nameOf returns a name for a runner that no other one has.
func (c *conversion) nameOf(table map[string]any, others []*runner) string {
	text, _ := table["name"].(string)
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(text), "-"), "-")
	if name == "" {
		server, _ := table["url"].(string)
		name = cmp.Or(jobdoor.NameOf(server), "gitlab")
	}
	name = strings.Trim(name[:min(len(name), 28)], "-")
	base := name
	for n := 2; slices.ContainsFunc(others, func(r *runner) bool { return r.name == name }); n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	return name
}

// write writes the file.
func (c *conversion) write(all []*runner, tokens string) (*Converted, error) {
	made := &Converted{Tokens: map[string]string{}}
	if c.values["network"] != nil && c.values["service"] != nil {
		c.global = append(c.global, fmt.Sprintf("docker.network_mode: jobs with services have a network of their own; "+
			"without services it would be network: %v", c.values["network"]))
		c.keys = slices.DeleteFunc(c.keys, func(key string) bool { return key == "network" })
	}
	file := &yaml.Node{Kind: yaml.MappingNode}
	for _, key := range c.keys {
		add(file, key, c.values[key])
	}
	servers := &yaml.Node{Kind: yaml.SequenceNode}
	for _, r := range all {
		tokenFile := path.Join(tokens, "gitlab-"+r.name+".token")
		if r.token == "" {
			r.notes = append(r.notes, "token: it is missing; write that of the runner, glrt-..., into the file below")
		} else {
			made.Tokens[tokenFile] = r.token
		}
		server := &yaml.Node{Kind: yaml.MappingNode}
		add(server, "name", r.name)
		add(server, "url", r.url)
		add(server, "token-file", tokenFile)
		if limit := c.limitOf(r); limit > 0 {
			add(server, "limit", limit)
		}
		for _, e := range []struct{ key, value string }{
			{"image", r.image}, {"ca", r.ca}, {"cert", r.cert}, {"key", r.key},
		} {
			if e.value != "" {
				add(server, e.key, e.value)
			}
		}
		if len(r.environment) > 0 {
			add(server, "environment", r.environment)
		}
		server.HeadComment = comment(r.notes)
		servers.Content = append(servers.Content, server)
	}
	file.Content = append(file.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "gitlab"}, servers)
	if c.runners > 1 && c.concurrent > 0 {
		c.global = append(c.global, fmt.Sprintf("concurrent: the slots of the VMs bound all jobs together; give the VMs %d "+
			"slots in all (capacity, for each VM)", c.concurrent))
	}
	file.HeadComment = comment(append([]string{
		"Made from a config.toml by stepmux gitlab import. The comments say which keys have no place here, and what to do.",
	}, c.global...))
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(file); err != nil {
		return nil, err
	}
	made.File = out.Bytes()
	return made, nil
}

// limitOf returns the limit of a runner, of which concurrent is the upper bound.
func (c *conversion) limitOf(r *runner) int {
	if r.limit == 0 || c.concurrent > 0 && c.concurrent < r.limit {
		return c.concurrent
	}
	return r.limit
}

// comment returns the comment of notes.
func comment(notes []string) string {
	lines := make([]string, len(notes))
	for i, n := range notes {
		lines[i] = "# " + n
	}
	return strings.Join(lines, "\n")
}

func add(to *yaml.Node, key string, value any) {
	node := &yaml.Node{}
	if err := node.Encode(value); err != nil {
		panic("BUG: " + err.Error())
	}
	to.Content = append(to.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, node)
}
