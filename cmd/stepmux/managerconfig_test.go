package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

func TestTheConfigurationsSchemaAcceptsTheFilesThatTheManagerAccepts(t *testing.T) {
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("manager.json", asJSON(t, configSchema(newManagerCommand().Flags()))))
	schema, err := c.Compile("manager.json")
	require.NoError(t, err)
	validate := func(text string) (bySchema, byManager error) {
		var file any
		require.NoError(t, yaml.Unmarshal([]byte(text), &file))
		name := filepath.Join(t.TempDir(), "manager.yml")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return schema.Validate(asJSON(t, file)), applyConfig(newManagerCommand().Flags(), name)
	}
	example, err := os.ReadFile("../../examples/manager.yml")
	require.NoError(t, err)
	for _, text := range []string{
		string(example),
		"{state: d, capacity: 4, bootstrap: true, linger: 5m, log-level: info, host-key: [known-hosts, first-use]}",
		"{state: d, instance: ['ssh://a', 'ssh://b'], nats: 'nats://c', keep-logs: 100, socket-group: 1000}",
	} {
		bySchema, byManager := validate(text)
		require.NoError(t, bySchema, text)
		require.NoError(t, byManager, text)
	}
	for _, text := range []string{
		"{capacity: many}", "{bootstrap: [true]}", "{state: [d]}", "{state: {d: e}}", "{stat: d}", "[state]",
		"{config: other.yml}", "{config-schema: true}", "{check: true}", "{help: true}",
	} {
		bySchema, byManager := validate(text)
		require.Error(t, bySchema, text)
		require.Error(t, byManager, text)
	}
}

// asJSON returns v as jsonschema takes it.
func asJSON(t *testing.T, v any) any {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	return doc
}
