package job

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// smallDisk returns a directory on a file system of its own with room for little.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("part missing: this test mounts a file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fullDisk is a file system of its own on which files can be made up to a number, and bytes be written.
type fullDisk struct {
	t    *testing.T
	dir  string
	fill string
}

func newFullDisk(t *testing.T) *fullDisk {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k,nr_inodes=64"); err != nil {
		t.Skipf("part missing: this test mounts a file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	d := &fullDisk{t: t, dir: dir, fill: filepath.Join(dir, "fill")}
	require.NoError(t, os.Mkdir(d.fill, 0o700))
	return d
}

// leave lets so many files be made, and so many pages be written.
func (d *fullDisk) leave(files, pages uint64) {
	d.t.Helper()
	require.NoError(d.t, os.RemoveAll(d.fill))
	require.NoError(d.t, os.Mkdir(d.fill, 0o700))
	bytes, err := os.Create(filepath.Join(d.fill, "bytes"))
	require.NoError(d.t, err)
	defer bytes.Close()
	var st unix.Statfs_t
	require.NoError(d.t, unix.Statfs(d.dir, &st))
	for i := range int(st.Ffree - min(st.Ffree, files)) {
		f, err := os.Create(filepath.Join(d.fill, strconv.Itoa(i)))
		require.NoError(d.t, err)
		require.NoError(d.t, f.Close())
	}
	_, err = bytes.Write(make([]byte, int64(st.Bfree-min(st.Bfree, pages))*st.Bsize))
	require.NoError(d.t, err)
}

// A job whose files cannot be made or written fails and says so; others go on. In other step runners a full disk ended
// the server, with all jobs in it.
//
//stepmux:faults service | A full disk ends the server, with every job in it
//stepmux:with remote/job.TestFullDiskFailsTheJobThatMeetsIt, remote.TestServeGoesOnWhenTheDiskIsFull
func TestFullDiskFailsTheJobWhereverItMeetsItAndNoOther(t *testing.T) {
	const plenty = 48
	for name, c := range map[string]struct {
		leave  func(d *fullDisk, n uint64)
		places int // where it is met whatever the order of what happens at once
	}{
		"no more files": {func(d *fullDisk, n uint64) { d.leave(n, plenty) }, 6},
		"no more bytes": {func(d *fullDisk, n uint64) { d.leave(plenty, n) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := newFullDisk(t)
			s := newStore(t, Config{Dir: d.dir, WorkBase: t.TempDir()})
			wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "gate"))
			require.NoError(t, s.Create(script(t, "other", "echo up; "+wait+"; echo over")))
			other := follow(t, s, "other")
			awaitOutput(t, other)

			causes, untouched := map[string]bool{}, false
			for n := uint64(0); ; n++ {
				require.Less(t, n, uint64(plenty), "the job finds no room in so much of it")
				c.leave(d, n)
				spec := yaml(t, "1", `
- name: a
  script: |
    echo out; echo err >&2
    echo '{"name":"E","value":"x"}' > ${{ export_file }} || exit 9
    cat ${{ vars.FILE }}
- name: b
  exec: {command: [echo, b]}
`)
				spec.Merged = true
				spec.Vars = []engine.Variable{{Key: "FILE", Value: "content\n", File: true}}
				stat, _ := run(t, s, spec)
				if stat.State == Succeeded {
					require.False(t, stat.NothingStarted)
					require.Contains(t, read(t, follow(t, s, "1"), Merged, 0), "\nRunning step \"b\"\nb\n")
					break
				}
				require.Equal(t, Failed, stat.State)
				if stat.ExitCode != 9 { // there it was the step that met it
					require.Contains(t, stat.Message, "no space left on device")
				}
				require.Equal(t, stat.ExitCode == 0, stat.System, "whose failure it is: %s", stat.Message)
				if stat.System {
					require.Contains(t, stat.Message, "(free space or inodes on the file system of "+d.dir+"/")
					require.NotContains(t, stat.Message, "/proc/self/fd")
				}
				if stat.NothingStarted {
					untouched = true
					require.Zero(t, stat.ExitCode)
					require.Zero(t, stat.Stdout+stat.Stderr)
				}
				cause, _, _ := strings.Cut(stat.Message, " /")
				causes[cause] = true
				s.Cancel("1", false)
				require.Len(t, dirs(t, s), 1, "nothing of it is left")
			}
			require.GreaterOrEqual(t, len(causes), c.places, "it was met at: %v", causes)
			require.True(t, untouched, "it is met before the first command")

			require.NoError(t, os.RemoveAll(d.fill))
			open()
			stat, _, err := other.Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, Succeeded, stat.State, stat.Message)
			require.Equal(t, "up\nover\n", read(t, other, Stdout, 0))
		})
	}
}

func TestFullDiskFailsTheJobThatMeetsIt(t *testing.T) {
	dir := smallDisk(t)
	s := newStore(t, Config{Dir: dir})
	stat, _ := run(t, s, script(t, "loud", "head -c 1000000 /dev/zero; echo end >&2"))
	require.Equal(t, Failed, stat.State)
	require.Contains(t, stat.Message, "the job's stdout is not complete")
	require.Contains(t, stat.Message, "no space left on device")
	require.Positive(t, stat.Stdout)
	require.False(t, stat.NothingStarted)
	f := follow(t, s, "loud")
	require.Len(t, read(t, f, Stdout, 0), int(stat.Stdout), "what there is can be read")

	// With nothing left not even the script can be written.
	stat, _ = run(t, s, script(t, "next", "echo hi #"+strings.Repeat("x", 1<<14)))
	require.Equal(t, Failed, stat.State)
	require.Contains(t, stat.Message, "no space left on device")
	require.True(t, stat.System)
	require.True(t, stat.NothingStarted)

	// A script that fails by itself still fails by itself; the message also names the output that was lost.
	stat, _ = run(t, s, yaml(t, "fails", "- {name: a, exec: {command: [sh, -c, 'head -c 1000000 /dev/zero; exit 7']}}\n"))
	require.Equal(t, Failed, stat.State)
	require.Equal(t, 7, stat.ExitCode)
	require.False(t, stat.System)
	require.Regexp(t, "^the job's stdout is not complete: .*no space left on device \\(free space .*exit status 7$",
		stat.Message)

	// Once the loud job is forgotten there is room again.
	f.Close()
	for _, id := range []string{"loud", "next"} {
		s.Cancel(id, false)
	}
	stat, _ = run(t, s, script(t, "last", "echo hi"))
	require.Equal(t, Succeeded, stat.State, stat.Message)
}
