// Package runnertest builds the program for tests of the manager's end, which use it as the step runner on their VMs.
// It is built once per test binary, and without the race detector, which would make each of the many processes several
// times slower. [Main] runs the tests and removes it. Test binaries that run with the same [DirVar] share it.
package runnertest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// fetchProgram is the file beside the VM's end that has the commands for the network.
const fetchProgram = "stepmux-fetch"

// DirVar names an environment variable with an existing directory. The programs are built there, once for all test
// binaries that get the variable, and stay. The process that sets it removes the directory; .ci/run does.
const DirVar = "STEPMUX_TEST_PROGRAMS"

// dir holds the built programs if there is no DirVar. The first Command makes it, and Main removes it.
var dir string

// Copy copies a program to a file of the test's own, which is there whole or not at all. It does so by cp(1): what this
// process has open for writing cannot be run while one of its children is about to start.
func Copy(t testing.TB, from, to string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "cp", "--", from, to+".part").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Rename(to+".part", to))
}

// Main runs the tests, checks that no goroutine is left and exits. TestMain calls it.
func Main(m *testing.M) { os.Exit(M{M: m}.Run()) }

// M runs tests as Main does, for a TestMain that does more than that.
type M struct {
	*testing.M
	// Leaks are goroutines that are not leaks of a test.
	Leaks []goleak.Option
}

// Run runs the tests and returns the exit code.
func (m M) Run() int {
	// Tests keep the pipes and files by which they follow their jobs in /tmp, where isolation would hide them. Tests of
	// isolation ask for it by name.
	_ = os.Setenv(vmconfig.LevelVar, cmp.Or(os.Getenv(vmconfig.LevelVar), "off")) // fails only for a malformed name
	// By nohup. A child does not ignore what its parent listens for.
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	code := m.M.Run()
	if code == 0 {
		if err := goleak.Find(m.Leaks...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	_ = os.RemoveAll(dir) // in the system's directory for temporary files
	return code
}

// Command returns the step runner's command.
func Command(t testing.TB) []string {
	t.Helper()
	program, err := Program()
	require.NoError(t, err)
	return []string{program}
}

// Program builds the VM's end for this machine, once, and returns the path of its stepmux-vm. The stepmux-fetch that
// belongs to it is in the same directory.
var Program = sync.OnceValues(func() (string, error) {
	in, err := tempDir()
	if err != nil {
		return "", err
	}
	program := filepath.Join(in, "stepmux-vm")
	return program, Once(program, func() error { return BuildEnd(program) })
})

// BuildEnd builds the VM's end to a file, like a release except for the version. So packages that `make build` has
// compiled are not compiled again. env may name another machine: GOARCH=arm64.
func BuildEnd(file string, env ...string) error { return runMake("vm-end", file, env...) }

// runMake makes the target of the Makefile with that file as OUT.
func runMake(target, file string, env ...string) error {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	// Otherwise a make that runs the tests would pass on its own flags.
	cmd := exec.Command("make", "-s", "-C", strings.TrimSpace(string(root)),
		target, "OUT="+file, "VERSION=devel", "COMMIT=")
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=false")
	cmd.Env = append(cmd.Env, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make %s: %w: %s", target, err, out)
	}
	return nil
}

// Packed returns the path of the VM's stepmux-vm as a gzip file, as a manager carries it, and PackedFetch that of its
// stepmux-fetch. The gzip program packs them: our own, under the race detector, takes many times as long.
var (
	Packed      = sync.OnceValues(func() (string, error) { return pack("stepmux-vm") })
	PackedFetch = sync.OnceValues(func() (string, error) { return pack(fetchProgram) })
)

// pack packs one of the programs that Program builds.
func pack(name string) (string, error) {
	end, err := Program()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(end), name)
	return path + ".gz", Once(path+".gz", func() error {
		if out, err := exec.Command("gzip", "--keep", "--force", "--fast", path).CombinedOutput(); err != nil {
			return fmt.Errorf("pack the VM's end: %w: %s", err, out)
		}
		return nil
	})
}

// Manager builds the program of the manager, once, as `make build` does: it carries the VM's end for this machine. It
// returns the program's path.
func Manager(t testing.TB) string {
	t.Helper()
	path, err := manager()
	require.NoError(t, err)
	return path
}

var manager = sync.OnceValues(func() (string, error) {
	end, err := Program()
	if err != nil {
		return "", err
	}
	return buildManager(end)
})

// CustomExecutor builds the driver of GitLab Runner's custom executor, once, and returns its path.
func CustomExecutor(t testing.TB) string {
	t.Helper()
	path, err := build("stepmux-custom-executor", module+"cmd/stepmux-custom-executor", "grpcnotrace")
	require.NoError(t, err)
	return path
}

// buildManager builds the manager's program around the VM's end in the file end. It tells the go command that the
// packed files are where make puts them.
func buildManager(end string) (string, error) {
	replace := map[string]string{}
	source, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/stepmux/stepmux/cmd/stepmux").Output()
	if err != nil {
		return "", fmt.Errorf("find the source of cmd/stepmux: %w", err)
	}
	for name, packed := range map[string]func() (string, error){"stepmux-vm": Packed, fetchProgram: PackedFetch} {
		file, err := packed()
		if err != nil {
			return "", err
		}
		name += "-" + runtime.GOOS + "-" + runtime.GOARCH + ".gz"
		replace[filepath.Join(strings.TrimSpace(string(source)), "carried", name)] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	if err := Once(end+".overlay", func() error { return os.WriteFile(end+".overlay", overlay, 0o600) }); err != nil {
		return "", err
	}
	linked, err := build("stepmux.linked", module+"cmd/stepmux", "grpcnotrace,carry", "-overlay", end+".overlay")
	if err != nil {
		return "", err
	}
	program := strings.TrimSuffix(linked, ".linked")
	return program, Once(program, func() error { return runMake("finish", program) })
}

// GitLabRunner returns the command of a stand-in for GitLab Runner's step runner. The comment of its package describes
// it.
func GitLabRunner(t testing.TB) []string {
	t.Helper()
	program, err := build("gitlab-runner", module+"internal/testing/runnertest/gitlabrunner", "grpcnotrace")
	require.NoError(t, err)
	return []string{program}
}

// NATSServer builds NATS' server, once, and returns its path.
func NATSServer(t testing.TB) string {
	t.Helper()
	path, err := build("nats-server", "github.com/nats-io/nats-server/v2", "")
	require.NoError(t, err)
	return path
}

const module = "github.com/stepmux/stepmux/"

// build builds a program, without debug information, and with the other flags of the Makefile: so the
// packages that `make build` has compiled are not compiled again.
func build(name, pkg, tags string, flags ...string) (string, error) {
	in, err := tempDir()
	if err != nil {
		return "", err
	}
	program := filepath.Join(in, name)
	args := slices.Concat(
		[]string{
			"build", "-trimpath", "-buildvcs=false", "-tags", tags, "-gcflags", "all=-dwarf=false", "-ldflags", "-s -w",
			"-o", program,
		}, flags, []string{pkg})
	return program, Once(program, func() error {
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", name, err, out)
		}
		return nil
	})
}

// Once builds file, unless another test binary has built it. A lock beside the file makes other test binaries wait for
// the one that builds. A mark in the lock's file says that the build has succeeded.
func Once(file string, build func() error) error {
	lock, err := os.OpenFile(file+".built", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("wait for the build of %s: %w", file, err)
	}
	if state, err := lock.Stat(); err != nil || state.Size() > 0 {
		return err
	}
	if err := build(); err != nil {
		return err
	}
	_, err = lock.WriteString("built\n")
	return err
}

// tempDir returns the directory of DirVar, or makes dir, once.
var tempDir = sync.OnceValues(func() (string, error) {
	if shared := os.Getenv(DirVar); shared != "" {
		return shared, nil
	}
	var err error
	dir, err = os.MkdirTemp("", "runnertest")
	return dir, err
})
