package gitlabtest

import (
	_ "embed" // for the corpus
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

// Kind is a kind of job, and how it ends.
type Kind struct {
	Name string
	// After is the kind that runs before, if there is one. Needs is a part of the machine.
	After, Needs string
	// Quick says that each test run has it.
	Quick bool
	// Job has the fields of the answer.
	Job  map[string]any
	Want struct {
		// Refused is in the message about a job that cannot run. The others are about those that run.
		Refused string
		// Status is success if it is empty.
		Status, Reason string
		ExitCode       int `yaml:"exit_code"`
		// Says are parts of the text of the trace, Never are no parts of it, and Raw are parts of the trace without times.
		Says, Never, Raw []string
		// Sections are those of the trace, Files those in its archive, and Types those of its artifacts. Nil: any.
		Sections, Files, Types []string
	}
}

//go:embed testdata/jobs.yml
var corpus []byte

// Kinds returns the corpus of jobs, in an order in which they can run. Texts have the values of names in place of them.
func Kinds(t testing.TB, values map[string]string) (kinds []Kind) {
	t.Helper()
	text := string(corpus)
	for name, value := range values {
		text = strings.ReplaceAll(text, "$"+name, value)
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &kinds))
	for i := range kinds {
		kinds[i].Job = complete(t, kinds[i].Job)
	}
	return kinds
}

// complete returns the fields of an answer with those of Script, of a job without sources that the server shows with
// sections.
func complete(t testing.TB, own map[string]any) map[string]any {
	t.Helper()
	answer := Script("true")
	variables, features := answer["variables"].([]map[string]any), answer["features"].(map[string]any)
	variables = append(variables, map[string]any{"key": "GIT_STRATEGY", "value": "none"},
		map[string]any{"key": "CI_PROJECT_NAME", "value": "project"})
	text, err := json.Marshal(own) // maps of YAML have other types
	require.NoError(t, err)
	fields := map[string]any{}
	require.NoError(t, json.Unmarshal(text, &fields))
	if list, has := fields["variables"].([]any); has {
		for _, v := range list {
			variables = append(variables, v.(map[string]any))
		}
	}
	if more, has := fields["features"].(map[string]any); has {
		maps.Copy(features, more)
	}
	maps.Copy(answer, fields)
	answer["variables"], answer["features"] = variables, features
	return answer
}
