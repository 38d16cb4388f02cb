package lang

import (
	"go.yaml.in/yaml/v4"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Source is a YAML text that contains steps besides other things. A front end loads it with [Load], under the same
// limits as steps, finds the lists of steps in Docs, and compiles them with [FromNode].
type Source struct {
	// Docs are its documents, at most three.
	Docs []*yaml.Node

	text *text
}

// Load loads the YAML text data. Errors call it name. It makes the checks of [Parse] that do not depend on the language
// of steps. The error is an [*Error].
func Load(name string, data []byte) (*Source, error) {
	t, docs, err := load(name, data, MaxText)
	if err != nil {
		return nil, err
	}
	return &Source{Docs: docs, text: t}, nil
}

// Errorf returns an error about n, a node of the source or a copy of one. If n is nil, the error is about the whole
// text.
func (s *Source) Errorf(n *yaml.Node, format string, args ...any) *Error {
	if n == nil {
		return s.text.errorf(format, args...)
	}
	return s.text.errorAt(n.Line, n.Column, format, args...)
}

// FromNode compiles the list of steps n as a job, by the rules of [Parse], and returns warnings as [Vet] does. The
// nodes may be copies, and come from several sources: origin returns the source of a node. The error is an [*Error].
func FromNode(n *yaml.Node, origin func(*yaml.Node) *Source) (*pb.Definition, []*Error, error) {
	r := &reader{text: origin(n).text, origin: origin}
	run := r.run(n)
	if r.err != nil {
		return nil, nil, r.err
	}
	def, err := compileJob(&draftDefinition{at: r.at(n), run: run})
	return def, run.vet(), err
}
