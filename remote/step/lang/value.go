package lang

import (
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/internal/yamltree"
)

// anyValue reads a value of any type. Errors call it label.
func (r *reader) anyValue(n *yaml.Node, label string) draftValue {
	d := draftValue{at: r.at(n)}
	d.value = r.valueInto(&d, n, label)
	return d
}

func (r *reader) valueInto(d *draftValue, n *yaml.Node, label string) *structpb.Value {
	defer r.Leave()
	r.Enter(n)
	v := r.Value(n)
	switch v.Kind { //nolint:exhaustive // value returns no other kinds
	case yaml.SequenceNode:
		values := make([]*structpb.Value, len(v.Content))
		for i, item := range v.Content {
			values[i] = r.valueInto(d, item, label)
		}
		return structpb.NewListValue(&structpb.ListValue{Values: values})
	case yaml.MappingNode:
		return r.structInto(d, v, label)
	}
	switch v.ShortTag() {
	case "!!null":
		return structpb.NewNullValue()
	case "!!bool":
		return structpb.NewBoolValue(r.Bool(v, label))
	case "!!int", "!!float":
		return structpb.NewNumberValue(r.number(v, label))
	case "!!str":
		if hasExpression(v.Value) {
			d.texts = append(d.texts, word{at: r.at(n), text: v.Value, given: true})
		}
		return structpb.NewStringValue(v.Value)
	default:
		r.Failf(n, "%s is %s", label, yamltree.Describe(v))
		return nil
	}
}

func (r *reader) structInto(d *draftValue, n *yaml.Node, label string) *structpb.Value {
	items := r.Mapping(n, label)
	fields := make(map[string]*structpb.Value, len(items))
	for _, it := range items {
		key, literal := Literal(it.Key)
		switch {
		case !literal:
			r.Failf(it.At, "a key cannot have an expression here; for the text itself write %s", exprEscaped)
		case fields[key] != nil:
			r.Failf(it.At, "%s", yamltree.Twice(key))
		}
		fields[key] = r.valueInto(d, it.Value, label)
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: fields})
}

func (r *reader) number(v *yaml.Node, label string) float64 {
	f, err := strconv.ParseFloat(v.Value, 64)
	if err != nil || strings.ContainsAny(v.Value, "xX_") || len(v.Value) > 1 && v.Value[0] == '0' {
		err = v.Decode(&f) // YAML has more forms of numbers
	}
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		r.Failf(v, "%s is too large for a 64-bit floating-point number", label)
	}
	return f
}
