package lang

import (
	"errors"
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// maxInput bounds the value of an input, in bytes.
const maxInput = 4 << 20

// Bind returns the inputs of a call of a definition with spec: the given values, checked, and the defaults of the
// others. Its error does not show values.
func Bind(spec *pb.Spec, given map[string]expr.Value) (map[string]expr.Value, error) {
	declared := spec.GetSpec().GetInputs()
	inputs := make(map[string]expr.Value, len(declared))
	spent := 0
	for _, name := range sortedkeys.Of(given) {
		in := declared[name]
		if in == nil {
			return nil, unknownInput(name, declared)
		}
		v, err := accept(in, given[name], &spent)
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", name, err)
		}
		if n := len(v.Text()); n > maxInput {
			return nil, fmt.Errorf("input %q: the value has %d bytes, the limit is %d; pass large data in a file", name, n,
				maxInput)
		}
		inputs[name] = v
	}
	if err := missing(spec, func(name string) bool { _, ok := inputs[name]; return ok }); err != nil {
		return nil, err
	}
	for _, name := range sortedkeys.Of(declared) {
		if _, ok := inputs[name]; ok {
			continue
		}
		v, err := expr.New(declared[name].GetDefault())
		if err == nil {
			v, err = accept(declared[name], v, &spent)
		}
		if err != nil {
			return nil, fmt.Errorf("default of input %q: %w", name, err)
		}
		inputs[name] = v
	}
	return inputs, nil
}

// Undeclared returns the names of the inputs in bound, the result of Bind, whose value is sensitive although spec does
// not declare them sensitive: a masked variable made them so.
func Undeclared(spec *pb.Spec, bound map[string]expr.Value) (names []string) {
	declared := spec.GetSpec().GetInputs()
	for _, name := range sortedkeys.Of(bound) {
		if bound[name].Sensitive() && !declared[name].GetSensitive() {
			names = append(names, name)
		}
	}
	return names
}

// BindOutputs returns the outputs of a definition with spec: the given values, checked, and the defaults of the others.
// The error has all mistakes on one line and does not show values. The valid outputs are returned even with an error.
// In the blueprint's dialect a missing output is only a warning.
func BindOutputs(
	spec *pb.Spec, dialect pb.Definition_Dialect, given map[string]expr.Value,
) (outputs map[string]expr.Value, warnings []string, err error) {
	declared := spec.GetSpec().GetOutputs()
	outputs = make(map[string]expr.Value, len(declared))
	var wrong []string
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	take := func(label, name string, v expr.Value, err error) {
		if err == nil {
			v, err = acceptOutput(declared[name], v)
		}
		if err != nil {
			complain("%s %q: %v", label, name, err)
			return
		}
		outputs[name] = v
	}
	for _, name := range sortedkeys.Of(given) {
		if declared[name] == nil {
			complain("unexpected output %.64q: %s", name, declaredOutputs(sortedkeys.Of(declared)))
			continue
		}
		take("output", name, given[name], nil)
	}
	for _, name := range sortedkeys.Of(declared) {
		if _, there := given[name]; there {
			continue
		}
		switch preset := declared[name].GetDefault(); {
		case preset != nil:
			v, err := expr.New(preset)
			take("default of output", name, v, err)
		case dialect == pb.Definition_v0:
			warnings = append(warnings, fmt.Sprintf("missing output %q: the step did not write it", name))
		default:
			complain("missing output %q: the step did not give it, and it has no default", name)
		}
	}
	if wrong != nil {
		err = errors.New(strings.Join(wrong, "; "))
	}
	return outputs, warnings, err
}

func declaredOutputs(names []string) string {
	if len(names) == 0 {
		return "the spec has no outputs"
	}
	return "the spec has " + strings.Join(names, ", ")
}
