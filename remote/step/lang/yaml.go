package lang

import (
	"cmp"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	// maxDepth bounds the nesting. A job needs six levels.
	maxDepth = 64
	// maxCost bounds the reading of a text. The cost is the bytes of values, and nodeCost for each node, because even
	// an empty node takes 100 bytes of memory. Each use of an alias counts. A text of MaxText without aliases is always
	// within it, although a node may take only two bytes of the text.
	maxCost  = 4 * MaxText
	nodeCost = 6
)

// Parse reads a job from YAML. Errors call the text name: its file name. The error is an [*Error] with the first
// mistake.
//
// The text is a list of steps, or a document with the list as run:, which may follow a document with a spec.
// docs/language.md describes it in full:
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
	return parse(name, data, (*reader).job, compileJob)
}

// ParseCalled is Parse for a job with inputs: its spec may have required inputs.
func ParseCalled(name string, data []byte) (*pb.Definition, error) {
	return parse(name, data, (*reader).job, compileSequence)
}

// ParseStep reads the file of a step from YAML: a document with its spec, and a document with its command or steps. In
// everything else it is like Parse.
func ParseStep(name string, data []byte) (*pb.Definition, error) {
	return parse(name, data, (*reader).step, compileStep)
}

// ParseTolerant is Parse for a text that may use a newer version of the language: an unknown key is ignored, with a
// warning. The parts of references are still read strictly. The error is that of Parse.
func ParseTolerant(name string, data []byte) (def *pb.Definition, warnings []*Error, err error) {
	return parseTolerant(name, data, (*reader).job, compileJob)
}

// ParseStepTolerant is ParseStep with the rules of ParseTolerant.
func ParseStepTolerant(name string, data []byte) (def *pb.Definition, warnings []*Error, err error) {
	return parseTolerant(name, data, (*reader).step, compileStep)
}

func parseTolerant(name string, data []byte, read func(*reader, []*yaml.Node) *draftDefinition,
	compile func(*draftDefinition) (*pb.Definition, error),
) (def *pb.Definition, warnings []*Error, err error) {
	d, err := parseDraft(name, data, func(r *reader, docs []*yaml.Node) *draftDefinition {
		r.tolerant = true
		d := read(r, docs)
		warnings = r.unknown
		return d
	})
	if err == nil {
		def, err = compile(d)
	}
	if err != nil && len(warnings) > 0 { // the mistake may be in an ignored key
		def, err = parse(name, data, read, compile)
	}
	return def, warnings, err
}

func parse(name string, data []byte, read func(*reader, []*yaml.Node) *draftDefinition,
	compile func(*draftDefinition) (*pb.Definition, error),
) (*pb.Definition, error) {
	d, err := parseDraft(name, data, read)
	if err != nil {
		return nil, err
	}
	return compile(d)
}

func parseDraft(name string, data []byte, read func(*reader, []*yaml.Node) *draftDefinition) (*draftDefinition, error) {
	t, docs, err := load(name, data, MaxText)
	r := &reader{text: t}
	var d *draftDefinition
	if err == nil {
		d = read(r, docs)
		err = r.err
	}
	if err != nil {
		return nil, cmp.Or(t.otherFile(docs), err)
	}
	return d, nil
}

func load(name string, data []byte, longest int) (*text, []*yaml.Node, error) {
	t := &text{name: name, data: string(data)}
	if err := t.check(longest); err != nil {
		return t, nil, err
	}
	docs, err := t.load()
	return t, docs, err
}

// check refuses texts that are too long or have invalid bytes.
func (t *text) check(longest int) error {
	if len(t.data) > longest {
		return t.errorf("the text has more than %d MiB; move scripts into files", longest>>20)
	}
	for i := 0; i < len(t.data); {
		c, size := utf8.DecodeRuneInString(t.data[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			return t.errorAtByte(i, "the text is not valid UTF-8")
		case c < ' ' && c != '\n' && c != '\r' && c != '\t', c == 0x7f:
			return t.errorAtByte(i,
				"the text holds the control character %U; in a double-quoted text it can be written as an escape", c)
		}
		i += size
	}
	return nil
}

// load returns the documents of the text, at most three. A job has at most two.
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
	// The context, such as an unclosed quote, says more than the place of the error.
	line, column, message := bad.Mark.Line, bad.Mark.Column, bad.Message
	if bad.ContextMsg != "" {
		message += " " + bad.ContextMsg
	}
	if strings.HasPrefix(bad.Message, "unknown anchor") {
		message = "the alias has no anchor before it" // the library repeats the name, which may be long
	}
	if line <= 0 {
		return t.errorf("not valid YAML: %s", message)
	}
	return t.errorAt(line, max(column, 1), "not valid YAML: %s", message)
}
