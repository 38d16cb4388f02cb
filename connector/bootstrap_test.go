package connector_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// binary is our program as it may be put on VMs, without the one for the network.
func binary(t testing.TB) *program.Binary {
	t.Helper()
	b, err := loadProgram()
	require.NoError(t, err)
	return b
}

var loadProgram = sync.OnceValues(func() (*program.Binary, error) {
	path, err := runnertest.Program()
	if err != nil {
		return nil, err
	}
	// Removed with the other programs. If test binaries share these, one before may have made it.
	dir := filepath.Join(filepath.Dir(path), "alone")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Link(path, filepath.Join(dir, "stepmux-vm")); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return program.LoadBinary(filepath.Join(dir, "stepmux-vm"))
})

// foreignBinary is our program with build information that says it is for another platform.
func foreignBinary(t testing.TB) *program.Binary {
	t.Helper()
	text, err := os.ReadFile(runnertest.Command(t)[0])
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "stepmux")
	text = bytes.ReplaceAll(text, []byte("GOARCH="+runtime.GOARCH), []byte("GOARCH=s390x"))
	require.NoError(t, os.WriteFile(path, text, 0o600))
	b, err := program.LoadBinary(path)
	require.NoError(t, err)
	require.Equal(t, "linux/s390x", b.Platform())
	return b
}

// bareVM is a VM without a stepmux.
type bareVM struct {
	*sshtest.Server
	cache string // the user's directory for caches
	tmp   string
}

// onBareVMs runs test on a VM in miniature and on a real sshd.
func onBareVMs(t *testing.T, test func(*testing.T, *bareVM)) {
	t.Run("in-process", func(t *testing.T) {
		test(t, newBareVM(t))
	})
	t.Run("OpenSSH", func(t *testing.T) {
		v := &bareVM{cache: t.TempDir(), tmp: sshtest.SocketDir(t)}
		v.Server = sshtest.OpenSSH(t, "SetEnv SHLVL=1 XDG_CACHE_HOME="+v.cache)
		test(t, v)
	})
}

// newBareVM starts one in miniature, with these entries in the environment of logins.
func newBareVM(t testing.TB, env ...string) *bareVM {
	t.Helper()
	v := &bareVM{cache: t.TempDir(), tmp: sshtest.SocketDir(t)}
	v.Server = sshtest.InProcess(t, embeddedvm.Config{Env: append([]string{"XDG_CACHE_HOME=" + v.cache}, env...)})
	return v
}

// build is one on the VM, which may be given our program. The runner that is configured is missing.
func (v *bareVM) build(t testing.TB, id string, change func(*connector.Config)) *build {
	t.Helper()
	b := newBuild(t, v.Server, id, "/no/such/stepmux", func(c *connector.Config) {
		c.TempDir, c.Route = v.tmp, connector.Auto
		c.Bootstrap = []*program.Binary{carried(t)}
		if change != nil {
			change(c)
		}
	})
	b.tmp = v.tmp
	return b
}

// place is where our program is put in a directory for stepmux's.
func place(t testing.TB, dir string) string {
	t.Helper()
	text, err := os.ReadFile(runnertest.Command(t)[0])
	require.NoError(t, err)
	sum := sha256.Sum256(text)
	return filepath.Join(dir, hex.EncodeToString(sum[:8]), "stepmux")
}

// runs connects b and runs a job.
func (b *build) runs(t testing.TB) error {
	t.Helper()
	if _, err := b.Connect(sshtest.Within(t)); err != nil {
		return err
	}
	result, err := b.Execute(sshtest.Within(t), connector.Job{Job: &stepmuxv1.Job{Script: "true"}}, &sshtest.Log{})
	if err != nil {
		return err
	}
	require.Equal(t, connector.Succeeded, result.Status, result.Message)
	return b.Close(sshtest.Within(t))
}

// requireProgram checks that dir has our program and nothing else.
func requireProgram(t testing.TB, dir string) {
	t.Helper()
	program := place(t, dir)
	for _, private := range []string{dir, filepath.Dir(program), program} {
		fi, err := os.Lstat(private)
		require.NoError(t, err)
		require.EqualValues(t, 0o700, fi.Mode().Perm(), private)
	}
	got, err := os.ReadFile(program)
	require.NoError(t, err)
	want, err := os.ReadFile(runnertest.Command(t)[0])
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "the same file")
	for in, names := range map[string]int{dir: 1, filepath.Dir(program): 1} {
		entries, err := os.ReadDir(in)
		require.NoError(t, err)
		require.Len(t, entries, names, "%v", entries)
	}
}

// logs returns a logger and its output.
func logs() (*slog.Logger, *sshtest.Log) {
	log := &sshtest.Log{}
	return slog.New(slog.NewTextHandler(log, nil)), log
}

//stepmux:acceptance program | A missing or wrong program is replaced by an upload if uploads are allowed, once for all
//stepmux:more builds
//stepmux:with connector.TestTwoManagersMayGiveAVMAStepmuxAtOnce
//stepmux:with connector.TestAStepmuxThatCannotRunThereIsReplacedIfAllowed
//stepmux:with connector.TestAStepmuxWithoutARelayIsReplacedIfAllowed
func TestAVMWithoutAStepmuxIsGivenOneByTheFirstOfManyBuilds(t *testing.T) {
	onBareVMs(t, func(t *testing.T, v *bareVM) {
		const builds = 50
		conn := connect(t, v.Server)
		vm := new(connector.VM)
		logger, log := logs()
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range builds {
			b := v.build(t, "b"+strconv.Itoa(i), func(c *connector.Config) {
				c.Lease, c.VM, c.Logger = &lease{conn: conn}, vm, logger
				c.ReadyTimeout = sshtest.Bound
			})
			wg.Go(func() {
				<-start
				_, err := b.Connect(sshtest.Within(t))
				if assertNoError(t, err) {
					assertNoError(t, b.Close(sshtest.Within(t)))
				}
			})
		}
		close(start)
		wg.Wait()
		require.Equal(t, 1, strings.Count(log.String(), "stepmux put on the VM"), log.String())
		require.Equal(t, 1, strings.Count(log.String(), "step runner found"), log.String())
		requireProgram(t, filepath.Join(v.cache, "stepmux"))
		found := vm.Program()
		require.True(t, found.Uploaded)
		require.Equal(t, program.Stepmux, found.Kind)
		require.Equal(t, []string{place(t, filepath.Join(v.cache, "stepmux"))}, found.Command)
		require.Equal(t, binary(t).Platform(), found.Platform)
		require.Equal(t, connector.Relay, vm.Choice().Start)

		// Over another connection it is looked for again, and found.
		before, err := os.Stat(found.Command[0])
		require.NoError(t, err)
		require.NoError(t, v.build(t, "again", func(c *connector.Config) { c.VM = vm }).runs(t))
		after, err := os.Stat(found.Command[0])
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after), "it was not sent again")
	})
}

// assertNoError is for goroutines that are not the test's.
func assertNoError(t testing.TB, err error) bool {
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

func TestTwoManagersMayGiveAVMAStepmuxAtOnce(t *testing.T) {
	v := newBareVM(t)
	var wg sync.WaitGroup
	for i := range 4 {
		b := v.build(t, "b"+strconv.Itoa(i), nil) // a connection and a VM of its own
		wg.Go(func() { assertNoError(t, b.runs(t)) })
	}
	wg.Wait()
	requireProgram(t, filepath.Join(v.cache, "stepmux"))
}

// unusable returns programs that are no usable stepmux, and the error text of each if no other may take its place.
func unusable(t testing.TB) map[string]struct {
	text string
	mode os.FileMode
	want string
} {
	machine, other := "\xb7", "linux/arm64"
	if binary(t).Platform() == other {
		machine, other = "\x3e", "linux/amd64"
	}
	return map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"not executable":     {"#!/bin/sh\nexit 0\n", 0o600, "cannot be executed: look at its mode"},
		"another machine's":  {elfFor(machine), 0o700, "is built for " + other + ", the VM is " + binary(t).Platform()},
		"without its loader": {"#!/no/such/interpreter\n", 0o700, "not the interpreter or the libraries it needs"},
	}
}

// elfFor is a program for a machine, by its number in ELF. It has no more than its header.
func elfFor(machine string) string {
	return "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00" + machine + "\x00" +
		strings.Repeat("\x00\xff", 400)
}

func TestAStepmuxThatCannotRunThereIsReplacedIfAllowed(t *testing.T) {
	onBareVMs(t, func(t *testing.T, v *bareVM) {
		routes := []connector.Route{connector.Auto, connector.Relay, connector.Session}
		if strings.HasSuffix(t.Name(), "/OpenSSH") { // another server changes nothing about the routes
			routes = routes[:1]
		}
		for name, test := range unusable(t) {
			for _, route := range routes {
				t.Run(name+" by "+string(route), func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "stepmux")
					require.NoError(t, os.WriteFile(path, []byte(test.text), test.mode))
					b := v.build(t, "b1", func(c *connector.Config) {
						c.Runner, c.Route = []string{path}, route
					})
					require.NoError(t, b.runs(t))
					require.Equal(t, []string{place(t, filepath.Join(v.cache, "stepmux"))}, b.program().Command)

					b = v.build(t, "b2", func(c *connector.Config) {
						c.Runner, c.Route, c.Bootstrap = []string{path}, route, nil
					})
					err := b.runs(t)
					require.Error(t, err)
					if route != connector.Relay {
						require.ErrorContains(t, err, test.want)
						require.ErrorContains(t, err, "stepmux run --bootstrap")
					}
				})
			}
		}
	})
}

func TestAStepmuxWithoutARelayIsReplacedIfAllowed(t *testing.T) {
	v := newBareVM(t)
	path := filepath.Join(t.TempDir(), "stepmux")
	platform := binary(t).Platform()
	old := "#!/bin/sh\ncase $1 in --version) printf 'Version: 0.1\\nName: stepmux\\nProtocol: 0\\nOS/Arch: " + platform +
		"\\n';; *) [ \"$2\" != relay ] || { echo no such command >&2; exit 1; }; exec " +
		runnertest.Command(t)[0] + ` "$@";; esac` + "\n"
	require.NoError(t, os.WriteFile(path, []byte(old), 0o700))
	for _, route := range []connector.Route{connector.Auto, connector.Session} {
		b := v.build(t, "b1", func(c *connector.Config) { c.Runner, c.Route, c.Bootstrap = []string{path}, route, nil })
		require.NoError(t, b.runs(t), "it is good for sessions")
		want := program.Program{Kind: program.Stepmux, Version: "0.1", Platform: platform, Command: []string{path}}
		require.Equal(t, want, b.program())
		b = v.build(t, "b2", func(c *connector.Config) {
			c.Runner, c.Route, c.Bootstrap = []string{path}, route, []*program.Binary{foreignBinary(t)}
		})
		require.NoError(t, b.runs(t), "and there is no other")
		require.Equal(t, []string{path}, b.program().Command)
		require.Equal(t, connector.Session, b.Choice().Start)
		b = v.build(t, "b3", func(c *connector.Config) { c.Runner, c.Route = []string{path}, route })
		require.NoError(t, b.runs(t))
		require.Equal(t, []string{place(t, filepath.Join(v.cache, "stepmux"))}, b.program().Command)
		require.Equal(t, route == connector.Auto, b.program().Uploaded, "only the first build sends it")
	}
}

func TestAStepmuxOfANewerProtocolIsDrivenBySessions(t *testing.T) {
	v := newBareVM(t)
	path := filepath.Join(t.TempDir(), "stepmux")
	newer := "#!/bin/sh\n[ \"$2\" != relay ] || { read x; echo stepmux-relay/7; exit 3; }\nexec " +
		runnertest.Command(t)[0] + " \"$@\"\n"
	require.NoError(t, os.WriteFile(path, []byte(newer), 0o700))
	b := v.build(t, "b1", func(c *connector.Config) { c.Runner = []string{path} })
	require.NoError(t, b.runs(t))
	require.Equal(t, []string{path}, b.program().Command)
	require.Equal(t, connector.Session, b.Choice().Start)
	require.Contains(t, b.Choice().StartReason, "version 7")
}

func TestThereMustBeAStepmuxForTheVMsPlatform(t *testing.T) {
	v := newBareVM(t)
	b := v.build(t, "b1", func(c *connector.Config) {
		c.Bootstrap = []*program.Binary{foreignBinary(t)}
	})
	err := b.runs(t)
	failed := (*connector.ServeError)(nil)
	require.ErrorAs(t, err, &failed)
	require.ErrorContains(t, err, "there is no stepmux for "+binary(t).Platform())
	require.ErrorContains(t, err, "a stepmux of make build")
	require.ErrorContains(t, err, "--bootstrap-binary "+binary(t).Platform()+"=FILE")
	require.ErrorContains(t, err, "exit status 127", "and why one is needed")
	require.NoDirExists(t, filepath.Join(v.cache, "stepmux"))
}

// mount mounts a tmpfs on a directory, for root.
func mount(t *testing.T, dir, options string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("part missing: only root can mount")
	}
	flags := uintptr(0)
	if options == "noexec" {
		flags, options = unix.MS_NOEXEC, ""
	}
	err := unix.Mount("stepmux-test", dir, "tmpfs", flags, options)
	if err != nil {
		t.Skipf("part missing: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
}

//stepmux:acceptance program | The upload skips a directory that is read-only, full, noexec or not private; if no other
//stepmux:more works, the error names each
//stepmux:with connector.TestWhereNoPlaceWillDoTheErrorNamesEach
func TestAPlaceThatWillNotDoIsPassedOver(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, v *bareVM){
		"noexec":    func(t *testing.T, v *bareVM) { mount(t, v.cache, "noexec") },
		"full":      func(t *testing.T, v *bareVM) { mount(t, v.cache, "size=1m") },
		"no inodes": func(t *testing.T, v *bareVM) { mount(t, v.cache, "nr_inodes=3") },
		"read-only": func(t *testing.T, v *bareVM) {
			mount(t, v.cache, "")
			require.NoError(t, unix.Mount("", v.cache, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		},
		"a link": func(t *testing.T, v *bareVM) {
			target := t.TempDir()
			require.NoError(t, os.Symlink(target, filepath.Join(v.cache, "stepmux")))
			t.Cleanup(func() {
				entries, err := os.ReadDir(target)
				require.NoError(t, err)
				require.Empty(t, entries)
			})
		},
		"a file": func(t *testing.T, v *bareVM) {
			require.NoError(t, os.WriteFile(filepath.Join(v.cache, "stepmux"), nil, 0o600))
		},
		"another's": func(t *testing.T, v *bareVM) {
			dir := filepath.Join(v.cache, "stepmux")
			require.NoError(t, os.Mkdir(dir, 0o777))
			if err := os.Chown(dir, 1234, 1234); err != nil {
				t.Skip("part missing: only root can give a directory away")
			}
		},
		"in a directory of another's": func(t *testing.T, v *bareVM) {
			if err := os.Chown(v.cache, 1234, 1234); err != nil {
				t.Skip("part missing: only root can give a directory away")
			}
		},
		"others may rename": func(t *testing.T, v *bareVM) { require.NoError(t, os.Chmod(v.cache, 0o777)) },
	} {
		t.Run(name, func(t *testing.T) {
			v := newBareVM(t)
			spoil(t, v)
			b := v.build(t, "b1", nil)
			require.NoError(t, b.runs(t))
			mine := filepath.Join(v.tmp, "stepmux-"+strconv.Itoa(os.Getuid()))
			require.Equal(t, []string{place(t, mine)}, b.program().Command)
			requireProgram(t, mine)
			parts, err := filepath.Glob(filepath.Join(v.cache, "stepmux", ".part.*"))
			require.NoError(t, err)
			require.Empty(t, parts)
		})
	}
}

func TestWhereNoPlaceWillDoTheErrorNamesEach(t *testing.T) {
	bin := onlyPrograms(t, "sh", "ls", "id", "uname", "od", "tr", "chmod", "mkdir", "rm", "rmdir") // no head
	v := newBareVM(t, "PATH="+bin)
	require.NoError(t, os.WriteFile(filepath.Join(v.cache, "stepmux"), nil, 0o600))
	other := "/var/tmp/stepmux-" + strconv.Itoa(os.Getuid()) // of a run that is no test, if it is there
	_, before := os.Lstat(other)
	err := v.build(t, "b1", nil).runs(t)
	failed := (*connector.ServeError)(nil)
	require.ErrorAs(t, err, &failed)
	require.ErrorContains(t, err, "in the user's cache: "+filepath.Join(v.cache, "stepmux")+" is no directory")
	require.ErrorContains(t, err, "in "+v.tmp+": ")
	require.ErrorContains(t, err, "in /var/tmp: ")
	require.ErrorContains(t, err, "head")
	if before != nil {
		require.NoDirExists(t, other)
	}
}

// onlyPrograms makes a directory for a PATH that has these programs and no others.
func onlyPrograms(t testing.TB, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	return dir
}

func TestTheProgramVerifiesItselfWhereNothingElseCan(t *testing.T) {
	bin := onlyPrograms(t, "sh", "ls", "id", "uname", "od", "tr", "chmod", "mkdir", "rm", "mktemp", "head", "wc",
		"sync", "mv", "touch", "find", "cut", "sed", "cat", "dd")
	v := newBareVM(t, "PATH="+bin)
	require.NoError(t, v.build(t, "b1", nil).runs(t))
	require.NoError(t, v.build(t, "b2", nil).runs(t), "and finds it again")
	requireProgram(t, filepath.Join(v.cache, "stepmux"))
}

func TestAFileThatIsNotWhatWasPutThereIsReplaced(t *testing.T) {
	v := newBareVM(t)
	program := place(t, filepath.Join(v.cache, "stepmux"))
	require.NoError(t, os.MkdirAll(filepath.Dir(program), 0o700))
	for _, spoil := range []func() error{
		func() error { return os.WriteFile(program, []byte("half of it"), 0o700) },
		func() error { return os.Chmod(program, 0o600) },
		func() error { return os.Remove(program) },
		func() error { _ = os.Remove(program); return os.Symlink("/bin/true", program) },
		func() error {
			_ = os.RemoveAll(filepath.Dir(program))
			return os.Symlink("/etc", filepath.Dir(program))
		},
	} {
		require.NoError(t, spoil())
		require.NoError(t, v.build(t, "b1", nil).runs(t))
		requireProgram(t, filepath.Join(v.cache, "stepmux"))
	}
}

// A build that put another program in the place of ours decided about the results of the builds after it.
//
//stepmux:faults vulnerabilities | A build replaces the step runner's file, and so decides about the results of the next
//stepmux:more builds on that VM | the relay starts its own program, whatever is at its path
func TestAProgramThatABuildReplacedIsNotRunForTheNextBuilds(t *testing.T) {
	onBareVMs(t, func(t *testing.T, v *bareVM) {
		for _, route := range []connector.Route{connector.Auto, connector.Session} {
			t.Run(string(route), func(t *testing.T) {
				first := v.build(t, "b1", func(c *connector.Config) { c.Route = route })
				require.NoError(t, first.runs(t))
				program := place(t, filepath.Join(v.cache, "stepmux"))
				ran := filepath.Join(t.TempDir(), "ran")
				require.NoError(t, os.Remove(program))
				require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n: >"+ran+"\nexit 3\n"), 0o700))
				for _, id := range []string{"b2", "b3", "b4"} {
					next := v.build(t, id, func(c *connector.Config) {
						c.VM, c.Lease, c.Route = first.vm, first.lease, route
					})
					err := next.runs(t)
					// The relay starts the program that it runs itself. By session b2 may have a step runner that was
					// started ahead, before the program was replaced.
					if route == connector.Auto || id == "b2" && err == nil {
						require.NoError(t, err)
						continue
					}
					require.ErrorContains(t, err, "has changed since stepmux put it there")
				}
				require.NoFileExists(t, ran)
				require.NoError(t, v.build(t, "b5", func(c *connector.Config) { c.Route = route }).runs(t),
					"over another connection it is put there again")
			})
		}
	})
}

// Symptom: an upload of another version removed the program of a relay that had run for 14 days, and its
// stepmux-fetch: jobs could not fetch steps any more.
func TestOldProgramsAreSweptUnlessTheyRun(t *testing.T) {
	v := newBareVM(t)
	dir := filepath.Join(v.cache, "stepmux")
	old := time.Now().Add(-20 * 24 * time.Hour)
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	text, err := os.ReadFile(sleep)
	require.NoError(t, err)
	recent := time.Now().Add(-24 * time.Hour)
	for name, when := range map[string]time.Time{"unused": old, "running": old, "recent": recent} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "stepmux"), text, 0o700))
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), when, when))
	}
	part := filepath.Join(dir, ".part.abcdef")
	require.NoError(t, os.WriteFile(part, nil, 0o600))
	require.NoError(t, os.Chtimes(part, old, old))
	path := filepath.Join(dir, "running", "stepmux")
	require.NoError(t, os.Remove(path))
	runnertest.Copy(t, runnertest.Command(t)[0], path)
	require.NoError(t, os.Chtimes(filepath.Dir(path), old, old))
	running := exec.CommandContext(t.Context(), path, "steps", "serve", "--socket", "-")
	stdin, err := running.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, running.Start())
	defer func() {
		_ = stdin.Close()
		_ = running.Wait()
	}()
	hides := func() bool { // root sees everything
		_, err := os.Readlink("/proc/" + strconv.Itoa(running.Process.Pid) + "/exe")
		return err != nil || os.Geteuid() == 0
	}
	require.Eventually(t, hides, sshtest.Bound, time.Millisecond)
	require.NoError(t, v.build(t, "b1", nil).runs(t))
	require.NoDirExists(t, filepath.Join(dir, "unused"))
	require.DirExists(t, filepath.Join(dir, "running"))
	require.DirExists(t, filepath.Join(dir, "recent"))
	require.NoFileExists(t, part)
	require.FileExists(t, place(t, dir))
}

// aSmallProgram builds a program that does nothing, and has the build information of the VM's end. Under the race
// detector the real one takes too long to pack.
func aSmallProgram(t *testing.T) []byte {
	t.Helper()
	dir, err := filepath.Abs("../cmd/stepmux-vm")
	require.NoError(t, err)
	in := t.TempDir()
	small, overlay, path := filepath.Join(in, "main.go"), filepath.Join(in, "overlay"), filepath.Join(in, "stepmux-vm")
	require.NoError(t, os.WriteFile(small, []byte("package main\n\nfunc main() {}\n"), 0o600))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(dir, "main.go"): small}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-overlay", overlay, "-o", path, dir)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

func TestAFileThatChangedIsNotPutThere(t *testing.T) {
	text := aSmallProgram(t)
	for name, change := range map[string][]byte{
		"another": append(bytes.Clone(text[:len(text)-1]), text[len(text)-1]+1), "shorter": text[:len(text)/2],
	} {
		t.Run(name, func(t *testing.T) {
			v := newBareVM(t)
			path := filepath.Join(t.TempDir(), "stepmux")
			require.NoError(t, os.WriteFile(path, text, 0o700))
			b, err := program.LoadBinary(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, change, 0o700))
			err = v.build(t, "b1", func(c *connector.Config) { c.Bootstrap = []*program.Binary{b} }).runs(t)
			require.ErrorContains(t, err, "put stepmux ")
			require.ErrorContains(t, err, map[string]string{
				"another": "what arrived has another checksum than the file had", "shorter": ": the file has changed",
			}[name])
			left, err := filepath.Glob(filepath.Join(v.cache, "stepmux", "*", "*"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestAProgramThatDoesNotRunThereIsTakenAwayAgain(t *testing.T) {
	var file bytes.Buffer
	zip := gzip.NewWriter(&file)
	_, err := zip.Write([]byte(elfFor("\xf3"))) // RISC-V
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	b := packed(file.Bytes())
	onBareVMs(t, func(t *testing.T, v *bareVM) {
		for _, route := range []connector.Route{connector.Auto, connector.Session} {
			err := v.build(t, "b1", func(c *connector.Config) {
				c.Route, c.Bootstrap = route, []*program.Binary{b}
			}).runs(t)
			require.ErrorContains(t, err, "the stepmux that was put on the VM does not run there")
			require.ErrorContains(t, err, "is built for linux/riscv64")
			left, err := filepath.Glob(filepath.Join(v.cache, "stepmux", "*"))
			require.NoError(t, err)
			require.Empty(t, left)
		}
	})
}

func TestAnUploadThatIsCutOffLeavesNothingAndTheNextOneIsWhole(t *testing.T) {
	v := newBareVM(t)
	proxy := sshtest.Proxy(t, v.Addr)
	behind := *v
	behind.Server = v.Via(t, proxy.Addr())
	b := behind.build(t, "b1", nil)
	failed := make(chan error, 1)
	go func() {
		_, err := b.Connect(sshtest.Within(t))
		failed <- err
	}()
	require.Eventually(t, func() bool {
		parts, _ := filepath.Glob(filepath.Join(v.cache, "stepmux", ".part.*"))
		return len(parts) > 0 || b.program().Uploaded
	}, sshtest.Bound, 100*time.Microsecond)
	proxy.Cut()
	lost := (*mux.ConnError)(nil)
	if err := <-failed; err != nil { // it may have been quicker
		require.ErrorAs(t, err, &lost)
	}
	dir := filepath.Join(v.cache, "stepmux")
	require.Eventually(t, func() bool { // the upload has ended: it removes its directory last, unless it was quicker
		parts, err := filepath.Glob(filepath.Join(dir, ".part.*"))
		_, gone := os.Stat(dir)
		_, whole := os.Stat(place(t, dir))
		return err == nil && len(parts) == 0 && (whole == nil || errors.Is(gone, fs.ErrNotExist))
	}, sshtest.Bound, 5*time.Millisecond)
	require.NoError(t, v.build(t, "b2", nil).runs(t))
	requireProgram(t, dir)
}

func TestAnotherBuildGoesOnWhenTheFirstGivesUp(t *testing.T) {
	v := newBareVM(t)
	conn, vm := connect(t, v.Server), new(connector.VM)
	share := func(c *connector.Config) { c.Lease, c.VM = &lease{conn: conn}, vm }
	for range 10 {
		first, second := v.build(t, "b1", share), v.build(t, "b2", share)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { _, err := first.Connect(ctx); ended <- err }()
		go func() { _, err := second.Connect(sshtest.Within(t)); ended <- err }()
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				require.Equal(t, context.Canceled, err)
			}
		}
		require.NoError(t, second.Close(sshtest.Within(t)))
		require.NoError(t, first.Close(sshtest.Within(t)))
	}
	require.Equal(t, []string{place(t, filepath.Join(v.cache, "stepmux"))}, vm.Program().Command)
}

func TestALoginShellThatTalksDoesNotDisturbAnUpload(t *testing.T) {
	shell := filepath.Join(t.TempDir(), "shell")
	talks := "#!/bin/sh\necho 'Welcome, dear user'\nprintf '$ '\nexec /bin/sh \"$@\"\n"
	require.NoError(t, os.WriteFile(shell, []byte(talks), 0o700))
	v := &bareVM{cache: t.TempDir(), tmp: sshtest.SocketDir(t)}
	v.Server = sshtest.InProcess(t, embeddedvm.Config{Shell: shell, Env: []string{"XDG_CACHE_HOME=" + v.cache}})
	for _, route := range []connector.Route{connector.Auto, connector.Streamlocal} {
		b := v.build(t, "b1", func(c *connector.Config) { c.Route = route })
		require.NoError(t, b.runs(t))
		require.NotEmpty(t, b.program().Version)
	}
}

func TestOnlyAStepmuxIsLoaded(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("#!/bin/sh\n"), 0o700))
	for path, want := range map[string]string{
		"/no/such/file": "no such file",
		text:            "is no stepmux program",
		runnertest.GitLabRunner(t)[0]: "is no stepmux program, " +
			"but github.com/stepmux/stepmux/internal/testing/runnertest/gitlabrunner",
	} {
		_, err := program.LoadBinary(path)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
	}
}
