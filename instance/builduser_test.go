package instance_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
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
		require.NoError(t, copyFile(filepath.Join(filepath.Dir(v.runner[0]), name), filepath.Join(dir, name)))
		require.NoError(t, os.Chmod(filepath.Join(dir, name), 0o755))
	}
	v.runner = []string{filepath.Join(dir, filepath.Base(v.runner[0]))}
	return v
}

// as returns a provider of the VM with the build user.
func (v *vm) as(t *testing.T, user, level string, route connector.Route) *instance.Provider {
	t.Helper()
	return v.provider(t, 3, func(c *instance.Config, in *instance.Instance) {
		c.Route, in.BuildUser, in.Isolation = route, user, level
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
		route := wallsRoutes[i]
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
	left := exec.CommandContext(t.Context(), "sleep", "600")
	id := firstBuildID - 2
	left.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}}
	require.NoError(t, left.Start())
	p := v.as(t, fmt.Sprintf("%d-%d", id, id), "off", connector.Relay)
	require.NoError(t, build(sshtest.Within(t), p, "1", script("true"), &sshtest.Log{}))
	require.ErrorContains(t, left.Wait(), "killed")
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
	require.ErrorContains(t, err, "install it where every user can read it")
	in := v.instance(t, 1)
	in.BuildUser = "0-5"
	_, err = instance.NewGroup(in)
	require.ErrorContains(t, err, "build user 0-5: a range begins at 1000")
}
