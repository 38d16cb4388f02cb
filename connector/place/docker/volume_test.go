package docker

import (
	"archive/tar"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

// Symptom: two managers that put stepmux on one daemon at the same time ended each other's builds: "text file busy".
func TestAProgramOnADaemonIsNeverAPartOfItself(t *testing.T) {
	path, err := runnertest.Program()
	require.NoError(t, err)
	bin, err := program.LoadBinary(path)
	require.NoError(t, err)
	salted := func() (names []string) {
		r := archiveOf(bin, "bin", nil)
		defer r.Close()
		whole := map[string]int64{}
		for archive := tar.NewReader(r); ; {
			h, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return names
			}
			require.NoError(t, err)
			if h.Typeflag == tar.TypeLink {
				require.Positive(t, whole[h.Linkname], "%s is a link of a file that is there", h.Name)
				require.NotNil(t, bin.Files()[h.Name[len("bin/"):]])
				names = append(names, h.Linkname)
				continue
			}
			n, err := io.Copy(io.Discard, archive)
			require.NoError(t, err)
			whole[h.Name] = n
		}
	}
	first := salted()
	require.Len(t, first, len(bin.Files()))
	require.NotContains(t, salted(), first[0], "each manager has names of its own")
}
