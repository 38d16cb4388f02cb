package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// The user of a container is root. A user who is not root could neither read the artifacts of the job nor remove its
// directory.
func TestFilesOfAJobsContainerAreThoseOfTheUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("part missing: root, which runs a command as another user")
	}
	dockerScripts.Lock()
	t.Cleanup(dockerScripts.Unlock)
	d := dockertest.Start(t)
	const nobody = 65534
	dir := t.TempDir()
	for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		require.NoError(t, os.Chmod(at, 0o755))
	}
	program, err := os.ReadFile(runnertest.Manager(t))
	require.NoError(t, err)
	own := filepath.Join(dir, "stepmux")
	require.NoError(t, os.WriteFile(own, program, 0o755))
	home, temp := filepath.Join(dir, "home"), filepath.Join(dir, "temp")
	for _, name := range []string{home, temp} {
		require.NoError(t, os.Mkdir(name, 0o700))
		require.NoError(t, os.Chown(name, nobody, nobody))
	}
	require.NoError(t, os.WriteFile(filepath.Join(home, ".gitlab-ci.yml"), []byte(`
default: {image: "busybox:1"}
a: {stage: build, script: [umask 077, mkdir -p out/deep, echo made > out/deep/f], artifacts: {paths: [out]}}
b: {script: [cat out/deep/f, stat -c 'by %u' out/deep/f]}
`), 0o644))
	reach := func(path string, mode os.FileMode) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(path, mode))
		t.Cleanup(func() { _ = os.Chmod(path, info.Mode().Perm()) })
	}
	reach(d.Socket, 0o666)
	reach(filepath.Dir(d.Socket), 0o755)
	cmd := exec.Command(own, "local", ".gitlab-ci.yml", "--in-image")
	cmd.Dir = home
	cmd.Env = []string{
		"HOME=" + home, "TMPDIR=" + temp, "DOCKER_HOST=unix://" + d.Socket, "PATH=" + os.Getenv("PATH"),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `(?m)^b \| made$`, string(out))
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}
