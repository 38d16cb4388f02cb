package remote

import (
	"archive/zip"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// hello is a step that says where it runs.
const hello = "spec: {}\n---\nexec: {command: [sh, -c, 'echo hello from $PWD']}\n"

// layOut makes a work directory in parent with a step, an archive with a step, and an action.
func layOut(t *testing.T, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "stepmux-test-") //nolint:usetesting // its place matters
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rmtree.Remove(dir)) })
	for name, text := range map[string]string{
		"d/step.yml": hello, "file.yml": hello,
		"prog":         "#!/bin/sh\necho hello from $PWD\n",
		"a/action.yml": "runs:\n  using: composite\n  steps: [{run: 'echo hello from $PWD', shell: sh}]\n",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o700)) // one is a program
	}
	file, err := os.Create(filepath.Join(dir, "steps.zip"))
	require.NoError(t, err)
	defer file.Close()
	w := zip.NewWriter(file)
	part, err := w.Create("z/step.yml")
	require.NoError(t, err)
	_, err = part.Write([]byte(hello))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return dir
}

// Symptom: with isolation, a job with a work directory below /tmp failed if a file in it was read before its first
// command: "it has neither func.yml nor step.yml". A script step before it made the difference.
//
//stepmux:faults users | A file of a work directory below `/tmp`, `/var/tmp` or `/dev/shm` is not there for what the
//stepmux:more step runner itself reads before the first command: local steps, zip files, actions
//stepmux:with remote/job/service.TestNeighboursCasesHoldWithIsolation
//stepmux:with remote/proc.TestABuildsDirectoryMayBeBelowAnyHiddenOne, remote/proc.TestInitThatIsReplacedKeepsItsLevel
func TestAFileOfAHiddenWorkDirectoryIsReadBeforeTheFirstCommand(t *testing.T) {
	t.Parallel()
	elsewhere, err := os.Getwd()
	require.NoError(t, err)
	cache := fetchtest.CacheDir(t)
	socket := remotetest.SocketIn(t, remotetest.ShortTemp(t), "b1")
	s := launchServe(t, socket, func(s *served) {
		s.cmd.Env = append(os.Environ(), remotetest.RoleVar+"=isolated", "XDG_CACHE_HOME="+cache)
	})
	s.waitReady(t)
	client := clientOf(t, socket)
	runScript(t, client, "first", "true")
	if first := finalState(t, client, "first"); first.GetIsolation() != string(vmconfig.Processes) {
		t.Skip("part missing: namespaces: ", first.GetIsolationReason())
	}
	for i, base := range []string{"/tmp", "/var/tmp", "/dev/shm", elsewhere} {
		for name, steps := range map[string]string{
			"directory": "- step: ./d\n",
			"file":      "- step: ./file.yml\n",
			"zip":       "- step: zip+./steps.zip#dir=z\n",
			"action":    "- action: ./a\n",
			"variable":  "- script: '[ \"$(cat $FILE)\" = text ] && echo hello from $PWD'\n  env: {FILE: '${{vars.FILE}}'}\n",
			"program":   "- {exec: {command: [./prog]}}\n",
		} {
			t.Run(base+"/"+name, func(t *testing.T) {
				dir := layOut(t, base)
				id := fmt.Sprintf("%s-%d", name, i)
				_, err := client.Run(t.Context(), &pb.RunRequest{
					Id: id, WorkDir: dir, Trace: true, Job: &pb.Job{
						Steps: []byte(steps), Variables: []*pb.Variable{{Key: "FILE", Value: "text", File: true}},
					},
				})
				require.NoError(t, err)
				stdout, stderr := readOutput(t, client, id)
				require.Equal(t, "hello from "+dir+"\n", stdout, "%s\n%s", stderr, finalState(t, client, id).GetMessage())
			})
		}
	}
}
