package lang

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// types are the names of types in all versions of the language.
var types = map[string]pb.Spec_InputType{
	"string":  pb.Spec_string,
	"number":  pb.Spec_number,
	"boolean": pb.Spec_bool,
	"struct":  pb.Spec_struct,
	"array":   pb.Spec_list,
	"bool":    pb.Spec_bool,
	"object":  pb.Spec_struct,
	"list":    pb.Spec_list,
}

const typeList = "string, number, boolean, struct, array"

func (c *compiler) spec(d *draftSpec) *pb.Spec {
	content := &pb.Spec_Content{Delegate: d.delegate.given}
	for _, p := range d.inputs {
		if content.Inputs == nil {
			content.Inputs = map[string]*pb.Spec_Input{}
		}
		content.Inputs[p.name.text] = c.input(&p)
	}
	for _, p := range d.outputs {
		if content.Outputs == nil {
			content.Outputs = map[string]*pb.Spec_Output{}
		}
		kind, preset := c.param(&p, "output")
		content.Outputs[p.name.text] = &pb.Spec_Output{
			Type: kind, Default: preset, Description: p.description.text, Sensitive: p.sensitive,
		}
	}
	if d.requests != nil {
		content.Requests = &pb.Spec_Requests{Env: c.names(d.requests.env), Vars: c.names(d.requests.vars)}
	}
	return &pb.Spec{Spec: content}
}

// names compiles names of variables.
func (c *compiler) names(words []word) []string {
	for _, w := range words {
		if !isName(w.text) {
			c.Fail(w.at.errorf("%s", badVariable(w.text)))
		}
	}
	return texts(words)
}

func texts(words []word) []string {
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = w.text
	}
	return all
}

func (c *compiler) input(p *draftParam) *pb.Spec_Input {
	kind, preset := c.param(p, "input")
	in := &pb.Spec_Input{
		Type: kind, Default: preset, Description: p.description.text, Sensitive: p.sensitive, Match: p.match.text,
		Options: texts(p.options),
	}
	c.afterwards(func() error { return p.checkInput(in, &c.matched) })
	return in
}

// param compiles the type and the default of an input or an output. label is "input" or "output".
func (c *compiler) param(p *draftParam, label string) (kind pb.Spec_InputType, preset *structpb.Value) {
	c.Fail(checkName(p.name, "name of the "+label))
	kind, known := types[p.kind.text]
	if p.kind.given && !known {
		c.Fail(p.kind.at.errorf("the %s %s has an unknown type%s%s", label, p.label(), Quote(p.kind.text),
			Suggest(p.kind.text, strings.Split(typeList, ", "), "; it is one of "+typeList)))
	}
	if p.preset == nil {
		return kind, nil
	}
	if why := mistyped(kind, kindOf(p.preset.value)); why != "" {
		c.Fail(p.preset.at.errorf("the default of the %s %s is %s", label, p.label(), why))
	}
	for _, w := range p.preset.texts {
		if _, literal := Literal(w.text); !literal {
			c.Fail(w.at.errorf("the default of the %s %s has an expression, which a spec cannot have; for the "+
				"text itself write %s", label, p.label(), exprEscaped))
		}
	}
	preset, _ = unescape(p.preset.value)
	return kind, preset
}

// unescape returns v with the escapes in its texts resolved. It returns false if v has expressions.
func unescape(v *structpb.Value) (*structpb.Value, bool) {
	literal := true
	v = mapTexts(v, func(template string) string {
		text, ok := Literal(template)
		literal = literal && ok
		return text
	})
	return v, literal
}

// mapTexts returns v with change applied to each text in it.
func mapTexts(v *structpb.Value, change func(string) string) *structpb.Value {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return structpb.NewStringValue(change(k.StringValue))
	case *structpb.Value_ListValue:
		items := make([]*structpb.Value, len(k.ListValue.GetValues()))
		for i, v := range k.ListValue.GetValues() {
			items[i] = mapTexts(v, change)
		}
		return structpb.NewListValue(&structpb.ListValue{Values: items})
	case *structpb.Value_StructValue:
		fields := make(map[string]*structpb.Value, len(k.StructValue.GetFields()))
		for key, v := range k.StructValue.GetFields() {
			fields[key] = mapTexts(v, change)
		}
		return structpb.NewStructValue(&structpb.Struct{Fields: fields})
	default:
		return v
	}
}

// checkInput checks the restrictions of an input, and its default against them. spent is the sum for maxMatch.
func (p *draftParam) checkInput(in *pb.Spec_Input, spent *int) error {
	preset := in.GetDefault()
	if p.match.given {
		if _, err := compileMatch(in.GetMatch(), 0, spent); err != nil {
			return p.match.at.errorf("match of the input %s %v", p.label(), err)
		}
	}
	if preset == nil {
		return nil
	}
	v, err := expr.New(preset)
	if len(in.GetOptions()) > 0 && !slices.Contains(in.GetOptions(), v.Text()) {
		return p.preset.at.errorf("the default of the input %s is%s, and not one of its options", p.label(),
			Quote(v.Text()))
	}
	if err == nil {
		_, err = accept(in, v, spent)
	}
	if err != nil {
		return p.preset.at.errorf("the default of the input %s: %v", p.label(), err)
	}
	return nil
}
