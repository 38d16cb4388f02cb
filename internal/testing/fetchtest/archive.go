package fetchtest

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
)

// Zip returns an archive of files.
func Zip(t TB, files Files) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		content, mode := f.Content, fs.FileMode(0o644)
		switch {
		case f.Symlink != "":
			content, mode = f.Symlink, 0o777|fs.ModeSymlink
		case f.Executable:
			mode = 0o755
		}
		h.SetMode(mode)
		w, err := z.CreateHeader(h)
		require.NoError(t, err)
		_, err = io.WriteString(w, content)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

// SHA256 returns the digest of data in hexadecimal.
func SHA256(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
