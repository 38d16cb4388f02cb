package instance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// firstBuildID is the first of the ids of builds. No user of the machine has them.
const firstBuildID = 2100000

// rootSite is a VM whose login is root, with programs that every user can start.
func rootSite(t *testing.T) *vm {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("part missing: only root can run builds as another user")
	}
	v := newVM(t, sshtest.OpenSSH(t))
	require.NoError(t, os.Chmod(v.tmp, 0o777|os.ModeSticky))
	dir, err := os.MkdirTemp("", "stepmux-programs-") //nolint:usetesting // t.TempDir is closed to other users
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	for _, name := range []string{filepath.Base(v.runner[0]), wire.FetchProgram} {
		runnertest.Copy(t, filepath.Join(filepath.Dir(v.runner[0]), name), filepath.Join(dir, name))
		require.NoError(t, os.Chmod(filepath.Join(dir, name), 0o755))
	}
	v.runner = []string{filepath.Join(dir, filepath.Base(v.runner[0]))}
	return v
}

// as returns a provider of the VM with the build user.
func (v *vm) as(t *testing.T, user, level string, route connector.Route) *instance.Provider {
	t.Helper()
	return v.provider(t, 3, func(c *instance.Config, in *instance.Instance) {
		c.Route, in.BuildUser, in.Isolation = route, user, vmconfig.Level(level)
	})
}

// whoAmI prints what a build of a user sees of itself.
const whoAmI = `set -e
echo "ids $(id -u) $(id -g) $(id -G)"; echo "names $USER $LOGNAME"; echo "runtime ${XDG_RUNTIME_DIR:-none}"
echo "owners $(stat -c %u . "$HOME" | tr '\n' ' ')"
touch file "$HOME/file" "$(mktemp -d)/file"
echo "caps $(sed -n 's/^Cap[PEA].*:\t0*//p' /proc/self/status | tr '\n' ' ')"
! cat /etc/shadow 2>/dev/null
`

func TestBuildsOfARootLoginRunAsUsersOfARange(t *testing.T) {
	v := rootSite(t)
	for i, level := range []string{"processes", "private", "off"} {
		route := isolationRoutes[i]
		t.Run(level+"/"+string(route), func(t *testing.T) {
			first := firstBuildID + 10*i
			p := v.as(t, fmt.Sprintf("%d-%d", first, first+1), level, route)
			name := fmt.Sprintf("%s-%s", level, route)
			ctx, stop := context.WithCancel(sshtest.Within(t))
			held, holding := &sshtest.Log{}, make(chan error, 1)
			go func() {
				holding <- build(ctx, p, name+"-1", script(whoAmI+"echo started; exec sleep 600"), held)
			}()
			held.Await(t, "started")
			require.Contains(t, held.String(), userOfRange(first))

			out := &sshtest.Log{}
			require.NoError(t, build(ctx, p, name+"-2", script(whoAmI), out), out)
			require.Contains(t, out.String(), userOfRange(first+1)) // the first one is taken
			out = &sshtest.Log{}
			require.NoError(t, build(ctx, p, name+"-3", script(whoAmI), out), out)
			require.Contains(t, out.String(), userOfRange(first+1)) // it was given back

			none := v.as(t, fmt.Sprintf("%d-%d", first, first), level, route)
			err := build(ctx, none, name+"-4", script(whoAmI), &sshtest.Log{})
			requireReason(t, err, instance.RunnerSystemFailure, 3)
			require.ErrorContains(t, err, "each id of the range is in use by a build")
			stop()
			require.Error(t, <-holding)
		})
	}
	require.Eventually(t, func() bool { // those of sleep end with their serves
		dirs, err := filepath.Glob(v.tmp + "/gitlab-runner-steps*/*")
		return err == nil && len(dirs) == 0
	}, sshtest.Bound, 10*time.Millisecond)
}

// userOfRange is what whoAmI prints for an id that the machine does not know.
func userOfRange(id int) string {
	return fmt.Sprintf("ids %[1]d %[1]d %[1]d\nnames %[1]d %[1]d\nruntime none\nowners %[1]d %[1]d \ncaps    \n", id)
}

// Without isolation an earlier build with the id may have left a process that hides from its ends.
func TestWhatAnEarlierBuildOfTheIDLeftIsEnded(t *testing.T) {
	v := rootSite(t)
	for _, level := range []string{"off", "auto"} { // the isolation of auto may fail
		left := exec.CommandContext(t.Context(), "sleep", "600")
		id := firstBuildID - 2
		left.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}}
		require.NoError(t, left.Start())
		p := v.as(t, fmt.Sprintf("%d-%d", id, id), level, connector.Relay)
		require.NoError(t, build(sshtest.Within(t), p, "1", script("true"), &sshtest.Log{}))
		require.ErrorContains(t, left.Wait(), "killed")
	}
}

// The kernel keeps the keyrings of a user without processes: the next build of the id could read the keys.
func TestKeysOfAnEarlierBuildOfTheIDAreGone(t *testing.T) {
	v := rootSite(t)
	program := filepath.Join(filepath.Dir(v.runner[0]), toolName)
	runnertest.Copy(t, os.Args[0], program)
	require.NoError(t, os.Chmod(program, 0o755))
	p := v.as(t, fmt.Sprintf("%d-%d", firstBuildID, firstBuildID), "off", connector.Relay) // isolation hides the tool
	name := filepath.Base(v.tmp)
	out := &sshtest.Log{}
	add := program + " key-add " + name + "; " + program + " key-find " + name
	require.NoError(t, build(sshtest.Within(t), p, "1", script(add), out))
	if !strings.Contains(out.String(), loot) {
		t.Skip("part missing: this kernel has no keys")
	}
	out = &sshtest.Log{}
	require.NoError(t, build(sshtest.Within(t), p, "2", script(program+" key-find "+name), out))
	require.NotContains(t, out.String(), loot)
}

// attackRoot tries to leave jobs of cron and at, and to change what ssh-keysign reads, which is setuid root.
const attackRoot = `for d in cron at; do touch /var/spool/$d/job 2>/dev/null && echo "left in $d"; done || :
f=/etc/ssh/ssh_config.d/test.conf
{ chmod u+w $f && echo EnableSSHKeysign yes >>$f; } 2>/dev/null && /usr/lib/openssh/ssh-keysign </dev/null 2>&1 || :
`

// namedVar makes the test binary run TestBuildsOfARootLoginRunAsAUserByName on a machine of its own.
const namedVar = "STEPMUX_TEST_NAMED_USER"

// The programs are put on the VM, and the build outlives its link. The machine is this one in a mount namespace, with
// one user more and nothing in /var/lib. Everybody may write jobs of cron and at there, as crontab and at may.
//
// Symptom: at the level processes a job could leave one, which runs outside the isolation, and could have ssh-keysign
// sign with the keys of the machine.
func TestBuildsOfARootLoginRunAsAUserByName(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("part missing: only root can run builds as another user")
	}
	const id, group = firstBuildID - 10, firstBuildID - 11
	home := os.Getenv(namedVar)
	if home == "" {
		runNamed(t, id, group)
		return
	}
	v := newVM(t, sshtest.OpenSSH(t))
	require.NoError(t, os.Chmod(v.tmp, 0o777|os.ModeSticky))
	v.runner = []string{"no-such-runner"}
	packed, err := runnertest.Packed()
	require.NoError(t, err)
	end := program.PackedBinary(runtime.GOOS+"/"+runtime.GOARCH, func() (io.ReadCloser, error) { return os.Open(packed) })
	proxy := sshtest.Proxy(t, v.Addr)
	for level, left := range map[string]string{"processes": "", "off": "left in cron\nleft in at\n"} {
		t.Run(level, func(t *testing.T) {
			p := v.via(t, proxy.Addr()).provider(t, 1, func(c *instance.Config, in *instance.Instance) {
				c.Bootstrap = []*program.Binary{end}
				in.BuildUser, in.Isolation = "builder", vmconfig.Level(level)
			})
			e, log := lingers(t, p, "build-"+level, time.Minute)
			_, err = e.Connect(t.Context())
			require.NoError(t, err)
			file := filepath.Join(home, level)
			ended := make(chan error, 1)
			go func() {
				text := whoAmI + attackRoot + "echo begun; until [ -e " + file + " ]; do sleep 0.01; done; exit 7"
				ended <- e.Execute(t.Context(), script(text))
			}()
			log.Await(t, "begun\n")
			proxy.Cut()
			log.Await(t, "step runner: the connection to the VM is back after ")
			require.NoError(t, os.WriteFile(file, nil, 0o600))
			requireReason(t, <-ended, instance.ScriptFailure, 7)
			require.Equal(t, fmt.Sprintf("ids %[1]d %[2]d %[2]d\nnames builder builder\nruntime none\nowners %[1]d %[1]d \n"+
				"caps    \n", id, group)+left+"begun\n", jobLines(log))
			require.NoError(t, e.Cleanup(t.Context()))
			require.Empty(t, e.Left())
			require.Equal(t, vmconfig.Level(level), e.Isolation().Level)
			v.requireClean(t)
		})
	}
}

// runNamed runs the test on that machine.
func runNamed(t *testing.T, id, group int) {
	sshtest.RequirePart(t, "util-linux", "/usr/bin/unshare")
	home := dirIn(t, "/home")
	require.NoError(t, os.Chown(home, id, group))
	passwd, err := os.ReadFile("/etc/passwd")
	require.NoError(t, err)
	users := filepath.Join(t.TempDir(), "passwd")
	text := fmt.Sprintf("%sbuilder:x:%d:%d::%s:/bin/sh\n", passwd, id, group, home)
	require.NoError(t, os.WriteFile(users, []byte(text), 0o644)) // as the machine's
	cmd := exec.CommandContext(sshtest.Within(t), "unshare", "-m", "sh", "-ec", `mount --bind "$1" /etc/passwd
		mount -t tmpfs tmpfs /var/lib; mount -t tmpfs tmpfs /var/spool; mkdir -m 1777 /var/spool/cron /var/spool/at
		mount -t tmpfs tmpfs /etc/ssh/ssh_config.d; echo >/etc/ssh/ssh_config.d/test.conf; shift; exec "$@"`,
		"sh", users, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), namedVar+"="+home,
		runnertest.DirVar+"="+filepath.Dir(runnertest.Command(t)[0])) // nothing is built there
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
}

// Scripts of Run have no step runner, but the same users.
func TestScriptsOfARootLoginRunAsTheBuildUser(t *testing.T) {
	v := rootSite(t)
	for _, level := range []string{"processes", "off"} {
		p := v.as(t, fmt.Sprintf("%d-%d", firstBuildID-1, firstBuildID-1), level, connector.Relay)
		out := &sshtest.Log{}
		e := p.Executor(instance.Build{ID: level, Log: out})
		require.NoError(t, e.Prepare(sshtest.Within(t)))
		require.NoError(t, e.Run(sshtest.Within(t), []byte(whoAmI)), out)
		require.NoError(t, e.Cleanup(t.Context()))
		require.Contains(t, out.String(), userOfRange(firstBuildID-1))
	}
}

// The VM's end is that of an ordinary user here, whose namespace maps no group but its own.
func TestDockerByGroupWorksWithIsolation(t *testing.T) {
	d := dockertest.Start(t)
	sshtest.RequirePart(t, "perl", "/usr/bin/perl")
	v := rootSite(t)
	const id, group = firstBuildID - 20, firstBuildID - 21
	dir := dirIn(t, "/run")
	socket, home := filepath.Join(dir, "docker.sock"), filepath.Join(dir, "home")
	require.NoError(t, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(socket, nil, 0o600), os.Mkdir(home, 0o700),
		os.Chown(home, id, id), unix.Mount(d.Socket, socket, "", unix.MS_BIND, "")))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(socket, unix.MNT_DETACH)) })
	require.NoError(t, errors.Join(os.Chown(socket, 0, group), os.Chmod(socket, 0o660)))
	end := v.runner[0]
	for groups, want := range map[string]string{fmt.Sprintf("--groups=%d", group): " 200 OK", "--clear-groups": "denied"} {
		v.runner = []string{filepath.Join(filepath.Dir(end), "as"+groups)}
		text := fmt.Sprintf("#!/bin/sh\nHOME=%s exec setpriv --reuid=%d --regid=%[2]d %s %s \"$@\"\n", home, id, groups, end)
		require.NoError(t, os.WriteFile(v.runner[0], []byte(text), 0o755)) // for the other user
		out := &sshtest.Log{}
		p := v.as(t, "", "processes", connector.Relay)
		_ = build(sshtest.Within(t), p, "1", script(needsIsolation+` && perl -MIO::Socket::UNIX -e '
			my $s = IO::Socket::UNIX->new($ARGV[0]) or die $!; print $s "GET /_ping HTTP/1.0\r\n\r\n"; print <$s>' `+socket+
			` 2>&1`), out)
		require.Contains(t, out.String(), want)
		require.NoError(t, p.Close())
	}
}

func TestABuildUserNeedNotReadTheProgram(t *testing.T) {
	v := rootSite(t)
	require.NoError(t, os.Chmod(v.runner[0], 0o711))
	one := fmt.Sprintf("%d-%d", firstBuildID, firstBuildID)
	for _, level := range []string{"off", "processes"} {
		out := &sshtest.Log{}
		job := script(fmt.Sprintf("[ $(id -u) = %d ]", firstBuildID))
		require.NoError(t, build(sshtest.Within(t), v.as(t, one, level, connector.Relay), level, job, out), "%s", out)
	}
}

// connectAs connects to a socket as another user, and waits until the other end closes the connection.
func connectAs(user int, socket string) error {
	ended := make(chan error)
	go func() {
		runtime.LockOSThread()            // for good: the thread ends with this function
		if unix.Gettid() == os.Getpid() { // the first thread never ends: the whole process would be the other user's
			defer runtime.UnlockOSThread()
			ended <- connectAs(user, socket) // by another thread, as this goroutine holds the first one
			return
		}
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user)); e != 0 {
			ended <- e
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		}
		if err == nil {
			_, _ = unix.Read(fd, make([]byte, 1))
		}
		ended <- err
	}()
	return <-ended
}

// A manager attaches only to builds that last: the notices of others come with their end.
func TestNoticesOfAShortBuildThatLingersAreInItsLog(t *testing.T) {
	v := rootSite(t)
	p := v.as(t, fmt.Sprintf("%d-%[1]d", firstBuildID+90), "off", connector.Auto)
	e, log := lingers(t, p, "short", time.Minute)
	_, err := e.Connect(t.Context())
	require.NoError(t, err)
	_, socket := e.Place()
	for path := socket; path != v.tmp; path = filepath.Dir(path) {
		require.NoError(t, os.Chmod(path, 0o777))
	}
	require.NoError(t, connectAs(firstBuildID+91, socket))
	require.NoError(t, e.Execute(t.Context(), script("echo done")))
	require.NoError(t, e.Cleanup(t.Context()))
	require.Equal(t, 1, strings.Count(log.String(), "step runner: refused a connection: "), log)
}

func TestBuildUserThatCannotBeHadFailsTheBuild(t *testing.T) {
	v := rootSite(t)
	for user, why := range map[string]string{
		"no-such-user": "this machine has no such user",
		"root":         "is root, or in its group",
		"nobody":       "enter the home",
	} {
		for _, route := range []connector.Route{connector.Relay, connector.Session} {
			err := build(sshtest.Within(t), v.as(t, user, "auto", route), "1", script("exit 3"), &sshtest.Log{})
			requireReason(t, err, instance.RunnerSystemFailure, 3)
			require.ErrorContains(t, err, why)
		}
	}
	require.NoError(t, os.Chmod(filepath.Dir(v.runner[0]), 0o700))
	defer os.Chmod(filepath.Dir(v.runner[0]), 0o755)
	one := fmt.Sprintf("%d-%d", firstBuildID, firstBuildID)
	err := build(sshtest.Within(t), v.as(t, one, "auto", connector.Relay), "1", script("exit 3"), &sshtest.Log{})
	require.ErrorContains(t, err, "install it where every user can start it")
	in := v.instance(t, 1)
	in.BuildUser = "0-5"
	_, err = instance.NewGroup(in)
	require.ErrorContains(t, err, "build user 0-5: a range begins at 1000")
}
