package lang

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// FromProto compiles the steps of a request. The rules are those of [Parse]; errors name the field,
// as in "steps[2].env". The error is an [*Error].
func FromProto(list []*pb.Step) (*pb.Definition, error) {
	run := &draftRun{at: place{path: "steps"}, steps: make([]draft, len(list))}
	if len(list) > MaxSteps {
		return nil, run.at.errorf("%d steps are too many, at most %d are allowed", len(list), MaxSteps)
	}
	for i, s := range list {
		d, err := draftOf(s, fmt.Sprintf("steps[%d]", i))
		if err != nil {
			return nil, err
		}
		run.steps[i] = d
	}
	return compileJob(&draftDefinition{at: run.at, run: run})
}

// draftOf returns the draft of a step of a request. In a request an empty field is not given.
func draftOf(s *pb.Step, path string) (draft, error) {
	at := func(name string) place { return place{path: path + "." + name} }
	field := func(name, text string) word { return word{at: at(name), text: text, given: text != ""} }
	d := draft{
		at:        place{path: path},
		name:      field("name", s.GetName()),
		script:    field("script", s.GetScript()),
		when:      field("when", s.GetWhen()),
		condition: field("condition", s.GetCondition()),
		inputsAt:  at("inputs"),
	}
	if s.GetReference() != nil || s.GetDefinition() != nil {
		return d, d.at.errorf("a request cannot have reference or definition; use step, script or exec")
	}
	if t := s.GetTimeout(); t != nil {
		if t.CheckValid() != nil || t.AsDuration() <= 0 {
			return d, at("timeout").errorf("use a duration above 0")
		}
		d.timeout = field("timeout", timeoutText(t))
	}
	if s.GetStep() != "" {
		d.ways = append(d.ways, word{at: at("step"), text: "step"})
		d.ref = &draftReference{at: at("step"), text: field("step", s.GetStep())}
	}
	if s.GetScript() != "" {
		d.ways = append(d.ways, word{at: at("script"), text: "script"})
	}
	for _, key := range sortedKeys(s.GetEnv()) {
		d.env = append(d.env, pair{word{at: at("env"), text: key}, word{at: at("env"), text: s.GetEnv()[key]}})
	}
	for _, key := range sortedKeys(s.GetInputs()) {
		v, err := valueOf(s.GetInputs()[key], at("inputs"))
		if err != nil {
			return d, err
		}
		d.inputs = append(d.inputs, namedValue{word{at: at("inputs"), text: key}, v})
	}
	if e := s.GetExec(); e != nil {
		d.ways = append(d.ways, word{at: at("exec"), text: "exec"})
		var err error
		if d.exec, err = execOf(e, path+".exec"); err != nil {
			return d, err
		}
	}
	return d, nil
}

// timeoutText returns a duration as it is written in a text.
func timeoutText(d *durationpb.Duration) string {
	return strings.ReplaceAll(d.AsDuration().String(), "µ", "u")
}

func execOf(e *pb.Exec, path string) (*draftExec, error) {
	d := &draftExec{
		at:        place{path: path},
		commandAt: place{path: path + ".command"},
		workDir:   word{at: place{path: path + ".work_dir"}, text: e.GetWorkDir(), given: e.GetWorkDir() != ""},
	}
	if t := e.GetTimeout(); t != nil {
		at := place{path: path + ".timeout"}
		if t.CheckValid() != nil || t.AsDuration() <= 0 {
			return nil, at.errorf("use a duration above 0")
		}
		d.timeout = word{at: at, text: timeoutText(t), given: true}
	}
	for j, arg := range e.GetCommand() {
		d.command = append(d.command, word{at: place{path: fmt.Sprintf("%s.command[%d]", path, j)}, text: arg, given: true})
	}
	return d, nil
}

// valueOf returns the draft of a value of a request.
func valueOf(v *structpb.Value, at place) (draftValue, error) {
	d := draftValue{at: at, value: v}
	err := d.collect(v, 0)
	return d, err
}

// collect finds the texts in v with expressions or escapes.
func (d *draftValue) collect(v *structpb.Value, depth int) error {
	if depth > maxDepth {
		return d.at.errorf("a value is nested deeper than %d", maxDepth)
	}
	switch k := v.GetKind().(type) {
	case nil:
		return d.at.errorf("a value has no kind")
	case *structpb.Value_StringValue:
		if hasExpression(k.StringValue) {
			d.texts = append(d.texts, word{at: d.at, text: k.StringValue, given: true})
		}
	case *structpb.Value_ListValue:
		for _, item := range k.ListValue.GetValues() {
			if err := d.collect(item, depth+1); err != nil {
				return err
			}
		}
	case *structpb.Value_StructValue:
		for _, item := range k.StructValue.GetFields() {
			if err := d.collect(item, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// Script returns a job of one step named script, which runs text. ${{ has no meaning in the text. The error is an
// [*Error] and calls the text field.
func Script(field, text string) (*pb.Definition, error) {
	at := place{path: field}
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
			Inputs:    map[string]*structpb.Value{inputScript: structpb.NewStringValue(escape(text))},
		}},
	}, nil
}
