package lang

import (
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	// maxDepth is the deepest nesting; a job needs six levels.
	maxDepth = 64
	// maxCost bounds what is read of a text: its bytes, and nodeCost for each node, as even an empty one takes 100 bytes
	// of memory. Aliases are counted each time. A text of MaxText without aliases has less, though a node may take as
	// few as two bytes of it.
	maxCost  = 4 * MaxText
	nodeCost = 6
)

// Parse reads a job from YAML. name is what errors call the text: its file name. The error is an
// [*Error] with the first mistake found.
//
// The text is a list of steps, or a document with the list as run:, which may follow a document with
// a spec. docs/language.md tells all there is:
//
//	run:
//	  - name: build          # step_1, step_2, ... if missing
//	    script: make all
//	    env: {CC: clang}
//	  - name: test
//	    step: ./ci/test
//	    inputs: {binary: "${{ steps.build.exports.BINARY }}"}
//	    if: env.SKIP_TESTS != "yes"
//	    timeout: 10m
func Parse(name string, data []byte) (*pb.Definition, error) {
	t, docs, err := load(name, data, MaxText)
	if err != nil {
		return nil, err
	}
	r := &reader{text: t}
	d, err := r.job(docs)
	if err != nil {
		return nil, err
	}
	return compileJob(d)
}

// ParseCalled is Parse for a job that is given inputs: its spec may require some.
func ParseCalled(name string, data []byte) (*pb.Definition, error) {
	t, docs, err := load(name, data, MaxText)
	if err != nil {
		return nil, err
	}
	return parseCalled(&reader{text: t}, docs)
}

func parseCalled(r *reader, docs []*yaml.Node) (*pb.Definition, error) {
	d, err := r.job(docs)
	if err != nil {
		return nil, err
	}
	def, err := compile(d)
	if err == nil && def.GetType() == pb.DefinitionType_exec {
		def = sequenceOf(def)
	}
	return def, err
}

// ParseStep reads the file of a step from YAML: a document with its spec, and one with what it runs. It
// is like Parse in everything else.
func ParseStep(name string, data []byte) (*pb.Definition, error) {
	t, docs, err := load(name, data, MaxText)
	if err != nil {
		return nil, err
	}
	r := &reader{text: t}
	d, err := r.step(docs)
	if err != nil {
		return nil, err
	}
	return compile(d)
}

func load(name string, data []byte, longest int) (*text, []*yaml.Node, error) {
	t := &text{name: name, data: string(data)}
	if err := t.check(longest); err != nil {
		return nil, nil, err
	}
	docs, err := t.load()
	return t, docs, err
}

// check refuses texts that are no YAML of ours, whatever they say.
func (t *text) check(longest int) error {
	if len(t.data) > longest {
		return t.errorf("the text has more than 1 MiB; move scripts into files")
	}
	for i := 0; i < len(t.data); {
		c, size := utf8.DecodeRuneInString(t.data[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			return semantic(t.errorAtByte(i, "the text is not valid UTF-8"))
		case c < ' ' && c != '\n' && c != '\r' && c != '\t', c == 0x7f:
			return semantic(t.errorAtByte(i,
				"the text holds the control character %U; in a double-quoted text it can be written as an escape", c))
		}
		i += size
	}
	return nil
}

// load returns the documents of the text, at most three of them: two are the most a job has.
func (t *text) load() ([]*yaml.Node, error) {
	loader, err := yaml.NewLoader(strings.NewReader(t.data),
		yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		return nil, t.errorf("%s", err)
	}
	var docs []*yaml.Node
	for len(docs) < 3 {
		doc := new(yaml.Node)
		err := loader.Load(doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, t.syntaxError(err)
		}
		if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
			return nil, t.errorf("the text is not a YAML document")
		}
		docs = append(docs, doc.Content[0])
	}
	return docs, nil
}

func (t *text) syntaxError(err error) error {
	bad, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		return t.errorf("the text is not valid YAML")
	}
	// The context, such as the quote that is never closed, tells more than the place where it showed.
	line, column, message := bad.Mark.Line, bad.Mark.Column, bad.Message
	if bad.ContextMsg != "" {
		message += " " + bad.ContextMsg
	}
	if strings.HasPrefix(bad.Message, "unknown anchor") {
		message = "the alias has no anchor before it" // theirs repeats the name, of any length
	}
	if line <= 0 {
		return t.errorf("not valid YAML: %s", message)
	}
	return semantic(t.errorAt(line, max(column, 1), "not valid YAML: %s", message))
}
