package proc

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

// serverVar makes the test binary a server with one process, whose script is its value. levelVar is the level at which
// it runs.
const serverVar, levelVar = "STEPMUX_TEST_SERVER", "STEPMUX_TEST_LEVEL"

// serverMain starts the script and never ends by itself. Its arguments are the tag of the process and the
// orphan directory, "-" in front of it if it is not to be locked.
func serverMain() int {
	tag, dir := os.Args[1], os.Args[2]
	dir, unlocked := strings.CutPrefix(dir, "-")
	if !unlocked {
		lock, err := os.Open(dir)
		if err != nil || unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return 1
		}
	}
	c := shell(os.Getenv(serverVar))
	c.Env = append(c.Env, tag)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	in := Init{OrphanDir: dir}
	if level := vmconfig.Level(os.Getenv(levelVar)); level != "" {
		in.Room = isolate.Spec{Level: level, Dir: dir, Base: filepath.Dir(dir), Home: os.Getenv("HOME")}
	}
	var pid int
	for range 3 {
		p, err := in.Start(context.Background(), c)
		if err != nil {
			fmt.Fprintln(os.Stdout, err)
			return 1
		}
		pid = p.link.init.Pid
	}
	fmt.Fprintln(os.Stdout, "init", pid)
	select {}
}

// server starts a server with a script that says ready, and returns it and its init once three commands run it.
func server(t *testing.T, script, tag, dir string, env ...string) (*exec.Cmd, []int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", tag, dir)
	cmd.Env = append(env, serverVar+"="+script)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	var inits []int
	ready := 0
	for scan := bufio.NewScanner(out); ready < 3 || len(inits) < 1; {
		require.True(t, scan.Scan(), "the server has ended")
		if pid, ok := strings.CutPrefix(scan.Text(), "init "); ok {
			inits = append(inits, atoi(pid))
		} else {
			require.Equal(t, "ready", scan.Text())
			ready++
		}
	}
	return cmd, inits
}

const leaveThings = `trap '' TERM HUP; setsid sh -c 'sleep 1000 & sleep 1000' & (sleep 1000 &) ; echo ready; wait`

// orphanTree makes a directory to be removed, and one beside it that must not be touched.
func orphanTree(t *testing.T) (dir, keep string) {
	t.Helper()
	base := t.TempDir()
	dir, keep = filepath.Join(base, "build"), filepath.Join(base, "keep")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "jobs/a/closed"), 0o700))
	require.NoError(t, os.Mkdir(keep, 0o755))
	for _, file := range []string{dir + "/jobs/a/closed/file", keep + "/file"} {
		require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	}
	require.NoError(t, os.Symlink(keep, filepath.Join(dir, "jobs/link")))
	require.NoError(t, os.Symlink("../keep/file", filepath.Join(dir, "file")))
	require.NoError(t, os.Chmod(filepath.Join(dir, "jobs/a/closed"), 0o500))
	t.Cleanup(func() { // or the directory of the test cannot be removed
		_ = filepath.WalkDir(base, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				_ = os.Chmod(path, 0o700)
			}
			return nil
		})
	})
	return dir, keep
}

// requireRemoved checks that of dir's parent only keep is left, as it was.
func requireRemoved(t *testing.T, dir, keep string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.FileExists(t, keep+"/file")
	info, err := os.Stat(keep)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm())
}

func allEnded(pids []int) bool {
	return !slices.ContainsFunc(pids, func(pid int) bool { return !ended(pid) })
}

//stepmux:reliability mechanisms | Nothing is left of a build whose step runner was killed | `remote/proc/initmain.go`
func TestServerThatIsKilledLeavesNothing(t *testing.T) {
	for _, level := range []vmconfig.Level{vmconfig.Off, vmconfig.Processes, vmconfig.Private} {
		t.Run(level.String(), func(t *testing.T) {
			in := &Init{Room: isolate.Spec{Level: level, Dir: t.TempDir()}}
			in.Prepare()
			if got, why := in.Isolation(t.Context()); got != level {
				t.Skip("part missing: namespaces: ", why)
			}
			require.NoError(t, in.Close())
			tag := newTag()
			dir, keep := orphanTree(t)
			cmd, inits := server(t, leaveThings, tag, dir, levelVar+"="+level.String(), "HOME="+t.TempDir())
			require.NotEmpty(t, tagged(t, tag))
			require.NoError(t, cmd.Process.Kill())
			eventually(t, func() bool {
				return len(tagged(t, tag)) == 0 && allEnded(inits)
			}, "its processes")
			requireRemoved(t, dir, keep)
		})
	}
}

//stepmux:reliability mechanisms | A process goes with the init that holds it | `remote/proc/initmain.go`
func TestCommandDiesWithItsInitWhenTheServerCannotHelp(t *testing.T) {
	tag := newTag()
	cmd, inits := server(t, `echo ready; exec sleep 1000`, tag, "-"+t.TempDir())
	// A process in the midst of its exec has no environment.
	eventually(t, func() bool { return len(tagged(t, tag)) == 3 }, "the commands")
	require.NoError(t, cmd.Process.Signal(unix.SIGSTOP))
	for _, init := range inits {
		require.NoError(t, unix.Kill(init, unix.SIGKILL))
	}
	eventually(t, func() bool { return len(tagged(t, tag)) == 0 }, "the commands")
}

func TestOrphanDirectoryThatIsInUseOrAnotherIsLeft(t *testing.T) {
	tests := map[string]func(t *testing.T, dir string){
		"locked by a living process": func(t *testing.T, dir string) {
			lock, err := os.Open(dir)
			require.NoError(t, err)
			t.Cleanup(func() { lock.Close() })
			require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB))
		},
		"replaced by another": func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(dir, dir+"-moved"))
			require.NoError(t, os.Mkdir(dir, 0o700))
		},
		"replaced by a symbolic link": func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(dir, dir+"-moved"))
			require.NoError(t, os.Symlink(dir+"-moved", dir))
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			tag := newTag()
			dir, _ := orphanTree(t)
			cmd, inits := server(t, leaveThings, tag, "-"+dir)
			change(t, dir)
			want := listing(t, filepath.Dir(dir))
			want = slices.DeleteFunc(want, func(path string) bool { return strings.HasPrefix(path, dir+"-moved") })
			require.NoError(t, cmd.Process.Kill())
			eventually(t, func() bool {
				return len(tagged(t, tag)) == 0 && allEnded(inits)
			}, "its processes")
			require.Equal(t, want, listing(t, filepath.Dir(dir)))
		})
	}
}

// listing returns the paths of all that is in dir.
func listing(t *testing.T, dir string) (list []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		list = append(list, path)
		return err
	}))
	return list
}

func TestCloseLeavesTheOrphanDirectoryToTheServer(t *testing.T) {
	dir, _ := orphanTree(t)
	before := listing(t, filepath.Dir(dir))
	in := Init{OrphanDir: dir}
	_, err := in.Start(t.Context(), shell("exec sleep 1000"))
	require.NoError(t, err)
	require.NoError(t, in.Close())
	require.Equal(t, before, listing(t, filepath.Dir(dir)))
}

func TestOrphanDirectoryMustBeOursAndNoLink(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, os.WriteFile(base+"/file", nil, 0o600))
	require.NoError(t, os.Mkdir(base+"/dir", 0o700))
	require.NoError(t, os.Symlink("dir", base+"/link"))
	tests := map[string]string{"missing": base + "/nosuch", "a file": base + "/file", "a link": base + "/link"}
	if os.Geteuid() == 0 {
		require.NoError(t, os.Mkdir(base+"/foreign", 0o755))
		require.NoError(t, os.Chown(base+"/foreign", 65534, 65534))
		tests["another user's"] = base + "/foreign"
	} else {
		tests["another user's"] = "/"
	}
	for name, dir := range tests {
		t.Run(name, func(t *testing.T) {
			in := Init{OrphanDir: dir}
			_, err := in.Start(t.Context(), shell("true"))
			require.ErrorContains(t, err, "orphan directory")
			require.ErrorContains(t, err, dir)
		})
	}
}

func TestOrphanDirectoryIsRemovedAlsoWhereDirectoriesWereClosed(t *testing.T) {
	dir, keep := orphanTree(t)
	o, failed := openOrphan(dir)
	require.Nil(t, failed)
	removeOrphan(t.Context(), o)
	requireRemoved(t, dir, keep)
	removeOrphan(t.Context(), orphanDir{}) // there was none to begin with
}

// Symptom: an init removed a directory that a job had moved without any bound of time.
func TestRemovalOfAnOrphanDirectoryEndsWithItsContext(t *testing.T) {
	for name, moved := range map[string]bool{"at its place": false, "moved by a job": true} {
		t.Run(name, func(t *testing.T) {
			dir, _ := orphanTree(t)
			o, failed := openOrphan(dir)
			require.Nil(t, failed)
			open, err := os.Open(dir)
			require.NoError(t, err)
			defer open.Close()
			if moved {
				require.NoError(t, os.Rename(dir, dir+"-moved"))
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			removeOrphan(ctx, o)
			left, err := open.ReadDir(-1)
			require.NoError(t, err)
			require.NotEmpty(t, left)
		})
	}
}
