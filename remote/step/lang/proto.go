package lang

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/internal/yamltree"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// FromProto compiles the steps of a request. The rules are those of [Parse]. Errors name the field, as in
// "steps[2].env". The error is an [*Error].
func FromProto(list []*pb.Step) (*pb.Definition, error) {
	run := &draftRun{at: place{path: "steps"}, steps: make([]draft, len(list))}
	if len(list) > MaxSteps {
		return nil, run.at.errorf("%d steps are too many, at most %d are allowed", len(list), MaxSteps)
	}
	var r request
	for i, s := range list {
		run.steps[i] = r.step(s, fmt.Sprintf("steps[%d]", i))
	}
	if r.Err != nil {
		return nil, r.Err
	}
	return compileJob(&draftDefinition{at: run.at, run: run})
}

// request reads the messages of a request. An empty field counts as missing.
type request struct{ yamltree.First }

func (r *request) step(s *pb.Step, path string) draft {
	at := func(name string) place { return place{path: path + "." + name} }
	field := func(name, text string) word { return word{at: at(name), text: text, given: text != ""} }
	d := draft{
		at:        place{path: path},
		name:      field("name", s.GetName()),
		script:    field("script", s.GetScript()),
		when:      field("when", s.GetWhen()),
		condition: field("condition", s.GetCondition()),
		timeout:   r.timeout(s.GetTimeout(), at("timeout")),
		inputsAt:  at("inputs"),
	}
	if s.GetReference() != nil || s.GetDefinition() != nil {
		r.Fail(d.at.errorf("a request cannot have reference or definition; use step, script or exec"))
	}
	given := map[string]bool{"step": s.GetStep() != "", "script": s.GetScript() != "", "exec": s.GetExec() != nil}
	for _, way := range ways {
		if given[way] {
			d.ways = append(d.ways, word{at: at(way), text: way})
		}
	}
	if given["step"] {
		d.ref = &draftReference{at: at("step"), text: field("step", s.GetStep())}
	}
	for _, key := range sortedkeys.Of(s.GetEnv()) {
		d.env = append(d.env, pair{word{at: at("env"), text: key}, word{at: at("env"), text: s.GetEnv()[key]}})
	}
	for _, key := range sortedkeys.Of(s.GetInputs()) {
		v := draftValue{at: at("inputs"), value: s.GetInputs()[key]}
		r.collect(&v, v.value, 0)
		d.inputs = append(d.inputs, namedValue{word{at: v.at, text: key}, v})
	}
	if e := s.GetExec(); e != nil {
		d.exec = r.exec(e, path+".exec")
	}
	return d
}

// timeout returns a duration as text, or an empty word if it is missing.
func (r *request) timeout(d *durationpb.Duration, at place) word {
	if d == nil {
		return word{at: at}
	}
	if d.CheckValid() != nil || d.AsDuration() <= 0 {
		r.Fail(at.errorf("use a duration above 0"))
	}
	return word{at: at, text: timeoutText(d), given: true}
}

// timeoutText returns a duration as texts have it, or "" if it is missing.
func timeoutText(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return strings.ReplaceAll(d.AsDuration().String(), "µ", "u")
}

func (r *request) exec(e *pb.Exec, path string) *draftExec {
	d := &draftExec{
		at:        place{path: path},
		commandAt: place{path: path + ".command"},
		workDir:   word{at: place{path: path + ".work_dir"}, text: e.GetWorkDir(), given: e.GetWorkDir() != ""},
		timeout:   r.timeout(e.GetTimeout(), place{path: path + ".timeout"}),
	}
	for j, arg := range e.GetCommand() {
		d.command = append(d.command, word{at: place{path: fmt.Sprintf("%s.command[%d]", path, j)}, text: arg, given: true})
	}
	return d
}

// collect finds the texts in v, a part of d, with expressions or escapes.
func (r *request) collect(d *draftValue, v *structpb.Value, depth int) {
	if depth > yamltree.MaxDepth {
		r.Fail(d.at.errorf("a value is nested deeper than %d", yamltree.MaxDepth))
		return
	}
	switch k := v.GetKind().(type) {
	case nil:
		r.Fail(d.at.errorf("a value has no kind"))
	case *structpb.Value_StringValue:
		if hasExpression(k.StringValue) {
			d.texts = append(d.texts, word{at: d.at, text: k.StringValue, given: true})
		}
	case *structpb.Value_ListValue:
		for _, item := range k.ListValue.GetValues() {
			r.collect(d, item, depth+1)
		}
	case *structpb.Value_StructValue:
		for _, key := range sortedkeys.Of(k.StructValue.GetFields()) {
			r.collect(d, k.StructValue.GetFields()[key], depth+1)
		}
	}
}

// Script returns a job with one step, named script, which runs text. ${{ has no meaning in the text. The error is an
// [*Error] that calls the text field.
func Script(field, text string) (*pb.Definition, error) {
	at, text := place{path: field}, withoutBOM(text)
	switch {
	case strings.TrimSpace(text) == "":
		return nil, at.errorf("the script is empty; write the commands for the shell")
	case strings.IndexByte(text, 0) >= 0:
		return nil, at.errorf("the script holds a NUL byte, which no shell can read")
	}
	return &pb.Definition{
		Type:    pb.DefinitionType_steps,
		Dialect: pb.Definition_v1,
		Spec:    &pb.Spec{Spec: &pb.Spec_Content{}},
		Steps: []*pb.Step{{
			Name:      "script",
			When:      OnSuccess,
			Step:      scriptURL,
			Reference: scriptReference(),
			Inputs:    map[string]*structpb.Value{inputScript: structpb.NewStringValue(Escape(text))},
		}},
	}, nil
}
