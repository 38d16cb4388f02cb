package transfer

import (
	"fmt"
	"io"
	"net/http"
	"os"

	"golang.org/x/sys/unix"
)

// Save writes the body of an answer to file, at most limit bytes and nine tenths of the file system's free space.
func Save(file *os.File, resp *http.Response, limit int64) error {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &stat); err != nil {
		return Local(fmt.Errorf("find the free space for the download: %w", err))
	}
	free := min(stat.Bavail, uint64(limit)/uint64(stat.Bsize)+1) * uint64(stat.Bsize) / 10 * 9
	limit = min(limit, int64(free))
	tooLarge := func() error {
		return Local(fmt.Errorf("the download is larger than the limit of %s, which is nine tenths of the free space or less",
			Size(limit)))
	}
	if resp.ContentLength > limit {
		return tooLarge()
	}
	n, err := io.Copy(localWriter{file}, io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return err
	case n > limit:
		return tooLarge()
	}
	return nil
}

// localWriter marks errors of writing as errors of this machine.
type localWriter struct{ w io.Writer }

func (w localWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	return n, Local(err)
}
