package lang

import (
	"go.yaml.in/yaml/v4"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Source is a YAML text in which steps stand among other things. It serves front ends that read the rest
// themselves: they load it here, by the same limits, find the lists of steps in its Docs, and have those
// read by FromNode.
type Source struct {
	// Docs are its documents, three of them at most.
	Docs []*yaml.Node

	text *text
}

// Load loads the YAML text data, which errors call name. What it checks is what [Parse] checks before it
// looks at what the text says. The error is an [*Error].
func Load(name string, data []byte) (*Source, error) {
	t, docs, err := load(name, data, MaxText)
	if err != nil {
		return nil, err
	}
	return &Source{Docs: docs, text: t}, nil
}

// Errorf is an error about what stands at n, which is a node of the source or a copy of one. If n is nil
// it is about the text as a whole.
func (s *Source) Errorf(n *yaml.Node, format string, args ...any) *Error {
	if n == nil {
		return s.text.errorf(format, args...)
	}
	return s.text.errorAt(n.Line, n.Column, format, args...)
}

// FromNode compiles the list of steps n as a job, by the rules of [Parse]. Its nodes may be copies, and come
// from several sources: origin tells of each which. It may be called with any node of n. The error is an
// [*Error].
func FromNode(n *yaml.Node, origin func(*yaml.Node) *Source) (*pb.Definition, error) {
	r := &reader{text: origin(n).text, origin: origin}
	run, err := r.run(n)
	if err != nil {
		return nil, err
	}
	return compileJob(&draftDefinition{at: r.at(n), run: run})
}

// Quote returns a foreign key or name for use in an error: a space and the word in quotes, or nothing if it
// is none that should be repeated.
func Quote(word string) string { return quote(word) }

// Nearest returns the word of words that a foreign one was most likely meant to be, or "".
func Nearest(word string, words []string) string { return nearest(word, words) }

// Escape returns a template that stands for text, whatever that holds.
func Escape(text string) string { return escape(text) }
