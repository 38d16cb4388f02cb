package flagfile_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/flagfile"
)

// flags returns flags of each kind that a command of ours has.
func flags() *pflag.FlagSet {
	fl := pflag.NewFlagSet("", pflag.ContinueOnError)
	fl.String("state", "", "")
	fl.Int("capacity", 1, "")
	fl.Int64("pids-limit", 0, "")
	fl.Bool("bootstrap", false, "")
	fl.Duration("linger", time.Minute, "")
	fl.StringArray("instance", nil, "")
	fl.StringSlice("nats", nil, "")
	for _, name := range []string{"host-key", "ssh"} {
		fl.Func(name, "", func(string) error { return nil })
	}
	flagfile.Repeat(fl, "host-key")
	for _, name := range []string{"config", "config-schema", "check", "help"} {
		fl.String(name, "", "")
	}
	return fl
}

func TestTheSchemaAcceptsTheFilesThatApplyAccepts(t *testing.T) {
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("flags.json", asJSON(t, flagfile.Schema(flags(), "flags"))))
	schema, err := c.Compile("flags.json")
	require.NoError(t, err)
	validate := func(text string) (bySchema, byApply error) {
		var file any
		require.NoError(t, yaml.Unmarshal([]byte(text), &file))
		name := filepath.Join(t.TempDir(), "flags.yml")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return schema.Validate(asJSON(t, file)), flagfile.Apply(flags(), name)
	}
	for _, text := range []string{
		"{state: d, capacity: 4, bootstrap: true, linger: 5m, host-key: [known-hosts, first-use]}",
		"{state: 1000, instance: ['ssh://a', 'ssh://b'], nats: 'nats://c'}",
	} {
		bySchema, byApply := validate(text)
		require.NoError(t, bySchema, text)
		require.NoError(t, byApply, text)
	}
	for _, text := range []string{
		"{capacity: many}", "{pids-limit: 1.5}", "{ssh: [a]}", "{bootstrap: [true]}", "{state: [d]}", "{state: {d: e}}",
		"{stat: d}", "[state]", "{config: other.yml}", "{config-schema: true}", "{check: true}", "{help: true}",
	} {
		bySchema, byApply := validate(text)
		require.Error(t, bySchema, text)
		require.Error(t, byApply, text)
	}
	_, err = validate("{config: other.yml}")
	require.ErrorContains(t, err, `flags.yml:1:2: unknown key "config"`)
	require.NotContains(t, err.Error(), "did you mean") // "config"
}

// Symptom: the flags behind the first MiB of a file were left out, and the command started without them.
func TestAFileThatIsTooLargeIsAnError(t *testing.T) {
	name := filepath.Join(t.TempDir(), "flags.yml")
	require.NoError(t, os.WriteFile(name, []byte("state: d\n"+strings.Repeat("# more\n", 1<<18)+"capacity: 4\n"), 0o600))
	require.ErrorContains(t, flagfile.Apply(flags(), name), "--config: "+name+" is too large")
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
