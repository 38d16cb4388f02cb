package lang

import (
	"regexp"
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

func (c *compiler) spec(d *draftSpec, v0 bool) (*pb.Spec, error) {
	content := &pb.Spec_Content{}
	if d == nil {
		return &pb.Spec{Spec: content}, nil
	}
	for _, p := range d.inputs {
		in, err := c.input(&p)
		if err != nil {
			return nil, err
		}
		if content.Inputs == nil {
			content.Inputs = map[string]*pb.Spec_Input{}
		}
		content.Inputs[p.name.text] = in
	}
	for _, p := range d.outputs {
		out, err := c.output(&p)
		if err != nil {
			return nil, err
		}
		if content.Outputs == nil {
			content.Outputs = map[string]*pb.Spec_Output{}
		}
		content.Outputs[p.name.text] = out
	}
	content.Delegate = d.delegate.given
	if d.requests != nil {
		var err error
		if content.Requests, err = compileRequests(d.requests); err != nil {
			return nil, err
		}
	}
	return &pb.Spec{Spec: content}, nil
}

func compileRequests(d *draftRequests) (*pb.Spec_Requests, error) {
	req := &pb.Spec_Requests{}
	for _, names := range []struct {
		from []word
		to   *[]string
	}{{d.env, &req.Env}, {d.vars, &req.Vars}} {
		for _, w := range names.from {
			if !isName(w.text) {
				return nil, w.at.errorf("%s", badVariable(w.text))
			}
			*names.to = append(*names.to, w.text)
		}
	}
	return req, nil
}

func (c *compiler) input(p *draftParam) (*pb.Spec_Input, error) {
	kind, err := p.check("input")
	if err != nil {
		return nil, err
	}
	in := &pb.Spec_Input{Type: kind, Description: p.description.text, Sensitive: p.sensitive, Match: p.match.text}
	for _, w := range p.options {
		in.Options = append(in.Options, w.text)
	}
	if p.preset == nil {
		c.afterwards(func() error { return p.checkInput(in, nil) })
		return in, nil
	}
	value, err := p.literalDefault("input", kind)
	if err != nil {
		return nil, err
	}
	in.Default = value
	c.afterwards(func() error { return p.checkInput(in, value) })
	return in, nil
}

func (c *compiler) output(p *draftParam) (*pb.Spec_Output, error) {
	kind, err := p.check("output")
	if err != nil {
		return nil, err
	}
	out := &pb.Spec_Output{Type: kind, Description: p.description.text, Sensitive: p.sensitive}
	if p.preset != nil {
		out.Default, err = p.literalDefault("output", kind)
	}
	return out, err
}

// check checks the name of p and returns its type. what is "input" or "output".
func (p *draftParam) check(what string) (pb.Spec_InputType, error) {
	if err := checkName(p.name, "name of the "+what); err != nil {
		return 0, err
	}
	if !p.kind.given {
		return pb.Spec_spec_type_unspecified, nil
	}
	kind, known := types[p.kind.text]
	if !known {
		return 0, p.kind.at.errorf("the %s %s has an unknown type%s%s", what, p.label(), Quote(p.kind.text),
			Suggest(p.kind.text, strings.Split(typeList, ", "), "; it is one of "+typeList))
	}
	return kind, nil
}

// literalDefault returns the default, which must not have expressions.
func (p *draftParam) literalDefault(what string, kind pb.Spec_InputType) (*structpb.Value, error) {
	if why := mistyped(kind, kindOf(p.preset.value)); why != "" {
		return nil, p.preset.at.errorf("the default of the %s %s is %s", what, p.label(), why)
	}
	for _, w := range p.preset.texts {
		if _, literal := Literal(w.text); !literal {
			return nil, w.at.beyond().errorf("the default of the %s %s has an expression, which a spec cannot have; for the "+
				"text itself write %s",
				what, p.label(), exprEscaped)
		}
	}
	value, _ := unescape(p.preset.value)
	return value, nil
}

// unescape returns v with the escapes in its texts resolved, and false if v has expressions.
func unescape(v *structpb.Value) (*structpb.Value, bool) {
	literal := true
	item := func(v *structpb.Value) *structpb.Value {
		u, ok := unescape(v)
		literal = literal && ok
		return u
	}
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		text, ok := Literal(k.StringValue)
		return structpb.NewStringValue(text), ok
	case *structpb.Value_ListValue:
		list := &structpb.ListValue{}
		for _, v := range k.ListValue.GetValues() {
			list.Values = append(list.Values, item(v))
		}
		return structpb.NewListValue(list), literal
	case *structpb.Value_StructValue:
		fields := make(map[string]*structpb.Value, len(k.StructValue.GetFields()))
		for key, v := range k.StructValue.GetFields() {
			fields[key] = item(v)
		}
		return structpb.NewStructValue(&structpb.Struct{Fields: fields}), literal
	default:
		return v, true
	}
}

// checkInput checks the restrictions of an input, and its default against them.
func (p *draftParam) checkInput(in *pb.Spec_Input, preset *structpb.Value) error {
	if p.match.given {
		if _, err := regexp.Compile(in.GetMatch()); err != nil {
			return p.match.at.beyond().errorf("match of the input %s is not a regular expression: %v", p.label(), err)
		}
	}
	if preset == nil {
		return nil
	}
	if len(in.GetOptions()) > 0 && !slices.Contains(in.GetOptions(), preset.GetStringValue()) {
		return p.preset.at.beyond().errorf("the default of the input %s is%s, and not one of its options", p.label(),
			Quote(preset.GetStringValue()))
	}
	v, err := expr.New(preset)
	if err == nil {
		_, err = accept(in, v)
	}
	if err != nil {
		return p.preset.at.beyond().errorf("the default of the input %s: %v", p.label(), err)
	}
	return nil
}
