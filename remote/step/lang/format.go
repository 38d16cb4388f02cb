package lang

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Format returns a text that ParseKept compiles to def. If there is none, def is not what a text compiles to, and the
// error says so.
func Format(def *pb.Definition) (string, error) {
	var text strings.Builder
	for i, doc := range documentsOf(def) {
		data, err := json.Marshal(doc)
		if err != nil {
			return "", fmt.Errorf("format definition: %w", err)
		}
		if i > 0 {
			text.WriteString("\n---\n")
		}
		for _, c := range string(data) {
			if c >= 0x7f && c < 0xa0 || c == 0xfeff || c == 0xfffe || c == 0xffff { // JSON has these as they are, YAML not
				fmt.Fprintf(&text, `\u%04x`, c)
				continue
			}
			text.WriteRune(c)
		}
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

// maxKept is the longest text of ParseKept, in bytes: the memory to read a text is up to 150 times its length.
const maxKept = 16 * MaxText

// ParseKept is ParseCalled for a text that was compiled before or comes from Format: it may be longer than MaxText, up
// to 16 MiB.
func ParseKept(name, text string) (*pb.Definition, error) {
	t, docs, err := load(name, []byte(text), maxKept)
	if err != nil {
		return nil, err
	}
	r := &reader{text: t, cost: -maxCost / MaxText * len(text)}
	d, err := r.job(docs)
	if err != nil {
		return nil, err
	}
	return compileSequence(d)
}

// members is a mapping. Its zero members are left out.
type members map[string]any

func (o members) set(key string, value any) {
	switch v := value.(type) {
	case string:
		if v == "" {
			return
		}
	case members:
		if len(v) == 0 {
			return
		}
	case bool:
		if !v {
			return
		}
	case []string:
		if len(v) == 0 {
			return
		}
	}
	o[key] = value
}

// documentsOf returns the spec of def, and what it runs.
func documentsOf(def *pb.Definition) [2]members {
	spec := specOf(def.GetSpec().GetSpec())
	body := members{}
	if inner := lone(def); inner != nil { // a command that was made a list of one
		def = inner
	} else {
		body.set("outputs", valuesOf(def.GetOutputs()))
		body.set("delegate", def.GetDelegate())
	}
	body.set("env", envOf(def.GetEnv()))
	steps := "run"
	if def.GetDialect() == pb.Definition_v0 {
		steps = "steps"
		body["type"] = def.GetType().String()
	}
	if def.GetType() == pb.DefinitionType_exec {
		body["exec"] = commandOf(def.GetExec())
	} else {
		body[steps] = stepsOf(def.GetSteps())
	}
	return [2]members{{"spec": spec}, body}
}

// lone returns the command that sequenceOf made def of, or nil.
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
	o.set("timeout", timeoutOf(s.GetTimeout()))
	o.set("env", envOf(s.GetEnv()))
	switch def := s.GetDefinition(); {
	case def.GetType() == pb.DefinitionType_exec:
		o["exec"] = commandOf(def.GetExec())
	case def != nil:
		o["run"] = stepsOf(def.GetSteps())
	case isShortScript(s):
		o["script"] = inputs[inputScript]
		delete(inputs, inputScript)
	case s.GetStep() != "":
		o["step"] = s.GetStep()
	case s.GetReference().GetProtocol() == pb.Reference_action:
		o["action"] = s.GetReference().GetRepository() + "@" + s.GetReference().GetRev()
	default:
		o["step"] = partsOf(s.GetReference())
	}
	o.set("inputs", inputs)
	return o
}

// isShortScript reports whether s can be the short form of a call of the script step. The long form may hold the same,
// but its script cannot use the files of the step.
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
	form, asWritten := ref.GetProtocol(), escape
	if form == pb.Reference_dynamic {
		form, asWritten = ref.GetForm(), func(template string) string { return template }
	}
	o := members{}
	for key, part := range map[string]string{
		"url": ref.GetUrl(), "rev": ref.GetRev(), "sha256": strings.TrimPrefix(ref.GetDigest(), digestPrefix),
		"dir": ref.GetPath(), "file": ref.GetFile(), "registry": ref.GetRegistry(), "repository": ref.GetRepository(),
		"tag": ref.GetTag(),
	} {
		o.set(key, asWritten(part))
	}
	return members{form.String(): o}
}

func commandOf(e *pb.Exec) members {
	o := members{"command": slices.Concat([]string{}, e.GetCommand())}
	o.set("work_dir", e.GetWorkDir())
	o.set("timeout", timeoutOf(e.GetTimeout()))
	return o
}

func timeoutOf(t *durationpb.Duration) string {
	if t == nil {
		return ""
	}
	return timeoutText(t)
}

func envOf(env map[string]string) members {
	o := members{}
	for name, value := range env {
		o[name] = value
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

func specOf(content *pb.Spec_Content) members {
	spec, inputs, outputs := members{}, members{}, members{}
	for name, in := range content.GetInputs() {
		o := paramOf(in.GetType(), in.GetDefault(), in.GetDescription(), in.GetSensitive())
		o.set("options", in.GetOptions())
		o.set("match", in.GetMatch())
		inputs[name] = o
	}
	for name, out := range content.GetOutputs() {
		outputs[name] = paramOf(out.GetType(), out.GetDefault(), out.GetDescription(), out.GetSensitive())
	}
	spec.set("inputs", inputs)
	spec.set("outputs", outputs)
	if content.GetDelegate() {
		spec["outputs"] = delegateWord
	}
	if req := content.GetRequests(); req != nil {
		o := members{}
		o.set("env", req.GetEnv())
		o.set("vars", req.GetVars())
		spec["requests"] = o
	}
	return spec
}

func paramOf(kind pb.Spec_InputType, preset *structpb.Value, description string, sensitive bool) members {
	o := members{}
	for _, word := range slices.Sorted(maps.Keys(types)) {
		if types[word] == kind {
			o["type"] = word
		}
	}
	if preset != nil {
		o["default"] = escaped(preset.AsInterface())
	}
	o.set("description", description)
	o.set("sensitive", sensitive)
	return o
}

// escaped returns v with templates that stand for its texts: the inverse of unescape.
func escaped(v any) any {
	switch v := v.(type) {
	case string:
		return escape(v)
	case []any:
		for i := range v {
			v[i] = escaped(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = escaped(v[key])
		}
	}
	return v
}
