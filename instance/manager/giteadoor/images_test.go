package giteadoor

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Labels may be written as for Gitea's own runner. A job without a container runs in the image of its label.
func TestImagesByTheLabelsOfJobs(t *testing.T) {
	s, err := read(t, "{url: 'https://a', token-file: t, environment: {A: 1, GITEA_ACTIONS: no},\n"+
		" labels: ['ubuntu-latest:docker://node:24', 'here:host', gpu], images: {gpu: 'a/b:c'}}")
	require.NoError(t, err)
	cfg := &s.Servers[0]
	require.Equal(t, []string{"ubuntu-latest", "here", "gpu"}, cfg.Declared(nil))
	other := &Config{Images: map[string]string{"node": "node:24"}}
	require.Equal(t, []string{"linux", "node", "self-hosted", "ubuntu-latest"}, other.Declared(nil))
	const node, own = `container: {image: "node:24"}`, `container: {image: "a/b:c"}`
	for _, test := range []struct{ before, has, after string }{ // a text is before + after
		{"jobs:\n  a:\n    ", node + "\n    ", "runs-on: ubuntu-latest\n    steps: []\n"},
		{"jobs: {a: {", node + ", ", "runs-on: [here, ubuntu-latest]}}"},
		{"jobs:\n  \"\u00e4\": {", own + ", ", "runs-on: {labels: gpu}}"},
		{"jobs:\r\n  a:\r\n    ", own + "\n    ", "name: \"\u2028\"\r\n    runs-on: gpu\r\n"},
		{"name: \"\u2028\"\njobs: {a: {", own + ", ", "runs-on: gpu}}"},
		{"jobs:\n  a:\n    steps: []\n    runs-on: here\n", "", ""},
		{"jobs:\n  a:\n    runs-on: ubuntu-latest\n    container: python:3\n", "", ""},
		{"jobs:\n  a:\n    runs-on: ubuntu-latest\n    uses: ./x.yml\n", "", ""},
		{"jobs: [", "", ""},
		{"", "", ""},
	} {
		req := &pb.SubmitPipelineRequest{
			Source:  &pb.PipelineSource{Text: []byte(test.before + test.after)},
			Options: &stepmuxv1.Job{Env: map[string]string{"GITEA_ACTIONS": "true"}},
		}
		cfg.adapt(req)
		require.Equal(t, map[string]string{"A": "1", "GITEA_ACTIONS": "true"}, req.GetOptions().GetEnv())
		require.Equal(t, test.has != "", req.GetInImage(), test)
		require.Equal(t, test.before+test.has+test.after, string(req.GetSource().GetText()))
	}
}
