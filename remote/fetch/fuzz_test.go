package fetch

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzListing reads what git says of a tree: what is read fits the limits.
func FuzzListing(f *testing.F) {
	f.Add("100644 blob 0123 5\ta\x00120000 blob 0123 1\tl\x00160000 commit 0123 -\tm\x00")
	f.Add("100644 blob 0123 99999999999999999999\ta\x00")
	f.Add("40000 tree 0123 -\tx\x00\x00")
	f.Fuzz(func(t *testing.T, listing string) {
		l := limits{entries: 20, file: 1 << 20, total: 2 << 20}
		objects, err := parseTree(listing, l)
		if err != nil {
			require.Less(t, len(err.Error()), 2000)
			return
		}
		require.LessOrEqual(t, len(objects), l.entries)
		var total int64
		for _, o := range objects {
			require.Contains(t, []string{modeFile, modeExecutable, modeSymlink, modeGitlink}, o.mode)
			require.NotContains(t, o.path, "\x00")
			require.GreaterOrEqual(t, o.size, int64(0))
			require.LessOrEqual(t, o.size, l.file)
			total += o.size
		}
		require.LessOrEqual(t, total, l.total)
	})
}

// FuzzLayers writes what the layers of an image say, and looks for what is where it should not be.
func FuzzLayers(f *testing.F) {
	archive := func(headers ...tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			h.Mode = 0o755
			h.Size = 0
			_ = w.WriteHeader(&h)
		}
		_ = w.Close()
		return b.Bytes()
	}
	f.Add(archive(tar.Header{Name: "a/b", Typeflag: tar.TypeReg}), archive(tar.Header{Name: "a/.wh.b", Typeflag: tar.TypeReg}))
	f.Add(archive(tar.Header{Name: "../../evil", Typeflag: tar.TypeReg}), archive(tar.Header{Name: "/abs", Typeflag: tar.TypeReg}))
	f.Add(archive(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../.."}), archive(tar.Header{Name: "l/x", Typeflag: tar.TypeReg}))
	f.Add(archive(tar.Header{Name: "d", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}), archive(tar.Header{Name: "a/.wh..wh..opq", Typeflag: tar.TypeReg}))
	f.Fuzz(func(t *testing.T, upper, lower []byte) {
		dir := t.TempDir()
		inner := filepath.Join(dir, "in")
		require.NoError(t, os.Mkdir(inner, 0o700))
		w, err := newTreeWriter(filepath.Join(inner, treeName), limits{entries: 100, file: 1 << 20, total: 1 << 20, ratio: 200})
		require.NoError(t, err)
		defer w.close()
		flat := &flattener{w: w, above: map[string]bool{}, opaque: map[string]bool{}}
		for _, layer := range [][]byte{upper, lower} {
			if err = flat.layer(tar.NewReader(bytes.NewReader(layer))); err != nil {
				break
			}
		}
		var nodes []node
		if err == nil {
			nodes, err = w.finish()
		}
		for _, d := range []string{dir, inner} {
			entries, readErr := os.ReadDir(d)
			require.NoError(t, readErr)
			require.Len(t, entries, 1)
		}
		if err != nil {
			return
		}
		for _, n := range nodes {
			require.NoError(t, n.check(w.root), n.Path)
			require.False(t, strings.HasPrefix(filepath.Base(n.Path), whiteout), n.Path)
		}
	})
}
