package proc

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/cgroup"
	"github.com/stepmux/stepmux/remote/isolate"
)

func TestUsageCountsProcessesThatTheCommandsLeftBehind(t *testing.T) {
	in := &Init{Room: isolate.Spec{Level: vmconfig.Off}}
	defer in.Close()
	require.Zero(t, in.Usage())
	// A daemon's work is not in the exit of its command, which does not wait for it.
	p, err := in.Start(t.Context(), shell(
		`setsid sh -c 'i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; echo done' & exec >/dev/null; sleep 0.01`))
	require.NoError(t, err)
	exit := wait(t, p)
	out := newLines(t)
	busy := shell(`sh -c 'i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; echo ready'`)
	busy.Stdout = out
	q, err := in.Start(t.Context(), busy)
	require.NoError(t, err)
	out.want(t, "ready")
	wait(t, q)
	require.NoError(t, q.Close())
	require.NoError(t, p.Close())
	usage := in.Usage()
	require.Greater(t, usage.CPU, exit.UserTime+exit.SystemTime+time.Millisecond)
	require.GreaterOrEqual(t, usage.LargestProcess, exit.MaxRSS)
	require.Zero(t, usage.PeakMemory, "no cgroup counts it")

	require.NoError(t, q.link.init.Kill())
	<-q.link.gone
	r, err := in.Start(t.Context(), shell("true"))
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.GreaterOrEqual(t, in.Usage().CPU, usage.CPU, "what an init that was killed had counted stays")
}

// limited is a real cgroup, but without limits: this machine may have no controllers. It says that a limit was met.
type limited struct {
	group
	met string
}

func (l *limited) Since(cgroup.Events) string { return l.met }

// limitedInit returns an Init with a cgroup.
func limitedInit(t *testing.T, level vmconfig.Level, met string) *Init {
	t.Helper()
	remotetest.NeedRoot(t)
	if err := cgroup.Check(vmconfig.Limits{}); err != nil {
		t.Skipf("part missing: %v", err)
	}
	before := newGroup
	t.Cleanup(func() { newGroup = before })
	newGroup = func(_ vmconfig.Limits, owner int) (group, error) {
		g, err := before(vmconfig.Limits{}, owner)
		if err != nil {
			return nil, err
		}
		return &limited{g, met}, nil
	}
	dir := t.TempDir()
	in := &Init{Room: isolate.Spec{Level: level, Dir: dir}, OrphanDir: dir, Limits: vmconfig.Limits{Memory: 64 << 20}}
	t.Cleanup(func() { in.Close() })
	return in
}

// cgroupOf returns the directory of a process's cgroup.
func cgroupOf(t *testing.T, pid string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/cgroup")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	t.Fatal("it has no cgroup of version 2")
	return ""
}

func TestCommandsRunInTheCgroupOfTheirInit(t *testing.T) {
	for _, level := range []vmconfig.Level{vmconfig.Off, vmconfig.Processes} {
		t.Run(level.String(), func(t *testing.T) {
			in := limitedInit(t, level, "")
			out := newLines(t)
			c := shell(`grep ^0:: /proc/self/cgroup
				[ $1 = off ] || for d in $(awk '$3 == "cgroup2" {print $2}' /proc/mounts); do ! mkdir $d/mine || exit 9; done
				setsid sh -c 'while :; do sleep 1000; done' >/dev/null 2>&1 & exit 1`, level.String())
			c.Stdout = out
			p, err := in.Start(t.Context(), c)
			require.NoError(t, err)
			where := cgroupOf(t, strconv.Itoa(p.link.init.Pid))
			require.Regexp(t, `/stepmux/[^/]+/run$`, where)
			if level == vmconfig.Off {
				out.want(t, "0::"+where)
			} else {
				out.want(t, "0::/") // it sees its own as the root
			}
			exit := wait(t, p)
			require.Equal(t, 1, exit.Code, "it cannot make a cgroup")
			require.Empty(t, exit.Limit)
			name := filepath.Base(filepath.Dir(where))
			require.False(t, isOrphan(name), "this program lives")
			require.NoError(t, RemoveOrphanGroups(t.Context()))
			require.Positive(t, in.Usage().CPU)
			require.NoError(t, in.Close())
			require.Empty(t, cgroupDirs(t, name))
		})
	}
}

// asBuildUserVar makes the test binary the server of TestABuildUserEndsItsCgroupAndCannotChangeIt.
const asBuildUserVar = "STEPMUX_TEST_BUILD_USER"

// Symptom: a server that becomes the user of its build could not remove the cgroup any more, so limits were refused.
func TestABuildUserEndsItsCgroupAndCannotChangeIt(t *testing.T) {
	const id = 2100777
	levels := []vmconfig.Level{vmconfig.Off, vmconfig.Processes}
	var inits []*Init
	for _, level := range levels {
		inits = append(inits, limitedInit(t, level, ""))
	}
	if os.Getenv(asBuildUserVar) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), asBuildUserVar+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	for i, in := range inits {
		require.NoError(t, os.Chown(in.OrphanDir, id, id))
		require.NoError(t, os.Chown(filepath.Dir(in.OrphanDir), id, id))
		require.NoError(t, in.Fork(levels[i], &syscall.Credential{Uid: id, Gid: id}))
	}
	require.NoError(t, errors.Join(syscall.Setgroups(nil), syscall.Setresgid(id, id, id), syscall.Setresuid(id, id, id)))
	for i, in := range inits {
		out := newLines(t)
		c := shell(`echo ready; read there; cd "$there"; echo "$(id -u)"
			for f in run/cgroup.procs cgroup.procs ../cgroup.procs cgroup.subtree_control cgroup.max.descendants; do
				(echo 0 >$f) 2>/dev/null && echo "$f was written"; done
			mkdir run/mine 2>/dev/null && echo made
			setsid sh -c 'while :; do sleep 1000; done' >/dev/null 2>&1 & echo over`)
		near, far, err := os.Pipe()
		require.NoError(t, err)
		c.Stdin, c.Stdout = near, out
		p, err := in.Start(t.Context(), c)
		require.NoError(t, err)
		out.want(t, "ready")
		where := filepath.Dir(cgroupOf(t, strconv.Itoa(p.link.init.Pid)))
		require.Contains(t, where, "/stepmux/user-2100777/")
		dirs := cgroupDirs(t, "user-2100777/"+filepath.Base(where))
		require.Len(t, dirs, 1)
		_, err = far.WriteString(dirs[0] + "\n")
		require.NoError(t, err)
		require.Equal(t, "2100777", out.next(t))
		require.Equal(t, "over", out.next(t))
		wait(t, p)
		require.NoError(t, errors.Join(near.Close(), far.Close()))
		if i > 0 {
			require.NoError(t, p.link.init.Kill())
			<-p.link.gone
			_, err = in.Start(t.Context(), shell("true"))
			require.ErrorContains(t, err, "only root can start processes in the cgroup of this build's limits")
		}
		require.NoError(t, in.Close())
		require.NoDirExists(t, dirs[0])
	}
}

// cgroupDirs returns the directories of cgroups with that name, wherever they are mounted.
func cgroupDirs(t *testing.T, name string) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/stepmux/", "/sys/fs/cgroup/*/stepmux/"} {
		found, err := filepath.Glob(pattern + name)
		require.NoError(t, err)
		all = append(all, found...)
	}
	return all
}

func TestAFailureNamesTheLimitThatWasMet(t *testing.T) {
	const met = "killed: out of memory (limit 64 MiB)"
	in := limitedInit(t, vmconfig.Off, met)
	p, err := in.Start(t.Context(), shell("kill -KILL $$"))
	require.NoError(t, err)
	exit := wait(t, p)
	require.Equal(t, unix.SIGKILL, exit.Signal)
	require.Equal(t, met, exit.String())
	require.NoError(t, p.Close())

	ok, err := in.Start(t.Context(), shell("exit 0"))
	require.NoError(t, err)
	require.Empty(t, wait(t, ok).Limit, "it did not fail")
	require.NoError(t, ok.Close())

	lost, err := in.Start(t.Context(), shell("while :; do sleep 1000; done"))
	require.NoError(t, err)
	require.NoError(t, lost.link.init.Kill()) // as the kernel does at the limit
	_, err = lost.Wait(t.Context())
	require.ErrorContains(t, err, met)
	require.True(t, MachineFailed(err))
	_ = lost.Close() // says it again
	<-lost.link.gone

	c := shell("true")
	c.Argv[0] = "/nonexistent"
	_, err = in.Start(t.Context(), c)
	require.ErrorContains(t, err, met)
	require.ErrorIs(t, err, ErrNotFound)
}

func TestTheCgroupOfAKilledServerIsRemoved(t *testing.T) {
	remotetest.NeedRoot(t)
	g, err := cgroup.Make("1.1:1234567:1+1", vmconfig.Limits{}, 0)
	if err != nil {
		t.Skipf("part missing: %v", err)
	}
	defer g.Remove()
	id := self()
	id.start++ // another process has the number now
	dead, err := cgroup.Make(id.String()+"+1", vmconfig.Limits{}, 0)
	require.NoError(t, err)
	defer dead.Remove()
	require.NotEmpty(t, cgroupDirs(t, id.String()+"+1"))
	require.NoError(t, RemoveOrphanGroups(t.Context()))
	require.Empty(t, cgroupDirs(t, id.String()+"+1"))
	require.NotEmpty(t, cgroupDirs(t, "1.1:1234567:1+1"), "its server may live in another namespace")
}
