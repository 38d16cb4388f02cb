package cgroup

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

func TestMain(m *testing.M) {
	remotetest.PlayRole(play)
	goleak.VerifyTestMain(m)
}

// play divides the delegated cgroup in which this process runs, with the controllers of its arguments, makes a group
// without limits, and prints the cgroup of a process in it.
func play(string) error {
	base, err := find()
	if err != nil {
		return err
	}
	if _, err := divide(base, os.Args[1:]); err != nil {
		return err
	}
	g, err := Make("b1", vmconfig.Limits{}, 0)
	if err != nil {
		return err
	}
	cmd := exec.Command("cat", "/proc/self/cgroup")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	g.Attributes(cmd.SysProcAttr)
	cmd.Stdout = os.Stdout
	if err := cmd.Run(); err != nil {
		return err
	}
	return g.Remove()
}

// realBase makes a cgroup for the test alone, and groups go below it. It skips a test that is not root's.
func realBase(t *testing.T) string {
	t.Helper()
	remotetest.NeedRoot(t)
	root, err := find()
	if err != nil {
		t.Skipf("part missing: %v", err)
	}
	base, err := os.MkdirTemp(root, "stepmux-test-") //nolint:usetesting // a cgroup
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, remove(t.Context(), base, 0)) })
	findIn(t, base)
	return base
}

func findIn(t *testing.T, base string) {
	before := find
	find = func() (string, error) { return base, nil }
	t.Cleanup(func() { find = before })
}

// inGroup starts a process in g, with a daemon in another session.
func inGroup(t *testing.T, g *Group) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1000; done' & "+
		"i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo ready; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	g.Attributes(cmd.SysProcAttr)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // unless the test has
		_ = cmd.Wait()
	})
	_, err = out.Read(make([]byte, 1))
	require.NoError(t, err)
	return cmd
}

func TestRemoveKillsAllThatDescendsFromTheFirstProcess(t *testing.T) {
	base := realBase(t)
	g, err := Make("b1", vmconfig.Limits{}, 0)
	require.NoError(t, err)
	cmd := inGroup(t, g)
	where, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/cgroup")
	require.NoError(t, err)
	require.Contains(t, string(where), filepath.Join("/", filepath.Base(base), "stepmux/b1/run")+"\n")
	require.Positive(t, g.Usage().CPU)
	require.Zero(t, g.Usage().Peak, "there is no memory controller for it")
	require.NoError(t, os.Mkdir(g.dir+"/run/own", 0o755), "a build without isolation can do that")
	list, err := os.ReadFile(g.dir + "/run/cgroup.procs")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(strings.Fields(string(list))), 2)

	require.NoError(t, g.Remove())
	require.NoDirExists(t, g.dir)
	for _, pid := range strings.Fields(string(list)) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err == nil {
			require.Regexp(t, `\) [ZX] `, string(stat))
		}
	}
	require.NoError(t, g.Remove(), "again")
}

func TestSweepRemovesTheGroupsOfTheDead(t *testing.T) {
	realBase(t)
	dead, err := Make("dead", vmconfig.Limits{}, 0)
	require.NoError(t, err)
	living, err := Make("living", vmconfig.Limits{}, 0)
	require.NoError(t, err)
	cmd := inGroup(t, living)
	ended := inGroup(t, dead)
	defer func(before time.Duration) { sweepGrace = before }(sweepGrace)
	sweepGrace = 100 * time.Millisecond
	started := time.Now()
	require.NoError(t, Sweep(t.Context(), func(name string) bool { return name == "dead" }))
	require.GreaterOrEqual(t, time.Since(started), sweepGrace, "an init has time to end")
	require.NoDirExists(t, dead.dir)
	require.Error(t, ended.Wait())
	require.DirExists(t, living.dir)
	require.NoError(t, cmd.Process.Signal(unix.Signal(0)))
	require.NoError(t, living.Remove())
}

func TestAnOrdinaryUserDividesItsDelegatedCgroup(t *testing.T) {
	base := realBase(t)
	var names []string
	root := filepath.Dir(base)
	// hugetlb stands in for the controllers that this machine may have with version 1.
	if have, _ := os.ReadFile(root + "/cgroup.controllers"); strings.Contains(string(have), "hugetlb") {
		names = []string{"hugetlb"}
		on, err := os.ReadFile(root + "/cgroup.subtree_control")
		require.NoError(t, err)
		if !slices.Contains(strings.Fields(string(on)), "hugetlb") {
			require.NoError(t, enable(root, names))
			t.Cleanup(func() { _ = write(root, "cgroup.subtree_control", "-hugetlb") }) // another test may have it on
		}
	}
	// As systemd delegates: the directory and these files.
	for _, name := range []string{"", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"} {
		require.NoError(t, os.Chown(base+name, remotetest.Nobody, remotetest.Nobody))
	}
	fd, err := os.Open(base)
	require.NoError(t, err)
	defer fd.Close()
	cmd := remotetest.AsNobody(t, remotetest.Role(t.Context(), "divide", names...))
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(fd.Fd())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), filepath.Join("/", filepath.Base(base), "stepmux/b1/run")+"\n")
	require.NoDirExists(t, base+"/stepmux/b1")
	if len(names) > 0 {
		on, err := os.ReadFile(base + "/stepmux/cgroup.subtree_control")
		require.NoError(t, err)
		require.Equal(t, "hugetlb\n", string(on))
		require.DirExists(t, base+"/stepmux-rest", "the process itself was in the way")
	}
}

func TestAnOrdinaryUserIsToldHowToGetADelegatedCgroup(t *testing.T) {
	base := realBase(t) // which belongs to root
	fd, err := os.Open(base)
	require.NoError(t, err)
	defer fd.Close()
	cmd := remotetest.AsNobody(t, remotetest.Role(t.Context(), "divide"))
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(fd.Fd())
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out),
		fmt.Sprintf("limits are not available: the cgroup %s is not delegated to this user (%s)\n", base, delegate))
}

// standIn makes plain directories with plain files stand for the cgroups: this machine may have the controllers with
// version 1. It shows which files are written, and not that the kernel obeys.
func standIn(t *testing.T, controllers string) string {
	t.Helper()
	base := t.TempDir()
	fill := func(dir string) {
		for _, name := range []string{
			"cgroup.controllers", "cgroup.subtree_control", "cgroup.procs", "cgroup.max.descendants", "cgroup.kill",
			"memory.max", "memory.swap.max", "memory.events", "memory.peak", "pids.max", "pids.events", "cpu.max", "cpu.stat",
		} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		}
	}
	fill(base)
	require.NoError(t, os.WriteFile(base+"/cgroup.controllers", []byte(controllers+"\n"), 0o600))
	findIn(t, base)
	mkdirBefore, rmdirBefore := mkdir, rmdir
	mkdir = func(dir string) error {
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			fill(dir)
		}
		return err
	}
	rmdir = func(dir string) error { return os.RemoveAll(dir) }
	t.Cleanup(func() { mkdir, rmdir = mkdirBefore, rmdirBefore })
	return base
}

func TestLimitsAreWrittenForTheGroupAndForItsProcesses(t *testing.T) {
	base := standIn(t, "cpuset cpu memory pids")
	g, err := Make("b1", vmconfig.Limits{Memory: 512 << 20, PIDs: 64, CPUs: 1.5}, 0)
	require.NoError(t, err)
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(base, name))
		require.NoError(t, err)
		return string(text)
	}
	for _, dir := range []string{".", "stepmux", "stepmux/b1"} {
		require.Equal(t, "+memory +pids +cpu", read(dir+"/cgroup.subtree_control"), dir)
	}
	for _, dir := range []string{"stepmux/b1", "stepmux/b1/run"} {
		require.Equal(t, "536870912", read(dir+"/memory.max"), dir)
		require.Equal(t, "0", read(dir+"/memory.swap.max"), dir)
		require.Equal(t, "64", read(dir+"/pids.max"), dir)
		require.Equal(t, "150000 100000", read(dir+"/cpu.max"), dir)
	}
	require.Equal(t, "1000", read("stepmux/b1/cgroup.max.descendants"))

	before := g.Events()
	require.Empty(t, g.Since(before))
	put := func(name, text string) { require.NoError(t, os.WriteFile(g.dir+"/"+name, []byte(text), 0o600)) }
	put("run/pids.events", "max 3\n")
	require.Equal(t, "no more processes (limit 64)", g.Since(before))
	put("memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n")
	require.Equal(t, "killed: out of memory (limit 512 MiB)", g.Since(before))
	require.Empty(t, g.Since(g.Events()), "of a command before")

	put("cpu.stat", "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n")
	put("memory.peak", "4096\n")
	require.Equal(t, Usage{CPU: 2500 * time.Millisecond, Peak: 4096}, g.Usage())
	require.NoError(t, g.Remove())
	require.NoDirExists(t, base+"/stepmux/b1")
}

func TestAMissingControllerIsNamed(t *testing.T) {
	base := standIn(t, "cpu pids")
	_, err := Make("b1", vmconfig.Limits{Memory: 512 << 20, PIDs: 64}, 0)
	var refusal *Error
	require.ErrorAs(t, err, &refusal)
	require.ErrorContains(t, err, "limits are not available: the controller memory is not in cgroup "+base)
	require.NotEmpty(t, refusal.Remedy)
	require.NoError(t, Check(vmconfig.Limits{PIDs: 64}))
	require.NoDirExists(t, base+"/stepmux", "a check changes nothing")
}

func TestRefusalsHaveARemedy(t *testing.T) {
	for errno, want := range map[error]string{
		unix.EACCES:    "is not delegated to this user (runner: systemd-run --user --scope",
		unix.EROFS:     "is read-only (mount the cgroups writable)",
		fs.ErrNotExist: "file does not exist",
	} {
		require.ErrorContains(t, refused("/sys/fs/cgroup", errno), want)
	}
}
