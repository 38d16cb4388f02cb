package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/mask"
)

func TestSecretInAStructIsOneHoweverJSONWritesIt(t *testing.T) {
	// Symptom: JSON writes a quotation mark in another way, so the secret was not found and was shown.
	tr := newTrial(t, `
- {name: a, step: ./a}
- {name: list, step: ./list}
`, func(c *Config) {
		c.Vars = []Variable{{Key: "PW", Value: `pa"ss`, Masked: true}}
	}).files(map[string]string{
		"a/step.yml": `
spec: {outputs: {o: {type: struct}}}
---
exec: {command: [sh, -c, 'echo "{\"name\":\"o\",\"value\":{\"k\":[\"pa\\\"ss\"]}}" > ${{ output_file }}']}
`,
		"list/step.yml": `
spec: {outputs: {all: {type: struct}}}
---
run: [{name: in, step: ../a}]
outputs: {all: "${{ steps.in.outputs.o }}"}
`,
	})
	res := tr.run()
	require.True(t, res.Steps[0].Outputs["o"].Sensitive())
	require.True(t, res.Steps[1].Steps[0].Outputs["o"].Sensitive())
	if all, there := res.Steps[1].Outputs["all"]; there {
		require.True(t, all.Sensitive())
	}
}

func TestSecretThatCannotBeMaskedFailsItsStep(t *testing.T) {
	newTrial(t, "- {name: a, step: ./a}\n").files(map[string]string{
		"a/step.yml": `
spec: {outputs: {o: {type: string, sensitive: true}}}
---
exec: {command: [sh, -c, '(printf "{\"name\":\"o\",\"value\":\""; head -c 3000000 /dev/zero | tr "\\0" x; printf
    "\"}") > ${{ output_file }}']}
`,
	}).fail(`step "a": mask "o": ` + mask.ErrFull.Error())
}

// failingFetcher fails in words that are no text.
type failingFetcher struct{}

func (failingFetcher) Fetch(context.Context, *pb.Reference, component.Credentials) (*component.Component, error) {
	return nil, errors.New("open /no\xffwhere")
}

func TestMessageIsValidTextWithAnyQuotedBytes(t *testing.T) {
	newTrial(t, "- {name: a, step: example.com/a@v1}\n", func(c *Config) { c.Fetcher = failingFetcher{} }).
		fail("step \"a\": fetch https://example.com/a@v1: open /no\uFFFDwhere")
}

func TestAlwaysStepsHaveTheirTimeAfterAFetchThatTookTooLong(t *testing.T) {
	tr := newTrial(t, `
- name: outer
  timeout: 300ms
  run:
    - {name: get, step: example.com/a@v1}
    - {name: clean, script: sleep 0.05; echo cleaned, when: always}
`, func(c *Config) { c.Fetcher = slowFetcher{make(chan struct{})} })
	res := tr.run()
	require.Equal(t, []string{"get failure", "clean success"}, statuses(res.Steps[0].Steps))
	require.Equal(t, "cleaned\n", tr.stdout.String())
}
