package bench

import (
	"compress/gzip"
	"crypto/rand"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/faultconn"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// BenchmarkBootstrap measures the first build on a VM that has nothing, over a round trip of 50 ms and 20 Mbit/s,
// from the dial to the step runner's first answer: with the VM's end that a manager carries, and with the whole
// program.
func BenchmarkBootstrap(b *testing.B) {
	whole, err := program.LoadBinary(programs.goBuild(b, "github.com/stepmux/stepmux/cmd/stepmux"))
	require.NoError(b, err)
	v := newBareVM(b)
	all := []candidate{v.firstUpload(b, "carried", carriedEnd(b)), v.firstUpload(b, "whole-packed", whole)}
	b.Run("rtt=50ms/Mbit=20", func(b *testing.B) {
		r := inTurns(b, once, all)
		r.medians("ms", names(all)...)
		r.ratios("carried", names(all)...)
	})
}

// carriedEnd returns the VM's end as `make build` puts it into the manager.
func carriedEnd(b *testing.B) *program.Binary {
	b.Helper()
	text, err := os.ReadFile(stepmux(b))
	require.NoError(b, err)
	path := filepath.Join(b.TempDir(), "end.gz")
	file, err := os.Create(path)
	require.NoError(b, err)
	zip, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	require.NoError(b, err)
	_, err = zip.Write(text)
	require.NoError(b, err)
	require.NoError(b, zip.Close())
	require.NoError(b, file.Close())
	return program.PackedBinary(runtime.GOOS+"/"+runtime.GOARCH, func() (io.ReadCloser, error) { return os.Open(path) })
}

// bareVM is a distant VM without a stepmux.
type bareVM struct {
	*vm
	cache string // the user's directory for caches
}

// newBareVM returns one with the programs that an upload needs.
func newBareVM(b *testing.B) *bareVM {
	b.Helper()
	bin, cache := b.TempDir(), b.TempDir()
	needed := []string{
		"sh", "ls", "id", "uname", "od", "tr", "chmod", "mkdir", "rm", "rmdir", "mktemp", "head", "wc", "sync", "mv",
		"touch", "find", "cut", "sed", "cat", "dd", "sha256sum", "gzip",
	}
	for _, name := range needed {
		path, err := exec.LookPath(name)
		require.NoError(b, err)
		require.NoError(b, os.Symlink(path, filepath.Join(bin, name)))
	}
	near := newVM(b, "SetEnv SHLVL=1 XDG_CACHE_HOME="+cache+" PATH="+bin)
	proxy := sshtest.ProxyOver(b, near.Addr, faultconn.Config{Delay: 25 * time.Millisecond, Bandwidth: 20e6 / 8})
	return &bareVM{&vm{near.Via(b, proxy.Addr()), near.tmp}, cache}
}

// firstUpload is the first build on the VM, by an upload of a program.
func (v *bareVM) firstUpload(b *testing.B, name string, end *program.Binary) candidate {
	b.Helper()
	return candidate{name: name, run: func(r *results) error {
		if err := os.RemoveAll(filepath.Join(v.cache, "stepmux")); err != nil {
			return err
		}
		begin := time.Now()
		conn, err := mux.Dial(b.Context(), v.Addr, v.muxConfig())
		if err != nil {
			return err
		}
		defer conn.Close()
		c, err := connector.New(connector.Config{
			Lease: lease{conn}, VM: new(connector.VM), BuildID: rand.Text(), Runner: []string{"/no/such/stepmux"},
			Options: vmconfig.Options{TempDir: v.tmp}, Bootstrap: []*program.Binary{end}, ReadyTimeout: time.Minute,
		})
		if err != nil {
			return err
		}
		started := &build{connector: c}
		dial, err := c.Connect(b.Context())
		if err == nil {
			started.client, err = firstCall(b.Context(), dial, grpc.WithPerRPCCredentials(c.Credentials()))
		}
		if err == nil {
			r.add(name, micros(time.Since(begin))/1000)
		}
		if closed := started.close(b.Context()); err == nil {
			err = closed
		}
		return err
	}}
}
