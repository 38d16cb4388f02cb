package lang

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/internal/yamltree"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Format returns a text that ParseKept compiles to def. The error says that no text compiles to def.
func Format(def *pb.Definition) (string, error) {
	var text strings.Builder
	for i, doc := range documentsOf(def) {
		line, err := yamltree.Format(doc)
		if err != nil {
			return "", fmt.Errorf("format definition: %w", err)
		}
		if i > 0 {
			text.WriteString("\n---\n")
		}
		text.WriteString(line)
	}
	text.WriteByte('\n')
	again, err := ParseKept("definition", text.String())
	if err != nil {
		return "", err
	}
	if !proto.Equal(again, def) {
		return "", errors.New("the definition is not one that a text compiles to; was it changed?")
	}
	return text.String(), nil
}

// maxKept bounds a text of ParseKept, in bytes: reading a text needs up to 150 times its length as memory.
const maxKept = 16 * MaxText

// ParseKept is ParseCalled for a text that was compiled before or comes from Format. It may be longer than MaxText, up
// to 16 MiB.
func ParseKept(name, text string) (*pb.Definition, error) {
	t, err := yamltree.Load(name, []byte(text), maxKept)
	if err != nil {
		return nil, err
	}
	r := newReader(t)
	r.MaxCost += maxCost / MaxText * len(text)
	d := r.job(t.Docs)
	if r.Err != nil {
		return nil, r.Err
	}
	return compileSequence(d)
}

// members is a mapping. Its zero members are left out.
type members map[string]any

func (o members) set(key string, value any) {
	if v := reflect.ValueOf(value); v.IsZero() || v.Kind() == reflect.Map && v.Len() == 0 {
		return
	}
	o[key] = value
}

// documentsOf returns the two documents of def: its spec, and its command or steps.
func documentsOf(def *pb.Definition) [2]members {
	content := proto.CloneOf(def.GetSpec().GetSpec())
	for _, in := range content.GetInputs() {
		in.Default = mapTexts(in.GetDefault(), Escape)
	}
	for _, out := range content.GetOutputs() {
		out.Default = mapTexts(out.GetDefault(), Escape)
	}
	spec := membersOf(content)
	if content.GetDelegate() {
		delete(spec, "delegate")
		spec["outputs"] = delegateWord
	}
	body := members{}
	if inner := lone(def); inner != nil { // a command that became a list with one step
		def = inner
	} else {
		body.set("outputs", valuesOf(def.GetOutputs()))
		body.set("delegate", def.GetDelegate())
	}
	body.set("env", def.GetEnv())
	steps := "run"
	if def.GetDialect() == pb.Definition_v0 {
		steps = "steps"
		body["type"] = def.GetType().String()
	}
	if def.GetType() == pb.DefinitionType_exec {
		body["exec"] = membersOf(def.GetExec())
	} else {
		body[steps] = stepsOf(def.GetSteps())
	}
	return [2]members{{"spec": spec}, body}
}

// lone returns the command from which sequenceOf made def, or nil.
func lone(def *pb.Definition) *pb.Definition {
	if len(def.GetSteps()) != 1 {
		return nil
	}
	inner := def.GetSteps()[0].GetDefinition()
	if inner.GetType() != pb.DefinitionType_exec || inner.GetSpec() == nil {
		return nil
	}
	return inner
}

func stepsOf(list []*pb.Step) []members {
	steps := make([]members, len(list))
	for i, s := range list {
		steps[i] = stepOf(s)
	}
	return steps
}

func stepOf(s *pb.Step) members {
	o, inputs := members{}, valuesOf(s.GetInputs())
	o.set("name", s.GetName())
	o.set("when", s.GetWhen())
	o.set("if", s.GetCondition())
	o.set("timeout", timeoutText(s.GetTimeout()))
	o.set("env", s.GetEnv())
	switch def := s.GetDefinition(); {
	case def.GetType() == pb.DefinitionType_exec:
		o["exec"] = membersOf(def.GetExec())
	case def != nil:
		o["run"] = stepsOf(def.GetSteps())
	case isShortScript(s):
		o["script"] = inputs[inputScript]
		delete(inputs, inputScript)
	case s.GetStep() != "":
		o["step"] = s.GetStep()
	case s.GetReference().GetProtocol() == pb.Reference_action:
		o["action"] = ActionText(s.GetReference())
	case s.GetReference() != nil:
		o["step"] = partsOf(s.GetReference())
	}
	o.set("inputs", inputs)
	return o
}

// isShortScript reports whether s can be written as the short form of a call of the script step. The long form can have
// the same values, but its script cannot use the files of the step.
func isShortScript(s *pb.Step) bool {
	if s.GetStep() != scriptURL || strings.TrimSpace(s.GetInputs()[inputScript].GetStringValue()) == "" {
		return false
	}
	for name := range s.GetInputs() {
		if name != inputScript && name != inputShell {
			return false
		}
	}
	return true
}

func partsOf(ref *pb.Reference) members {
	form, asWritten := ref.GetProtocol(), Escape
	if form == pb.Reference_dynamic {
		form, asWritten = ref.GetForm(), func(template string) string { return template }
	}
	o := members{}
	for key, part := range longParts(ref) {
		o.set(key, asWritten(writtenPart(key, *part)))
	}
	return members{form.String(): o}
}

// membersOf returns the fields of m that are set. Their names are those in texts.
func membersOf(m proto.Message) members {
	o := members{}
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil {
		return members{} // no compiled definition has this; Format notices it
	}
	return o
}

func valuesOf(values map[string]*structpb.Value) members {
	o := members{}
	for name, v := range values {
		o[name] = v.AsInterface()
	}
	return o
}
