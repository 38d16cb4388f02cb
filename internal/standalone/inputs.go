package standalone

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// readInputs converts the texts given for the inputs of spec to values.
func readInputs(spec *pb.Spec, given map[string]string) (map[string]expr.Value, error) {
	inputs := make(map[string]expr.Value, len(given))
	for _, name := range slices.Sorted(maps.Keys(given)) {
		v, err := readInput(spec.GetSpec().GetInputs()[name].GetType(), given[name])
		if err != nil {
			return nil, fmt.Errorf("input %.64q: %w", name, err)
		}
		inputs[name] = v
	}
	return inputs, nil
}

// readInput converts text to a value of the type kind. lang.Bind reports inputs that are not declared.
func readInput(kind pb.Spec_InputType, text string) (v expr.Value, err error) {
	if kind == pb.Spec_string || kind == pb.Spec_spec_type_unspecified {
		return expr.New(text)
	}
	if err := v.UnmarshalJSON([]byte(text)); err != nil {
		name := map[pb.Spec_InputType]string{pb.Spec_bool: "boolean", pb.Spec_list: "array"}[kind]
		return v, fmt.Errorf("the value must be JSON, as 3, true or [\"a\"], since its type is %s",
			cmp.Or(name, kind.String()))
	}
	return v, nil
}
