// Package yamltree reads texts in YAML. [Load] parses a text within bounds. A [Reader] reads its nodes by the [Rules]
// of a language, resolves aliases, and keeps the first mistake. All languages report a mistake in the same words.
//
// The packages of the languages know the keys; this package knows none.
package yamltree

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

const (
	// MaxDepth bounds the nesting of a text, and that of aliases.
	MaxDepth = 64
	// maxDocs bounds the documents of a text. A step has two; the next one is there for an error about it.
	maxDocs = 3
)

// Error is a mistake in a text or in a request, with its place and, if possible, a remedy. It quotes keys and names,
// never values that may be secret.
type Error struct {
	// Where is the place: "file:line:column" in a text, "file" for the whole text, "steps[2].env" in a request.
	Where string
	// Line and Column count from 1, in a text; the column counts characters. Else they are 0.
	Line, Column int
	// Message is the mistake, without the place.
	Message string
}

func (e *Error) Error() string { return e.Where + ": " + e.Message }

// First keeps the first mistake.
type First struct {
	// Err is the mistake, or nil.
	Err error
}

// Fail keeps err, if it is the first one. err may be nil.
func (f *First) Fail(err error) {
	if f.Err == nil {
		f.Err = err
	}
}

// Text is a text in YAML.
type Text struct {
	// Name is its name in errors.
	Name string
	// Data is the text.
	Data string
	// Docs are the values of its documents, at most three.
	Docs []*yaml.Node
}

// Load loads a text of at most size bytes. Errors call it name. The Text is never nil, so that the caller can find out
// what a text with a mistake is. The error is an [*Error].
func Load(name string, data []byte, size int) (*Text, error) {
	t := &Text{Name: name, Data: string(data)}
	if err := t.check(size); err != nil {
		return t, err
	}
	if err := t.load(); err != nil {
		return t, err
	}
	return t, nil
}

// check refuses texts that are too long or have invalid bytes.
func (t *Text) check(size int) *Error {
	if len(t.Data) > size {
		return t.Errorf(nil, "the text has more than %d MiB; move scripts into files", size>>20)
	}
	for i := 0; i < len(t.Data); {
		c, size := utf8.DecodeRuneInString(t.Data[i:])
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

// load parses the documents. After a mistake it has those before it. The library refuses a "-" before a comma or
// bracket, as in {a: -, b: c}, which libyaml reads as a text: it then parses the text with a stand-in for each.
func (t *Text) load() *Error {
	err := t.parse(t.Data)
	if err == nil || !strings.Contains(err.Message, "cannot start any token") || strings.Contains(t.Data, standIn) {
		return err
	}
	t.Docs = nil
	err = t.parse(lastDashes.Replace(t.Data))
	for _, doc := range t.Docs {
		restoreDashes(doc)
	}
	return err
}

// standIn is a character for private use, as wide as the "-" that it stands for.
const standIn = "\ue000"

var lastDashes = strings.NewReplacer("-,", standIn+",", "-]", standIn+"]", "-}", standIn+"}")

func restoreDashes(n *yaml.Node) {
	n.Value, n.Anchor = strings.ReplaceAll(n.Value, standIn, "-"), strings.ReplaceAll(n.Anchor, standIn, "-")
	for _, child := range n.Content {
		restoreDashes(child)
	}
}

// parse parses the documents of data, which stands for the text.
func (t *Text) parse(data string) *Error {
	loader, err := yaml.NewLoader(strings.NewReader(data),
		yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(MaxDepth))))
	if err != nil {
		return t.Errorf(nil, "%s", err)
	}
	for len(t.Docs) < maxDocs {
		doc := new(yaml.Node)
		err := loader.Load(doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return t.syntaxError(err)
		}
		if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
			return t.Errorf(nil, "the text is not a YAML document")
		}
		t.Docs = append(t.Docs, doc.Content[0])
	}
	return nil
}

func (t *Text) syntaxError(err error) *Error {
	bad, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		return t.Errorf(nil, "not valid YAML")
	}
	// The context, such as an unclosed quote, says more than the place of the error.
	message := bad.Message
	if bad.ContextMsg != "" {
		message += " " + bad.ContextMsg
	}
	if strings.HasPrefix(bad.Message, "unknown anchor") {
		message = "the alias has no anchor before it" // the library repeats the name, which may be long
	}
	if bad.Mark.Line <= 0 {
		return t.Errorf(nil, "not valid YAML: %s", message)
	}
	return t.ErrorAt(bad.Mark.Line, max(bad.Mark.Column, 1), "not valid YAML: %s", message)
}

// Errorf returns an error about n, a node of the text or a copy of one. If n is nil, the error is about the whole text.
func (t *Text) Errorf(n *yaml.Node, format string, args ...any) *Error {
	if n == nil {
		return &Error{Where: t.Name, Message: fmt.Sprintf(format, args...)}
	}
	return t.ErrorAt(n.Line, n.Column, format, args...)
}

// ErrorAt returns an error about a place of the text.
func (t *Text) ErrorAt(line, column int, format string, args ...any) *Error {
	return &Error{
		Where:   fmt.Sprintf("%s:%d:%d", t.Name, line, column),
		Line:    line,
		Column:  column,
		Message: fmt.Sprintf(format, args...),
	}
}

// errorAtByte returns an error about the byte at offset.
func (t *Text) errorAtByte(offset int, format string, args ...any) *Error {
	before := t.Data[:offset]
	start := strings.LastIndexByte(before, '\n') + 1
	return t.ErrorAt(1+strings.Count(before, "\n"), 1+utf8.RuneCountInString(before[start:]), format, args...)
}

// Line returns line number n, which counts from 1, or "".
func (t *Text) Line(n int) string {
	rest := t.Data
	for ; n > 1; n-- {
		_, after, found := strings.Cut(rest, "\n")
		if !found {
			return ""
		}
		rest = after
	}
	line, _, _ := strings.Cut(rest, "\n")
	return line
}
