package transfer

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

// Save writes the body of an answer to file, at most limit bytes.
func Save(file *os.File, resp *http.Response, limit int64) error {
	tooLarge := Local(fmt.Errorf("the download is larger than the limit of %s, which is nine tenths of the free space or "+
		"less", Size(limit)))
	if resp.ContentLength > limit {
		return tooLarge
	}
	n, err := io.Copy(localWriter{file}, io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return err
	case n > limit:
		return tooLarge
	}
	return nil
}

// localWriter marks errors of writing as errors of this machine.
type localWriter struct{ w io.Writer }

func (w localWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	return n, Local(err)
}
