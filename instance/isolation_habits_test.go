package instance_test

import (
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// needsIsolation is a script that succeeds only with isolation.
const needsIsolation = `grep -q __init /proc/1/cmdline`

// habits are things that jobs do. They go on working with isolation. Those of slow programs begin with slow.
var habits = []struct{ name, part, text string }{
	{"own processes are there", "", needsIsolation + `
		sleep 60 & until grep -q sleep /proc/$!/cmdline; do sleep 0.01; done; kill $! && ps -e >/dev/null`},
	{"temporary files", "", `f=$(mktemp); echo a >$f
		d=$(TMPDIR=/var/tmp mktemp -d); [ -s $f ] && [ -d $d ]; [ -w /tmp ]`},
	{"a home to write to", "", `echo a >~/a-file; mkdir -p ~/.cache/tool; echo b >~/.cache/tool/b; rm ~/a-file`},
	{"shared memory in /dev/shm", "", `echo a >/dev/shm/a; [ -s /dev/shm/a ]`},
	{"System V shared memory", "/usr/bin/ipcmk", `
		id=$(ipcmk -M 4096 | sed 's/.*: //'); ipcs -m -i $id | grep -q cuid; ipcrm -m $id`},
	{"a debugger on its own child", "", `sleep 60 & $TOOL ptrace $! | grep LOOT; kill -9 $!`},
	{"strace on its own child", "/usr/bin/strace", `
		strace -f -o trace sh -c '/bin/true; exit 3' || [ $? = 3 ]; [ "$(grep -c 'execve(' trace)" = 2 ]`},
	{slow + "gdb on its own child", "/usr/bin/gdb", ` gdb -batch -nx -ex run --args sh -c 'exit 3' >said
		grep -q 'exited with code 03' said`},
	{"a terminal", "/usr/bin/script", `script -qec 'test -t 1 && tty' said </dev/null; grep -q /dev/pts/0 said`},
	{"inotify", "", `$TOOL inotify $HOME >watched &
		until grep -q watching watched; do sleep 0.01; done; touch ~/b-file; wait $!`},
	{"a namespace of its own", "/usr/bin/unshare", `unshare -Ur sh -c '[ $(id -u) = 0 ]'`},
	{"a PID namespace of its own", "/usr/bin/unshare", `[ "$(unshare -Urpmf --mount-proc sh -c 'echo $$')" = 1 ]`},
	{"a mount of its own", "/usr/bin/unshare", `unshare -Urm sh -c 'mount -t tmpfs t /mnt && touch /mnt/a'`},
	{"ssh-agent", "/usr/bin/ssh-agent", `
		eval $(ssh-agent) >/dev/null; ssh-add -l | grep -q 'no identities'; ssh-agent -k`},
	{"ssh reads its configuration", "/usr/bin/ssh", `ssh -G host | grep -q ^hostname`},
	{"git", "/usr/bin/git", `git init -q repo; cd repo; git config user.email a@b; git config user.name a
		echo a >a; git add a; git commit -qm a; cd ..; git clone -q "file://$PWD/repo" copy; [ -s copy/a ]`},
	{"git over https", "/usr/bin/git", `git clone -q $HTTPS copy; [ -s copy/a ]`},
	{"git over ssh", "/usr/bin/git", `git clone -q $SSH copy; [ -s copy/a ]`},
	{"a tree of processes by pipes", "", `[ "$(seq 1000 | xargs -P 4 -n 100 echo | tr ' ' '\n' | wc -l)" = 1000 ]`},
	{"locks", "/usr/bin/flock", `flock /tmp/lock true; flock ~/lock true`},
	{"a compiler", "/usr/bin/gcc", `echo 'int main(void){return 0;}' >a.c; gcc -o a a.c; ./a`},
	{slow + "npm", "/usr/bin/npm", `mkdir dep; echo '{"name":"dep","version":"1.0.0"}' >dep/package.json
		echo 'module.exports = 7' >dep/index.js; echo '{"name":"a","version":"1.0.0"}' >package.json
		npm install --offline --no-audit --no-fund --install-links ./dep; node -e 'process.exit(require("dep") - 7)'`},
	// With the flags of this binary, so that nothing of the standard library is compiled.
	{slow + "go test", "", `printf 'module m\n' >go.mod
		printf 'package m\nimport "testing"\nfunc TestA(*testing.T) {}\n' >a_test.go; $GO test -vet=off $GOTESTFLAGS .`},
}

// slow begins the name of a habit that is tried at one level.
const slow = "slow: "

// goEnv returns the environment of a job that calls $GO test $GOTESTFLAGS.
func goEnv(t *testing.T) map[string]string {
	t.Helper()
	path, err := exec.LookPath("go")
	require.NoError(t, err)
	cache, err := exec.Command(path, "env", "GOCACHE").Output()
	require.NoError(t, err)
	var flags []string
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Value == "true" && (s.Key == "-race" || s.Key == "-trimpath") {
				flags = append(flags, s.Key)
			}
		}
	}
	return map[string]string{
		"GO": path, "GOCACHE": strings.TrimSpace(string(cache)), "GOTESTFLAGS": strings.Join(flags, " "),
		"GOTOOLCHAIN": "local", "CGO_ENABLED": os.Getenv("CGO_ENABLED"),
	}
}

// gitServers serves a repository by https and by the site's sshd. It returns the environment of a job that clones both,
// $HTTPS and $SSH.
func (s *site) gitServers(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	text := `git init -q; echo a >a; git add a; git -c user.name=a -c user.email=a@b commit -qm a; git update-server-info`
	cmd := exec.Command("sh", "-ec", text)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	server := httptest.NewTLSServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	certificate := filepath.Join(s.home, "certificate.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}
	require.NoError(t, os.WriteFile(certificate, pem.EncodeToMemory(block), 0o600))
	key, known := filepath.Join(s.home, "key"), filepath.Join(s.home, "known_hosts")
	runnertest.Copy(t, s.IdentityFile, key)
	runnertest.Copy(t, s.KnownHosts, known)
	return map[string]string{
		"HTTPS": server.URL + "/.git", "GIT_SSL_CAINFO": certificate, "SSH": "ssh://" + s.User + "@" + s.Addr + dir,
		"GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o IdentitiesOnly=yes -o UserKnownHostsFile=" + known + " -i " + key,
	}
}

func TestHabitsOfJobsWorkWithIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []vmconfig.Level{vmconfig.Processes, vmconfig.Private} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, level, connector.Relay)
			env := goEnv(t)
			env["TOOL"] = s.tool(t)
			maps.Copy(env, s.gitServers(t))
			for _, h := range habits {
				if level == vmconfig.Private && strings.HasPrefix(h.name, slow) {
					continue
				}
				t.Run(h.name, func(t *testing.T) {
					if h.part != "" {
						sshtest.RequirePart(t, h.name, h.part)
					}
					out, err := s.run(t, "b1", "set -e\n"+h.text, env)
					require.NoError(t, err, "%s", out)
				})
			}
			require.NoError(t, s.p.Close())
			s.requireClean(t)
		})
	}
}

func TestWorkDirectoryBelowAHiddenOneIsVisible(t *testing.T) {
	t.Parallel()
	s := newSite(t, vmconfig.Processes, connector.Relay)
	job := script(needsIsolation + ` && pwd && echo text >file && ls /tmp`)
	out := &sshtest.Log{}
	for _, hidden := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		job.WorkDir = filepath.Join(dirIn(t, hidden), "work")
		require.NoError(t, build(sshtest.Within(t), s.p, "b1", job, out), "%s", out)
		require.FileExists(t, filepath.Join(job.WorkDir, "file"))
		require.Contains(t, out.String(), job.WorkDir+"\n")
		require.NotContains(t, out.String(), filepath.Base(s.tool(t)))
	}

	// A place of another build is refused.
	job.WorkDir = filepath.Join(s.tmp, "gitlab-runner-steps", "b9", "work")
	err := build(sshtest.Within(t), s.p, "b2", job, out)
	require.Error(t, err)
	// A serve that starts may have removed it, as of a dead one.
	require.Regexp(t, "belongs to another build|b9: no such file or directory", err.Error())
	require.NoError(t, os.RemoveAll(filepath.Join(s.tmp, "gitlab-runner-steps", "b9")))
}

func TestHomeBelowTmpIsTheBuildsToo(t *testing.T) {
	t.Parallel()
	s := newSite(t, vmconfig.Processes, connector.Relay)
	home := dirIn(t, "/tmp")
	out, err := s.run(t, "b1", `cd; `+needsIsolation+` && export HOME=`+home+`; ls -d `+home, nil)
	require.Error(t, err, "another directory of /tmp is hidden: %s", out)

	s = newSite(t, vmconfig.Processes, connector.Relay, "HOME="+home)
	job := needsIsolation + ` && [ $HOME = ` + home + ` ] && echo kept >~/file && ! echo evil >>~/.bashrc`
	out, err = s.run(t, "b1", job, nil)
	require.NoError(t, err, "%s", out)
	require.FileExists(t, filepath.Join(home, "file"))
}

func TestPrivateHomeKeepsNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, vmconfig.Private, connector.Relay)
	require.NoError(t, os.WriteFile(filepath.Join(s.home, "before"), []byte("text"), 0o600))
	job := needsIsolation + ` && echo a >~/after && echo evil >>~/.bashrc && echo evil >~/.gitconfig`
	out, err := s.run(t, "b1", job, nil)
	require.NoError(t, err, "%s", out)
	for _, name := range []string{"after", ".bashrc", ".gitconfig"} {
		require.NoFileExists(t, filepath.Join(s.home, name))
	}
	out, err = s.run(t, "b2", `rm ~/before && mkdir ~/dir && mv ~/dir ~/dir2 && chmod 700 ~/.cache && rm -rf ~/dir2`, nil)
	require.NoError(t, err, "%s", out)
	out, err = s.run(t, "b3", `ls -A ~; [ ! -e ~/after ] && [ ! -e ~/.gitconfig ]`, nil)
	require.NoError(t, err, "%s", out)
	if systems, err := os.ReadFile("/proc/filesystems"); err == nil && strings.Contains(string(systems), "\toverlay\n") {
		require.Contains(t, out, "before", "the home is a view of the user's")
	}
}

// An overlay cannot have a path with a comma, as some machines can have none at all.
func TestPrivateHomeIsEmptyWithoutAnOverlay(t *testing.T) {
	t.Parallel()
	home := filepath.Join(newHome(t), "a,b")
	require.NoError(t, os.MkdirAll(home, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, "before"), nil, 0o600))
	s := newSite(t, vmconfig.Private, connector.Relay, "HOME="+home)
	out, err := s.run(t, "b1", needsIsolation+` && [ $HOME = '`+home+`' ] && [ ! -e ~/before ] && echo a >~/after`, nil)
	require.NoError(t, err, "%s", out)
	require.NoFileExists(t, filepath.Join(home, "after"))
}

// A program that its user cannot read had no isolation: the files in /proc of its inits belonged to root.
func TestIsolationWorksWithAProgramThatItsUserCannotRead(t *testing.T) {
	t.Parallel()
	for _, level := range []vmconfig.Level{vmconfig.Auto, vmconfig.Processes, vmconfig.Private} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, level, connector.Relay)
			require.NoError(t, os.Chmod(s.runner[0], 0o111))
			for _, id := range []string{"b1", "b2"} {
				out, err := s.run(t, id, needsIsolation+` && ! ls /proc/1/fd/ && ! (exec 3</proc/1/mem) && touch ~/a`, nil)
				require.NoError(t, err, "%s", out)
			}
		})
	}
}

// On Fedora, PATH begins with ~/.local/bin, where a job can put a program. serve ran it as sudo, outside the isolation.
func TestAutoRunsNoSudoOfAJob(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(newHome(t), "bin")
	require.NoError(t, os.Mkdir(bin, 0o700))
	s := newSite(t, vmconfig.Auto, connector.Relay, "PATH="+bin+":/usr/bin:/bin")
	ran := filepath.Join(bin, "ran")
	out, err := s.run(t, "b1", "printf '#!/bin/sh\\nid >>"+ran+"\\n' >"+bin+"/sudo; chmod +x "+bin+"/sudo", nil)
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.RemoveAll(filepath.Join(s.home, ".cache/stepmux/sudo"))) // the answer of b1 is a day old
	out, err = s.run(t, "b2", needsIsolation, nil)
	require.NoError(t, err, "%s", out)
	require.NoFileExists(t, ran)
}

// The program that fetches steps ran it outside the isolation.
func TestNoGitOfAJobFetchesSteps(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	repo := fetchtest.NewRepository(t, filepath.Join(root, "c", "echo"))
	repo.Git("tag", "v1", repo.Commit("main", fetchtest.Texts(map[string]string{
		"steps/step.yml": "spec: {}\n---\nexec: {command: [echo, fetched]}\n",
	})))
	server := fetchtest.ServeGit(t, root)
	bin := filepath.Join(newHome(t), "bin")
	require.NoError(t, os.Mkdir(bin, 0o700))
	s := newSite(t, vmconfig.Processes, connector.Relay, "PATH="+bin+":/usr/bin:/bin")
	ran := filepath.Join(bin, "ran")
	out, job := &sshtest.Log{}, connector.Job{Job: &stepmuxv1.Job{Steps: []byte(`run:
  - {name: plant, script: "printf '#!/bin/sh\nid >>` + ran + `\n' >` + bin + `/git; chmod +x ` + bin + `/git"}
  - {name: fetch, step: "` + server.URL + `/c/echo@v1"}
`)}}
	require.NoError(t, build(sshtest.Within(t), s.p, "b1", job, out), "%s", out)
	require.Contains(t, out.String(), "fetched\n")
	require.FileExists(t, filepath.Join(bin, "git"))
	require.NoFileExists(t, ran)
}

// Symptom: a job took the right to enter a directory from its user. The next build could not look at the login files
// there, took them for missing, and its job gave the right back and wrote them.
func TestAJobThatClosesADirectoryOfLoginFilesOpensThemForNoBuild(t *testing.T) {
	t.Parallel()
	s := newSite(t, vmconfig.Processes, connector.Relay)
	for i, mode := range []string{"000", "500"} {
		out, err := s.run(t, fmt.Sprintf("a%d", i), needsIsolation+` && cd && chmod `+mode+` .config .local`, nil)
		require.NoError(t, err, "%s", out)
		out, err = s.run(t, fmt.Sprintf("b%d", i), `cd; chmod 700 .config .local; mkdir -p .config/systemd/user
			echo evil >.config/systemd/user/evil.service; ! echo evil >.config/bash_completion`, nil)
		require.NoError(t, err, "%s", out)
		require.NoFileExists(t, filepath.Join(s.home, ".config/systemd/user/evil.service"))
	}
}
