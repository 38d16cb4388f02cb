package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// programs are the programs that the benchmarks run. TestMain removes them.
var programs builds

// builds builds programs, each once.
type builds struct {
	mu   sync.Mutex // guards the following
	dir  string
	path map[string]string // by target
}

// stepmux returns the path of the VM's end, built as for a release but for the version.
func stepmux(b *testing.B) string { return programs.copy(b, "stepmux-vm", runnertest.Program) }

// empty returns the path of a program that does nothing.
func empty(b *testing.B) string { return programs.goBuild(b, "./testdata/empty") }

// iocopy returns the path of a proxy that is written in the obvious way.
func iocopy(b *testing.B) string { return programs.goBuild(b, "./testdata/iocopy") }

// goBuild builds the program of a package.
func (p *builds) goBuild(b *testing.B, target string) string {
	b.Helper()
	return p.copy(b, target, func() (string, error) {
		linked := filepath.Join(b.TempDir(), "linked")
		out, err := exec.CommandContext(b.Context(), "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-tags",
			"grpcnotrace", "-gcflags", "all=-dwarf=false", "-ldflags", "-s -w", "-o", linked, target).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("build %s: %w: %s", target, err, out)
		}
		return linked, nil
	})
}

// copy builds target, once, and returns the path of a copy.
func (p *builds) copy(b *testing.B, target string, build func() (string, error)) string {
	b.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if path := p.path[target]; path != "" {
		return path
	}
	if p.dir == "" {
		dir, err := os.MkdirTemp("", "bench") //nolint:usetesting // outlives the benchmark
		require.NoError(b, err)
		p.dir, p.path = dir, make(map[string]string)
	}
	linked, err := build()
	require.NoError(b, err)
	path := filepath.Join(p.dir, filepath.Base(target))
	require.NoError(b, upload(linked, path))
	p.path[target] = path
	return path
}

// upload copies a program in pieces, as it comes to a VM. How it was written is how the page cache has it: a file that
// a linker has written is there in pages, and starts later, and one of a single write is in pieces of 2 MiB, each of
// which the kernel maps as a whole.
func upload(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	file, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{source}, make([]byte, 128<<10))
	return errors.Join(err, file.Close())
}

func (p *builds) remove() {
	if err := os.RemoveAll(p.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
