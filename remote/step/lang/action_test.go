package lang

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

func TestReferencesToActionsAreRead(t *testing.T) {
	for text, want := range map[string]*pb.Reference{
		"actions/checkout@v4":            {Repository: "actions/checkout", Rev: "v4"},
		"a.b/c_d-e/sub/dir@feature/x":    {Repository: "a.b/c_d-e", Path: "sub/dir", Rev: "feature/x"},
		"./":                             {Path: "./"},
		"./.github/actions/x":            {Path: "./.github/actions/x"},
		"$/.github/actions/x":            {Path: "$/.github/actions/x"},
		"$/x@v1":                         {Path: "$/x@v1"},
		"docker://alpine:3.22":           {Url: "docker://alpine:3.22"},
		"https://h/group/sub/p@v1":       {Url: "https://h/group/sub/p", Rev: "v1"},
		"https://h/group/p/-/a/b@v1":     {Url: "https://h/group/p", Path: "a/b", Rev: "v1"},
		"https://me:secret@h/group/p@v1": {Url: "https://me:secret@h/group/p", Rev: "v1"},
	} {
		want.Protocol = pb.Reference_action
		got, err := ParseAction(text)
		require.NoError(t, err, text)
		require.True(t, proto.Equal(want, got), "%s: %v", text, got)
		require.Equal(t, text, ActionText(got))
		require.NotContains(t, Describe(got), "secret")
	}
	for _, text := range []string{
		"", "checkout", "actions/checkout", "actions/checkout@", "a/b@-x", "-a/b@v1", "a/../b@v1", "a/b/../c@v1",
		"../a@v1/..\x00", "$/", "$/..", "$/a/../b", "$", "$a/b@v1\x00",
		"a/b@v1 --upload-pack=x", "docker://", "file:///etc@v1", "ssh://h/x/y@v1", "a b/c@v1", "./..@/x\n",
	} {
		_, err := ParseAction(text)
		require.Error(t, err, "%q", text)
	}
}

func TestAStepHasNoRepositoryOfItsOwn(t *testing.T) {
	_, err := Parse("j", []byte("- {name: a, action: $/lib}\n"))
	require.ErrorContains(t, err, "j:1:21: $/ is for the steps of workflows and of actions; here write ./directory")
}

func TestInputsOfAnActionMayHaveNamesOfTheirOwn(t *testing.T) {
	def, err := Parse("j", []byte("- {name: a, action: a/b@v1, inputs: {who-to-greet: x, 'with blank': y}}\n"))
	require.NoError(t, err)
	require.Len(t, def.GetSteps()[0].GetInputs(), 2)
	text, err := Format(def)
	require.NoError(t, err)
	again, err := Parse("j", []byte(text))
	require.NoError(t, err)
	require.True(t, proto.Equal(def.GetSteps()[0], again.GetSteps()[0]), text)
	for text, want := range map[string]string{
		"- {name: a, action: a/b@v1, inputs: {'a=b': x}}":   "the name of the input is not valid",
		"- {name: a, step: ./b, inputs: {who-to-greet: x}}": "is not valid",
		"- {name: a, action: '${{ vars.X }}@v1'}":           "an action cannot have expressions",
	} {
		_, err := Parse("j", []byte(text))
		require.ErrorContains(t, err, want)
	}
}
