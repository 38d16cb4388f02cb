package lang

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// maxMatch bounds the time for all matches of a spec's inputs to half a second. It is the sum of the instructions of
// their expressions, each times the bytes of the value.
const maxMatch = 4 << 20

var kinds = map[pb.Spec_InputType]expr.Kind{
	pb.Spec_string: expr.String,
	pb.Spec_number: expr.Number,
	pb.Spec_bool:   expr.Boolean,
	pb.Spec_struct: expr.Object,
	pb.Spec_list:   expr.Array,
}

// mistyped returns the mistake if a value of kind does not fit the declared type want, such as "a string, and must be a
// number". It returns "" if the type is right.
func mistyped(want pb.Spec_InputType, kind expr.Kind) string {
	if want == pb.Spec_spec_type_unspecified {
		if kind == expr.Array || kind == expr.Object || kind == expr.Null {
			return fmt.Sprintf("%s, and must be a text; to take others give it a type", phrase(kind))
		}
		return ""
	}
	if kinds[want] == kind {
		return ""
	}
	return fmt.Sprintf("%s, and must be %s", phrase(kind), phrase(kinds[want]))
}

// phrase returns a kind in the words of the language.
func phrase(kind expr.Kind) string {
	switch kind {
	case expr.Null:
		return "null"
	case expr.Array:
		return "an array"
	case expr.Object:
		return "a struct"
	default:
		return "a " + kind.String()
	}
}

// TypeName returns the name of a value's type in the language.
func TypeName(kind expr.Kind) string {
	return strings.TrimPrefix(strings.TrimPrefix(phrase(kind), "a "), "an ")
}

// kindOf returns the kind of a value before its expressions are evaluated. An expression counts as a string.
func kindOf(v *structpb.Value) expr.Kind {
	switch v.GetKind().(type) {
	case *structpb.Value_BoolValue:
		return expr.Boolean
	case *structpb.Value_NumberValue:
		return expr.Number
	case *structpb.Value_StringValue:
		return expr.String
	case *structpb.Value_ListValue:
		return expr.Array
	case *structpb.Value_StructValue:
		return expr.Object
	default:
		return expr.Null
	}
}

// accept returns v as the value of the input in. Sensitive values are accepted only by sensitive inputs, except for
// those that are sensitive only because of a masked variable. The error does not show the value. spent is the sum for
// maxMatch.
func accept(in *pb.Spec_Input, v expr.Value, spent *int) (expr.Value, error) {
	if why := mistyped(in.GetType(), v.Kind()); why != "" {
		return v, errors.New("the value is " + why)
	}
	if v.Declared() && !in.GetSensitive() {
		return v, errors.New("the value is sensitive, and the input is not; declare it with sensitive: true")
	}
	v, err := textOf(v, in.GetType())
	if err != nil {
		return v, err
	}
	if len(in.GetOptions()) > 0 && !slices.Contains(in.GetOptions(), v.Text()) {
		return v, fmt.Errorf("the value is not one of %s", strings.Join(in.GetOptions(), ", "))
	}
	if in.GetMatch() != "" {
		match, err := compileMatch(in.GetMatch(), len(v.Text()), spent)
		if err != nil {
			return v, fmt.Errorf("match %w", err)
		}
		if !match.MatchString(v.Text()) {
			return v, fmt.Errorf("the value does not match %s", in.GetMatch())
		}
	}
	if in.GetSensitive() {
		v = v.MarkSensitive()
	}
	return v, nil
}

// compileMatch returns the expression of a match for a value of that many bytes. The time to compile it counts as one
// byte. The error continues the words "match ...".
func compileMatch(text string, bytes int, spent *int) (*regexp.Regexp, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	var program *syntax.Prog
	if err == nil {
		program, err = syntax.Compile(parsed.Simplify())
	}
	if err != nil {
		return nil, fmt.Errorf("is not a regular expression: %w", err)
	}
	if *spent += len(program.Inst) * (1 + bytes); *spent > maxMatch {
		return nil, errors.New("takes too long for this value, or for those of all inputs together; pass long values " +
			"in files")
	}
	return regexp.Compile(text)
}

// textOf returns v or, if the declared type kind is missing, v as a text.
func textOf(v expr.Value, kind pb.Spec_InputType) (expr.Value, error) {
	if kind != pb.Spec_spec_type_unspecified || v.Kind() == expr.String {
		return v, nil
	}
	text, err := expr.New(v.Text())
	return text.MarkLike(v), err
}

// acceptOutput returns v as the value of the output out. Its error does not show the value.
func acceptOutput(out *pb.Spec_Output, v expr.Value) (expr.Value, error) {
	if why := mistyped(out.GetType(), v.Kind()); why != "" {
		return v, errors.New("the value is " + why)
	}
	if out.GetSensitive() {
		v = v.MarkSensitive()
	}
	return textOf(v, out.GetType())
}

// CheckCall checks the inputs of a call of a step with spec, as far as they are known before the call. Its error does
// not show values.
func CheckCall(spec *pb.Spec, inputs map[string]*structpb.Value) error {
	declared := spec.GetSpec().GetInputs()
	spent := 0
	for _, name := range sortedkeys.Of(inputs) {
		if hasExpression(name) {
			return nil // the expression may name any input
		}
		in := declared[name]
		if in == nil {
			return unknownInput(name, declared)
		}
		v, known := known(inputs[name])
		if !known {
			continue
		}
		if _, err := accept(in, v, &spent); err != nil {
			return fmt.Errorf("input %q: %w", name, err)
		}
	}
	return missing(spec, func(name string) bool { return inputs[name] != nil })
}

// missing returns an error if spec requires an input that is not given.
func missing(spec *pb.Spec, given func(name string) bool) error {
	inputs := spec.GetSpec().GetInputs()
	for _, name := range sortedkeys.Of(inputs) {
		if inputs[name].GetDefault() == nil && !given(name) {
			return fmt.Errorf("the input %q is required, and not given", name)
		}
	}
	return nil
}

func unknownInput(name string, declared map[string]*pb.Spec_Input) error {
	names := sortedkeys.Of(declared)
	takes := "; it takes none"
	if len(names) > 0 {
		takes = "; it takes " + strings.Join(names, ", ")
	}
	return fmt.Errorf("the step takes no input%s%s", Quote(name), Suggest(name, names, takes))
}

// known returns the value of v, and false if v has expressions.
func known(v *structpb.Value) (expr.Value, bool) {
	literal, ok := unescape(v)
	if !ok {
		return expr.Value{}, false
	}
	value, err := expr.New(literal)
	return value, err == nil
}
