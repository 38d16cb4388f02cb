package trace

import (
	"bytes"
	"os"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

const schemaFile = "../../../docs/steptrace-v1.json"

// valid returns an error if data is not as the published schema has it.
func valid(t *testing.T, data []byte) error {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource(schemaFile, doc))
	s, err := c.Compile(schemaFile)
	require.NoError(t, err)
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	return s.Validate(v)
}

func TestTracesAreAsTheSchemaHasThem(t *testing.T) {
	require.NoError(t, valid(t, encoded(t, sample(t))))
	for old, text := range map[string]string{
		`"schema":"steptrace/v1"`: `"schema":"steptrace/v2"`,
		`"status":"failure"`:      `"status":"running"`,
		`"path":"0.0"`:            `"path":"0."`,
		`"pid":1,`:                `"pid":1,"more":1,`,
		`"masked":true,"type"`:    `"masked":true,"kind"`,
	} {
		require.Error(t, valid(t, edited(t, old, text, false)), text)
	}
}
