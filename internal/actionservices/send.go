package actionservices

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// opened is an open file of the Store.
type opened struct {
	*os.File
	sum  string // its SHA-256; empty if it is not known
	size int64
}

// Content lets the other end of a connection take the file from its own archives: see connector.Services.
func (f opened) Content() (digest string, size int64) { return f.sum, f.size }

// send answers with a file that was opened, or with parts of it, and closes it. The caller has called transfer.
func send(w http.ResponseWriter, r *http.Request, file opened, err error, at time.Time) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errGone
	}
	if err != nil {
		return err
	}
	defer file.Close()
	http.ServeContent(early{w}, r, "", at, file)
	return nil
}

// early sends the header of an answer before its content. Otherwise net/http would send the first bytes of a part with
// the header, and pass only the others to the ReadFrom of the connection.
type early struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w early) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(status)
	_ = http.NewResponseController(w.ResponseWriter).Flush() // later writes fail, too
}

// ReadFrom implements io.ReaderFrom.
func (w early) ReadFrom(r io.Reader) (int64, error) { return io.Copy(w.ResponseWriter, r) }

// saved is a cache that the client has uploaded, without its content.
type saved struct {
	strings.Reader
	sum  string
	size int64
}

// Content lets the other end keep the file if it has it: see connector.Services.
func (f *saved) Content() (digest string, size int64) { return f.sum, f.size }

// replySaved is reply for a request that has saved a cache. The client removes its file when it has the whole answer,
// so the other end hears of the cache before that.
func replySaved(w http.ResponseWriter, status int, v any, of saved) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // there are texts and numbers only
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	early{w}.WriteHeader(status)
	_, _ = io.Copy(w, io.LimitReader(&of, 0)) // the client has gone
	_, _ = w.Write(text)                      // as above
}
