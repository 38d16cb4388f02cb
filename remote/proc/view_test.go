package proc

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stepmux/stepmux/internal/pause"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

// Symptom: a server is outside the isolation of its commands, and it followed links that they made to hidden files.
func TestOpenSeesTheFilesThatTheCommandsSee(t *testing.T) {
	base, elsewhere := t.TempDir(), t.TempDir() // both in /tmp, and the first has the directories of builds
	own, other := filepath.Join(base, "own"), filepath.Join(base, "other")
	for _, dir := range []string{own, other} {
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte(dir), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "file"), nil, 0o600))
	links := map[string]string{
		"other": filepath.Join(other, "file"), "up": "../other/file", "dir": other, "tmp": filepath.Join(elsewhere, "file"),
		"self": "/proc/self/environ", "root": "/proc/1/root" + filepath.Join(other, "file"),
	}
	for name, to := range links {
		require.NoError(t, os.Symlink(to, filepath.Join(own, name)))
	}
	require.NoError(t, os.Symlink(filepath.Join(own, "file"), filepath.Join(own, "mine")))
	require.NoError(t, unix.Mkfifo(filepath.Join(own, "fifo"), 0o600))

	in := &Init{Room: isolate.Spec{Level: vmconfig.Processes, Dir: own, Base: base}}
	t.Cleanup(func() { in.Close() })
	if _, err := in.Isolation(t.Context()); err == nil {
		in.Prepare()
	}
	if level, why := in.Isolation(t.Context()); level != vmconfig.Processes {
		t.Skip("part missing: namespaces: ", why)
	}
	for name := range links {
		file, err := in.Open(filepath.Join(own, name), os.O_RDONLY, 0)
		require.Error(t, err, name)
		require.Nil(t, file)
	}
	_, err := in.Open(filepath.Join(own, "dir/file"), os.O_RDONLY, 0)
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, name := range []string{"file", "mine"} {
		file, err := in.Open(filepath.Join(own, name), os.O_RDONLY, 0)
		require.NoError(t, err)
		text, err := io.ReadAll(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		require.Equal(t, own, string(text))
	}
	file, err := in.Open(filepath.Join(own, "fifo"), os.O_RDONLY, 0) // does not wait for a writer
	require.NoError(t, err)
	require.NoError(t, file.Close())
	_, err = in.Open(filepath.Join(own, "file"), os.O_RDWR, 0)
	require.ErrorIs(t, err, unix.EINVAL)

	root, err := os.Open("/")
	require.NoError(t, err)
	defer root.Close()
	fd, err := openBelow(int(root.Fd()), filepath.Join(own, "file"), os.O_RDONLY) // before Linux 5.6
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
}

// Symptom: a directory below /tmp was visible for Open only once a command had started. A job whose first step is a
// file of its work directory failed.
func TestOpenSeesAShownDirectoryBeforeTheFirstCommand(t *testing.T) {
	own, work := t.TempDir(), t.TempDir() // both in /tmp
	file := filepath.Join(work, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	in := isolated(t, own)
	_, err := in.Open(file, os.O_RDONLY, 0)
	require.ErrorIs(t, err, fs.ErrNotExist)
	done := in.Show(work)
	defer done()
	defer in.Show(filepath.Join(own, "missing"))()
	for range 2 { // the second init is another one
		var all errgroup.Group
		for range 4 {
			all.Go(func() error {
				opened, err := in.Open(file, os.O_RDONLY, 0)
				if err == nil {
					err = opened.Close()
				}
				return err
			})
		}
		require.NoError(t, all.Wait())
		require.Zero(t, exitOf(t, in, work, "test -e "+file))
		l := in.init(t)
		require.NoError(t, l.init.Kill())
		<-l.gone
	}
	done()
	_, err = in.Open(file, os.O_RDONLY, 0)
	require.ErrorIs(t, err, fs.ErrNotExist, "it is hidden from the third init")

	late := t.TempDir()
	require.Zero(t, exitOf(t, in, "", "mkdir -p "+filepath.Dir(late)+" && ln -s "+own+" "+late))
	defer in.Show(late)()
	_, err = in.Open(filepath.Join(late, "file"), os.O_RDONLY, 0)
	require.ErrorContains(t, err, "too many levels of symbolic links")
}

func TestOpenWithoutIsolationIsThatOfTheMachine(t *testing.T) {
	in := newInit(t)
	file, err := in.Open("/proc/self/stat", os.O_RDONLY, 0)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// A build whose init was killed, by lack of memory perhaps, must not go on with less isolation. Symptom: it did not go
// on at all, because the directory of the first init was in the way.
func TestInitThatIsReplacedKeepsItsLevel(t *testing.T) {
	in := &Init{Room: isolate.Spec{Dir: t.TempDir()}}
	t.Cleanup(func() { in.Close() })
	in.Prepare()
	l := in.init(t)
	if l.level == vmconfig.Off {
		t.Skip("part missing: namespaces: ", l.off)
	}
	require.NoError(t, l.init.Kill())
	<-l.gone
	in.mu.Lock()
	in.latest.link.level = vmconfig.Private // any other than the best
	in.mu.Unlock()
	require.Zero(t, exitOf(t, in, "", "true"))
	level, err := in.Isolation(t.Context())
	require.NoError(t, err)
	require.Equal(t, vmconfig.Private, level)
}

// isolated returns an init at the level Processes with the directory own.
func isolated(t *testing.T, own string) *Init {
	t.Helper()
	in := &Init{Room: isolate.Spec{Level: vmconfig.Processes, Dir: own}}
	t.Cleanup(func() { in.Close() })
	in.Prepare()
	if level, why := in.Isolation(t.Context()); level != vmconfig.Processes {
		t.Skip("part missing: namespaces: ", why)
	}
	return in
}

// exitOf runs a script that needs the directory visible, and returns its exit code.
func exitOf(t *testing.T, in *Init, visible, script string) int {
	t.Helper()
	c := shell(script)
	c.Dir, c.Visible = "/", visible
	p, err := in.Start(t.Context(), c)
	require.NoError(t, err)
	exit := wait(t, p)
	require.NoError(t, p.Close())
	return exit.Code
}

// Symptom: a job put a link in the place of its work directory, and its next command saw any directory, file or socket
// of the machine to which the link led.
func TestALinkOfAJobShowsNoHiddenDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("links of root are followed")
	}
	own, hidden := t.TempDir(), t.TempDir() // both in /tmp
	file, link := filepath.Join(hidden, "file"), filepath.Join(own, "work")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Symlink(hidden, link))
	in := isolated(t, own)
	for _, visible := range []string{link, link + "/../" + filepath.Base(hidden), filepath.Join(link, "file")} {
		require.Equal(t, 1, exitOf(t, in, visible, "test -e "+file), visible)
	}
	require.Zero(t, exitOf(t, in, hidden, "test -e "+file))
}

// Symptom: a directory that became visible late was mounted where a link of a job led. Without a user namespace that
// could be /etc, as a setuid program sees it.
func TestADirectoryIsShownInItsOwnPlaceOnly(t *testing.T) {
	own, late := t.TempDir(), t.TempDir() // both in /tmp
	target := filepath.Join(own, "target")
	require.NoError(t, os.Mkdir(target, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(late, "file"), nil, 0o600))
	in := isolated(t, own)
	require.Zero(t, exitOf(t, in, "", "mkdir -p "+filepath.Dir(late)+" && ln -s "+target+" "+late))
	c := shell("true")
	c.Visible = late
	p, err := in.Start(t.Context(), c)
	if err == nil {
		require.NoError(t, p.Close())
	}
	require.ErrorContains(t, err, "too many levels of symbolic links")
	require.Equal(t, 1, exitOf(t, in, "", "test -e "+target+"/file"))
}

// Symptom: with TMPDIR=/dev/shm all builds ran without isolation, because their directories were hidden twice.
func TestABuildsDirectoryMayBeBelowAnyHiddenOne(t *testing.T) {
	isolated(t, t.TempDir())
	user := "/run/user/" + strconv.Itoa(os.Geteuid())
	for _, parent := range []string{"/tmp", "/var/tmp", "/dev/shm", user} {
		if unix.Access(parent, unix.W_OK) != nil {
			continue // many machines have no directory of a user's session
		}
		base, err := os.MkdirTemp(parent, "stepmux-test-") //nolint:usetesting // its place matters
		require.NoError(t, err)
		defer os.RemoveAll(base)
		own, other := filepath.Join(base, "own"), filepath.Join(base, "other")
		for _, dir := range []string{own, other} {
			require.NoError(t, os.Mkdir(dir, 0o700))
		}
		in := &Init{Room: isolate.Spec{Dir: own, Base: base}}
		defer in.Close()
		require.Zero(t, exitOf(t, in, "", "[ -d "+own+" ] && ! [ -e "+other+" ]"), parent)
		level, why := in.Isolation(t.Context())
		require.NoError(t, why, parent)
		require.Equal(t, vmconfig.Processes, level)
	}
}

// Symptom: with level Auto, a build had no isolation if another one changed login files while its init looked at them.
func TestAnotherBuildCannotTakeTheIsolationFromAuto(t *testing.T) {
	t.Setenv("PATH", "/usr/bin:/bin")
	isolated(t, t.TempDir())
	home := t.TempDir()
	ended, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for !pause.Done(stop) {
			for _, name := range []string{".zshrc", ".kshrc", ".cshrc", ".login", ".logout", ".rhosts", ".shosts", ".forward"} {
				path := filepath.Join(home, name)
				_ = os.WriteFile(path, nil, 0o600)
				_ = os.Remove(path)
			}
		}
	}()
	defer func() {
		close(stop)
		<-ended
	}()
	for range 50 {
		in := &Init{Room: isolate.Spec{Dir: t.TempDir(), Home: home}}
		in.Prepare()
		level, why := in.Isolation(t.Context())
		require.NoError(t, in.Close())
		require.NotEqual(t, vmconfig.Off, level, "%v", why)
		require.NoError(t, why)
	}
}
