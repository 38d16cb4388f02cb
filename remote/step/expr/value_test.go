package expr

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// everyKind holds a value of each kind.
var everyKind = map[string]any{
	"null": nil, "bool": true, "number": -1.5, "string": "ä\n", "array": []any{1.0, []any{}},
	"object": map[string]any{"k": false, "": map[string]any{}},
}

func TestAValueIsTheSameAfterEveryWayThroughItsForms(t *testing.T) {
	v := value(t, everyKind)
	require.Equal(t, everyKind, v.Any())
	require.Equal(t, v, value(t, v))
	require.Equal(t, v, value(t, v.Proto()))

	data, err := json.Marshal(v)
	require.NoError(t, err)
	require.Equal(t, `{"array":[1,[]],"bool":true,"null":null,"number":-1.5,"object":{"":{},"k":false},"string":"ä\n"}`,
		string(data))
	var back Value
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, v, back)
}

func TestNewTakesTheTypesOfGoThatFit(t *testing.T) {
	for _, c := range []struct{ x, want any }{
		{nil, nil},
		{7, 7.0},
		{int64(-7), -7.0},
		{uint64(math.MaxUint64), float64(math.MaxUint64)},
		{[]string{"a"}, []any{"a"}},
		{map[string]string{"a": "b"}, map[string]any{"a": "b"}},
		{[]Value{value(t, 1)}, []any{1.0}},
		{map[string]Value{"a": value(t, 1)}, map[string]any{"a": 1.0}},
		{(*structpb.Value)(nil), nil},
		{structpb.NewNullValue(), nil},
		{[]*structpb.Value{structpb.NewBoolValue(true), nil}, []any{true, nil}},
		{map[string]*structpb.Value{"a": structpb.NewStringValue("b")}, map[string]any{"a": "b"}},
	} {
		require.Equal(t, c.want, value(t, c.x).Any(), "%T", c.x)
	}
}

func TestNewRefusesUnknownTypes(t *testing.T) {
	for want, x := range map[string]any{
		"an expression cannot have a value of the type struct {}": struct{}{},
		"an expression cannot have a value of the type []int":     []any{[]int{1}},
		"a number is not finite":                                  map[string]any{"a": math.NaN()},
		"a key is not valid UTF-8":                                map[string]any{"\xff": 1},
		"a value has no kind":                                     &structpb.Value{},
	} {
		_, err := New(x)
		require.EqualError(t, err, want)
	}
	_, err := New(structpb.NewNumberValue(math.Inf(1)))
	require.EqualError(t, err, "a number is not finite")
	var v Value
	require.Error(t, json.Unmarshal([]byte(`1e999`), &v))
	require.ErrorIs(t, json.Unmarshal([]byte(strings.Repeat("[", 200)+strings.Repeat("]", 200)), &v), errDepth)
}

func TestANewValueIsACopy(t *testing.T) {
	items, fields := []any{"a"}, map[string]any{"k": "a"}
	array, object := value(t, items), value(t, fields)
	items[0], fields["k"] = "b", "b"
	array.Any().([]any)[0] = "c"
	object.Keys()[0] = "c"
	require.Equal(t, []any{"a"}, array.Any())
	require.Equal(t, map[string]any{"k": "a"}, object.Any())
}

func TestOnlyTextKeepsBytesThatAreNoUTF8(t *testing.T) {
	v := value(t, "a\xffb")
	require.Equal(t, "a\xffb", v.Text())
	require.Equal(t, "a\uFFFDb", v.Proto().GetStringValue())
	_, err := proto.Marshal(v.Proto())
	require.NoError(t, err)
	data, err := v.MarshalJSON()
	require.NoError(t, err)
	require.Equal(t, "\"a\uFFFDb\"", string(data))
	_, err = (&Expr{root: &object{pairs: []pair{{key: &constant{v}, value: &constant{}}}}}).Eval(nil)
	require.ErrorContains(t, err, "a key is not valid UTF-8")
}

func TestTheItemsOfAValueCanBeRead(t *testing.T) {
	object := value(t, map[string]any{"b": 2, "a": 1, "c": nil})
	require.Equal(t, Object, object.Kind())
	require.Equal(t, []string{"a", "b", "c"}, object.Keys())
	require.Equal(t, 3, object.Len())
	require.Equal(t, value(t, 2), object.Index(1))
	got, ok := object.Get("c")
	require.True(t, ok)
	require.Equal(t, Null, got.Kind())
	_, ok = object.Get("d")
	require.False(t, ok)

	array := value(t, []any{"x"})
	require.Nil(t, array.Keys())
	require.Equal(t, 1, array.Len())
	_, ok = array.Get("x")
	require.False(t, ok)
	require.Zero(t, value(t, "text").Len())
	require.NotNil(t, value(t, map[string]any{}).Keys())
}

func TestKindsHaveTheNamesOfTheLanguage(t *testing.T) {
	var names []string
	for _, x := range []any{nil, true, 1, "a", []any{}, map[string]any{}} {
		names = append(names, value(t, x).Kind().String())
	}
	require.Equal(t, []string{"null", "boolean", "number", "string", "array", "object"}, names)
}

func TestTheZeroValueIsNull(t *testing.T) {
	var v Value
	require.Equal(t, value(t, nil), v)
	require.False(t, v.Truthy())
	require.Equal(t, "<null>", v.Text())
}
