package lang

import (
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/structpb"
)

// anyValue reads a value of any type. Errors call it label.
func (r *reader) anyValue(n *yaml.Node, label string) draftValue {
	d := draftValue{at: r.at(n)}
	d.value = r.valueInto(&d, n, label)
	return d
}

func (r *reader) valueInto(d *draftValue, n *yaml.Node, label string) *structpb.Value {
	defer r.leave()
	r.enter(n)
	v := r.value(n)
	switch v.Kind { //nolint:exhaustive // value returns no other kinds
	case yaml.SequenceNode:
		values := make([]*structpb.Value, len(v.Content))
		for i, item := range v.Content {
			values[i] = r.valueInto(d, item, label)
		}
		return structpb.NewListValue(&structpb.ListValue{Values: values})
	case yaml.MappingNode:
		return r.structInto(d, n, label)
	}
	switch v.ShortTag() {
	case "!!null":
		return structpb.NewNullValue()
	case "!!bool":
		var b bool
		if v.Decode(&b) != nil {
			r.fail(r.at(n).errorf("%s is not a boolean", label))
		}
		return structpb.NewBoolValue(b)
	case "!!int", "!!float":
		return structpb.NewNumberValue(r.number(v, label))
	case "!!str":
		if hasExpression(v.Value) {
			d.texts = append(d.texts, word{at: r.at(n), text: v.Value, given: true})
		}
		return structpb.NewStringValue(v.Value)
	default:
		r.fail(r.at(n).errorf("%s is %s", label, describe(v)))
		return nil
	}
}

func (r *reader) structInto(d *draftValue, n *yaml.Node, label string) *structpb.Value {
	items := r.mapping(n, label)
	fields := make(map[string]*structpb.Value, len(items))
	for _, it := range items {
		key, literal := Literal(it.key.text)
		switch {
		case !literal:
			r.fail(it.key.at.errorf("a key cannot have an expression here; for the text itself write %s", exprEscaped))
		case fields[key] != nil:
			r.fail(it.key.at.errorf("the key%s is given twice", Quote(key)))
		}
		fields[key] = r.valueInto(d, it.value, label)
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: fields})
}

func (r *reader) number(v *yaml.Node, label string) float64 {
	f, err := strconv.ParseFloat(v.Value, 64)
	if err != nil || strings.ContainsAny(v.Value, "xX_") || len(v.Value) > 1 && v.Value[0] == '0' {
		err = v.Decode(&f) // YAML has more forms of numbers
	}
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		r.fail(r.at(v).errorf("%s is too large for a 64-bit floating-point number", label))
	}
	return f
}
