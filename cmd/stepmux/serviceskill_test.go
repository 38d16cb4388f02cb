package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/npmtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// bytesIn returns the size of the files in a directory.
func bytesIn(t *testing.T, dir string) (size int64) {
	t.Helper()
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, name := range names {
		if info, err := name.Info(); err == nil { // it may have gone
			size += info.Size()
		}
	}
	return size
}

// clientsProject returns the directory of a project with the workflow w.yml: a job uploads an artifact of size bytes
// with the real client, and another one downloads it.
func clientsProject(t *testing.T, size int64) string {
	t.Helper()
	packages, err := npmtest.Install(t.TempDir(), npmtest.Clients)
	if err != nil {
		t.Skip(err)
	}
	project := t.TempDir()
	files, err := npmtest.Files()
	require.NoError(t, err)
	files[".github/workflows/w.yml"] = fmt.Sprintf(`
on: push
jobs:
  make: {runs-on: x, steps: [{uses: ./act, with: {packages: %s, do: "upload a %d"}}]}
  use: {runs-on: x, needs: make, steps: [{uses: ./act, with: {packages: %s, do: "list\ndownload a %d"}}]}
`, packages, size, packages, size)
	for name, text := range files {
		path := filepath.Join(project, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return project
}

// A manager is killed while the real client uploads an artifact: the job goes on, and nothing is stored half.
//
//stepmux:faults users | A manager dies while an action uploads an artifact: the upload goes on, and is whole
func TestUploadsOfActionsOutliveAManagerThatIsKilled(t *testing.T) {
	dir := t.TempDir()
	const size = 24_000_000
	project := clientsProject(t, size)
	file, _ := newInventory(t, dir, 1)
	state := filepath.Join(dir, "state")
	p := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: bound}
	p.args = []string{"manager", "--state", state, "--inventory", file, "--socket", p.socket, "--log-level", "info"}
	defer func() {
		if t.Failed() {
			t.Logf("the log of the managers:\n%s", lastOf(&p.stderr))
		}
	}()
	p.start()
	defer p.kill()
	submit := exec.Command(runnertest.Manager(t), "submit", "--manager", p.socket, ".github/workflows/w.yml")
	submit.Dir = project
	out, err := submit.CombinedOutput()
	require.NoError(t, err, "%s", out)
	lines := strings.Fields(string(out))
	id := lines[len(lines)-1]
	conn, err := pb.Dial(p.socket)
	require.NoError(t, err)
	defer conn.Close()
	client := pb.NewManagerClient(conn)
	got := int64(0)
	require.Eventually(t, func() bool { // it has got a part, or is complete
		got = bytesIn(t, filepath.Join(state, "uploads"))
		return got > size/5 || bytesIn(t, filepath.Join(state, "projects")) > size
	}, bound, time.Millisecond)
	p.kill()
	p.start()
	last, err := followPipeline(t.Context(), client, id, true, func(*pb.Pipeline) error { return nil })
	require.NoError(t, err)
	logs := ""
	for _, j := range last.GetJobs() {
		text := &strings.Builder{}
		_, err := followLog(t.Context(), client, j.GetBuild(), true, text, text)
		require.NoError(t, err)
		logs += text.String()
	}
	require.Equal(t, "success", last.GetStatus(), logs)
	require.Contains(t, logs, "uploaded a true\n")
	require.Contains(t, logs, "all: a\n")
	require.Contains(t, logs, "downloaded a true\n")
	left, err := os.ReadDir(filepath.Join(state, "uploads"))
	require.NoError(t, err)
	require.Empty(t, left)
	t.Logf("killed with %d of %d bytes of the upload", got, size)
}
