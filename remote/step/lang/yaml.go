package lang

import (
	"cmp"

	"go.yaml.in/yaml/v4"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// maxCost bounds the reading of a text, aliases included. A text of MaxText without aliases is always within it.
const maxCost = 4 * MaxText

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
		warnings = r.unknowns
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
	t, err := Load(name, data)
	var d *draftDefinition
	if err == nil {
		r := newReader(t)
		d = read(r, t.Docs)
		err = r.Err
	}
	if err != nil {
		return nil, cmp.Or(otherFile(t), err)
	}
	return d, nil
}
