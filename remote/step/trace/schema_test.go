package trace

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

const docs = "../../../docs/"

// valid returns an error if data does not match the published schema in file.
func valid(t *testing.T, file string, data []byte) error {
	t.Helper()
	text, err := os.ReadFile(docs + file)
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource(docs+file, doc))
	s, err := c.Compile(docs + file)
	require.NoError(t, err)
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	return s.Validate(v)
}

func TestTracesAreAsTheSchemaHasThem(t *testing.T) {
	require.NoError(t, valid(t, "steptrace-v2.json", encoded(t, sample(t))))
	for old, text := range map[string]string{
		`"schema":"steptrace/v2"`: `"schema":"steptrace/v1"`,
		`"status":"failure"`:      `"status":"running"`,
		`"path":"0.0"`:            `"path":"0."`,
		`"pid":1,`:                `"pid":1,"more":1,`,
		`"masked":true,"type"`:    `"masked":true,"kind"`,
	} {
		require.Error(t, valid(t, "steptrace-v2.json", edited(t, old, text, false)), text)
	}
}

func TestTracesOfTheFirstVersionAreRead(t *testing.T) {
	files, err := filepath.Glob("../../../internal/standalone/replay/testdata/v1/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, valid(t, "steptrace-v1.json", data))
		read, err := Parse(data)
		require.NoError(t, err)
		require.Equal(t, SchemaV1, read.Schema)
		require.Equal(t, string(data), string(encoded(t, read)), "written again it is the same")
	}
}
