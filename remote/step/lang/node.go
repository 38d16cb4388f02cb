package lang

import (
	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Source is a YAML text that contains steps besides other things. A front end loads it with [Load], under the same
// limits as steps, finds the lists of steps in Docs, and compiles them with [FromNode].
type Source = yamltree.Text

// Load loads the YAML text data. Errors call it name. It makes the checks of [Parse] that do not depend on the language
// of steps. The Source is never nil. The error is an [*Error].
func Load(name string, data []byte) (*Source, error) { return yamltree.Load(name, data, MaxText) }

// FromNode compiles the list of steps n as a job, by the rules of [Parse], and returns warnings as [Vet] does. The
// nodes may be copies, and come from several sources: origin returns the source of a node. The error is an [*Error].
func FromNode(n *yaml.Node, origin func(*yaml.Node) *Source) (*pb.Definition, []*Error, error) {
	d, err := fromNode(n, origin)
	if err != nil {
		return nil, nil, err
	}
	def, err := compileJob(d)
	return def, d.run.vet(), err
}

func fromNode(n *yaml.Node, origin func(*yaml.Node) *Source) (*draftDefinition, error) {
	r := newReader(origin(n))
	r.Origin = origin
	return &draftDefinition{at: r.at(n), run: r.run(n)}, r.Err
}
