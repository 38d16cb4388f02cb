package manager

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance/manager/archive"
)

// maxRemarkTrace bounds a trace from which annotations and a summary are made, in bytes. It is read into memory.
const maxRemarkTrace = 32 << 20

// keptTrace is the trace of a build on its way to the files that are kept: a file that the first write makes. It is for
// one goroutine at a time.
type keptTrace struct {
	m    *Manager
	id   string
	file *os.File // nil before
	// whole says that the trace is kept, and remarks that its annotations and summaries are.
	whole, remarks bool
	begun          bool // something of it came
}

// Write implements io.Writer.
func (t *keptTrace) Write(p []byte) (n int, err error) {
	if t.begun = true; t.file == nil {
		if t.file, err = t.create(); err != nil {
			return 0, err
		}
	}
	return t.file.Write(p)
}

func (t *keptTrace) create() (*os.File, error) {
	return os.CreateTemp(archive.Config{Dir: t.m.cfg.Dir}.Arrivals(), ".trace-")
}

// end keeps the trace, or the remarks in it, and drops it if err tells that it is not complete.
func (t *keptTrace) end(err error) error {
	if t.file == nil {
		err = cmp.Or(err, errors.New("the trace is empty"))
	} else {
		defer discard(t.file)
	}
	if err == nil && t.remarks {
		err = t.keepRemarks()
	}
	if err == nil && t.whole {
		err = t.keep(archive.Trace(t.id), t.file)
	}
	switch {
	case err == nil:
		return nil
	case t.whole:
		return fmt.Errorf("there is no trace: %w", err)
	case !t.begun && !errors.Is(err, connector.ErrNoTrace): // nothing of the job has run, or its failure says more
		return nil
	default:
		return fmt.Errorf("there is no report of annotations and of a summary: %w", err)
	}
}

// discard closes a file and removes it, unless it has another name by now.
func discard(file *os.File) {
	file.Close()
	_ = os.Remove(file.Name())
}

func (t *keptTrace) keep(name string, file *os.File) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return t.m.files.KeepResult(t.m.life, name, file)
}

// keepRemarks keeps the annotations and the summary of the job, if it has any. One trace is read at a time.
func (t *keptTrace) keepRemarks() error {
	t.m.remarks.Lock()
	defer t.m.remarks.Unlock()
	size, err := t.file.Seek(0, io.SeekCurrent)
	if err == nil && size > maxRemarkTrace {
		err = fmt.Errorf("the trace has %d bytes, at most %d are read for its annotations", size, maxRemarkTrace)
	}
	if err != nil {
		return err
	}
	text := make([]byte, size)
	if _, err := t.file.ReadAt(text, 0); err != nil {
		return err
	}
	remarks, err := t.m.cfg.Pipelines.Remarks(text)
	if err != nil || remarks == nil {
		return err
	}
	file, err := t.create()
	if err != nil {
		return err
	}
	defer discard(file)
	if _, err := file.Write(remarks); err != nil {
		return err
	}
	return t.keep(archive.Remarks(t.id), file)
}
