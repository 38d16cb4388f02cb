package recording

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/trace"
)

// checkTrace compares the trace of a run with the case's expectations. Every trace must be readable.
func (c *testCase) checkTrace(t *testing.T, made *trace.Trace) (wrong []string) {
	t.Helper()
	data, err := made.Encode()
	require.NoError(t, err)
	_, err = trace.Parse(data)
	require.NoError(t, err)
	for _, text := range c.Expect.TraceNotContains {
		if strings.Contains(string(data), text) {
			wrong = append(wrong, fmt.Sprintf("the trace %s contains %q", data, text))
		}
	}
	var tree struct{ Identity map[string]any }
	require.NoError(t, json.Unmarshal(data, &tree))
	require.Equal(t, trace.Schema, made.Schema)
	tree.Identity["schema"] = trace.SchemaV1 // the cases are older than the second version, which has all of the first
	for path, want := range c.Expect.Trace {
		got, _ := at(tree.Identity, path)
		if wanted, is := want.(map[string]any); is {
			if got, _ := got.(map[string]any); includes(got, wanted) {
				continue
			}
		}
		if !reflect.DeepEqual(got, want) {
			wrong = append(wrong, fmt.Sprintf("%s is %v in the trace, want %v", path, got, want))
		}
	}
	for _, path := range c.Expect.TracePresent {
		if _, there := at(tree.Identity, path); !there {
			wrong = append(wrong, "the trace has no "+path)
		}
	}
	switch property := c.Expect.Property; {
	case strings.Contains(property, `byte-identical "identity" sections`):
		wrong = append(wrong, c.checkIdentity(t, made)...)
	case property != "":
		wrong = append(wrong, "not compared: "+property)
	}
	return wrong
}

// at returns the value in v at a path such as steps[0].inputs.x.
func at(v any, path string) (any, bool) {
	for _, key := range strings.FieldsFunc(path, func(c rune) bool { return c == '.' || c == '[' || c == ']' }) {
		switch in := v.(type) {
		case map[string]any:
			inner, there := in[key]
			if !there {
				return nil, false
			}
			v = inner
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(in) {
				return nil, false
			}
			v = in[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// identities are those of the first run of cases, by name.
var identities = map[string]string{}

// checkIdentity compares the identity with that of the run before.
func (c *testCase) checkIdentity(t *testing.T, made *trace.Trace) (wrong []string) {
	t.Helper()
	identity, err := made.Identity.Canonical()
	require.NoError(t, err)
	if before := identities[c.Name]; before != "" && before != string(identity) {
		wrong = append(wrong, fmt.Sprintf("the identity was %s, and is %s", before, identity))
	}
	identities[c.Name] = string(identity)
	return wrong
}
