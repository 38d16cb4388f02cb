package kubernetes_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/actionservices"
	"github.com/stepmux/stepmux/internal/testing/kubetest"
	"github.com/stepmux/stepmux/internal/testing/npmtest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// An action in a pod reaches its services over the exec of the build.
func TestActionsInAPodReachTheirServices(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("part missing: node")
	}
	dir := t.TempDir()
	files, err := npmtest.Files()
	require.NoError(t, err)
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	s := kubetest.Serve(t)
	c := connect(t, s, start(t, config(t, load(t, s))))
	server := actionservices.New(actionservices.Config{Dir: t.TempDir()})
	defer server.Close()
	log := &lines{}
	steps := []byte(`[{"name":"a","step":"builtin://github/job","inputs":{"job":"a","workflow":"` +
		`on: push\njobs: {a: {steps: [{uses: ./act, with: {do: \"keep a one\\nget a\\nlist\"}}]}}"}}]`)
	result, err := c.Execute(sshtest.Within(t), connector.Job{
		Job: &stepmuxv1.Job{Steps: steps, StepsFile: "a.json", Generated: true}, WorkDir: dir,
		Services: func() (*connector.Services, func(), error) {
			token, end := server.Begin(actionservices.Job{Run: "1", Name: "a"})
			door := server.Door(nil)
			return &connector.Services{Token: token, Take: door.Take}, func() {
				door.Close()
				end()
			}, nil
		},
	}, log)
	require.NoError(t, err)
	require.Equal(t, connector.Succeeded, result.Status, "%s\n%s", result.Message, log.text.String())
	require.Contains(t, log.text.String(), "kept a\na is one\nall: a\n")
}
