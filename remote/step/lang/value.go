package lang

import (
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/structpb"
)

// anyValue reads a value of any type, which errors call what.
func (r *reader) anyValue(n *yaml.Node, what string) (draftValue, error) {
	d := draftValue{at: r.at(n)}
	var err error
	d.value, err = r.valueInto(&d, n, what)
	return d, err
}

func (r *reader) valueInto(d *draftValue, n *yaml.Node, what string) (*structpb.Value, error) {
	defer r.leave()
	if err := r.enter(n); err != nil {
		return nil, err
	}
	v, err := r.value(n)
	if err != nil {
		return nil, err
	}
	switch v.Kind { //nolint:exhaustive // value returns no others
	case yaml.SequenceNode:
		return r.listInto(d, v, what)
	case yaml.MappingNode:
		return r.structInto(d, n, what)
	}
	switch v.ShortTag() {
	case "!!null":
		return structpb.NewNullValue(), nil
	case "!!bool":
		var b bool
		if err := v.Decode(&b); err != nil {
			return nil, r.at(n).errorf("%s is not a boolean", what)
		}
		return structpb.NewBoolValue(b), nil
	case "!!int", "!!float":
		return r.number(v, what)
	case "!!str":
		w := word{at: r.at(n), text: v.Value, given: true}
		if hasExpression(v.Value) {
			d.texts = append(d.texts, w)
		}
		return structpb.NewStringValue(v.Value), nil
	default:
		return nil, r.at(n).errorf("%s is %s", what, describe(v))
	}
}

func (r *reader) listInto(d *draftValue, v *yaml.Node, what string) (*structpb.Value, error) {
	list := &structpb.ListValue{Values: make([]*structpb.Value, len(v.Content))}
	for i, item := range v.Content {
		var err error
		if list.Values[i], err = r.valueInto(d, item, what); err != nil {
			return nil, err
		}
	}
	return structpb.NewListValue(list), nil
}

func (r *reader) structInto(d *draftValue, n *yaml.Node, what string) (*structpb.Value, error) {
	items, err := r.mapping(n, what)
	if err != nil {
		return nil, err
	}
	fields := make(map[string]*structpb.Value, len(items))
	for _, it := range items {
		key, literal := Literal(it.key.text)
		if !literal {
			return nil, it.key.at.beyond().errorf("a key cannot have an expression here; for the text itself write %s",
				exprEscaped)
		}
		if fields[key] != nil {
			return nil, it.key.at.beyond().errorf("the key%s is given twice", Quote(key))
		}
		if fields[key], err = r.valueInto(d, it.value, what); err != nil {
			return nil, err
		}
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: fields}), nil
}

func (r *reader) number(v *yaml.Node, what string) (*structpb.Value, error) {
	f, err := strconv.ParseFloat(v.Value, 64)
	if err != nil || strings.ContainsAny(v.Value, "xX_") || len(v.Value) > 1 && v.Value[0] == '0' {
		err = v.Decode(&f) // YAML has other forms of numbers
	}
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, r.at(v).beyond().errorf("%s is too large for a 64-bit floating-point number", what)
	}
	return structpb.NewNumberValue(f), nil
}
