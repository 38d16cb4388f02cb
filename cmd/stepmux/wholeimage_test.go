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

// The user of a container is root. Another user could neither read the artifacts of the job nor remove its directory,
// and git refuses a repository of another user.
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
git: {script: ['stat -c "the .git is of %u" .git', /usr/bin/git status --porcelain, /usr/bin/git describe --tags]}
`), 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(home, ".github/workflows"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".github/workflows/w.yml"), []byte(`
on: push
jobs:
  g: {runs-on: x, container: "busybox:1", steps: [{run: /usr/bin/git describe --tags, shell: sh}]}
`), 0o644))
	reach := func(path string, mode os.FileMode) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(path, mode))
		t.Cleanup(func() { _ = os.Chmod(path, info.Mode().Perm()) })
	}
	reach(d.Socket, 0o666)
	reach(filepath.Dir(d.Socket), 0o755)
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = home
		cmd.Env = []string{
			"HOME=" + home, "TMPDIR=" + temp, "DOCKER_HOST=unix://" + d.Socket, "PATH=" + os.Getenv("PATH"),
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@x.test", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@x.test",
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	run("git", "init", "-q")
	run("git", "add", ".gitlab-ci.yml")
	run("git", "commit", "-q", "-m", "one")
	run("git", "tag", "v1")
	// The image has no git: that of this machine is in its place.
	withGit := []string{"--in-image"}
	for _, dir := range []string{"/usr", "/lib", "/lib64"} {
		withGit = append(withGit, "--volume", dir+":"+dir+":ro")
	}
	out := run(own, append([]string{"local", ".gitlab-ci.yml"}, withGit...)...)
	require.Regexp(t, `(?m)^b \| made$`, out)
	require.Regexp(t, `(?m)^git \| the .git is of 65534$`, out)
	require.Regexp(t, `(?m)^git \| v1$`, out)
	require.Regexp(t, `(?m)^git \| \?\? .github/$`, out)
	out = run(own, append([]string{"run", ".gitlab-ci.yml"}, withGit...)...) // the container unpacks the files itself
	require.Regexp(t, `(?m)^git \| the .git is of 0$`, out)
	require.Regexp(t, `(?m)^git \| v1$`, out)
	out = run(own, append([]string{"local", ".github/workflows/w.yml"}, withGit...)...)
	require.Regexp(t, `(?m)^v1$`, out)
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}
