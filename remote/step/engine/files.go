package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/stepmux/stepmux/internal/oserr"
)

// maxFile bounds the part of an output or export file that is read, in bytes.
const maxFile = 8 << 20

// files are the output and export files of a step, in a directory of its own. They are made only for steps that can
// know their paths: most steps need no files, and to make them costs more than the rest of a short step.
type files struct {
	in     scriptDir
	name   string // of their directory
	wanted bool   // the step knows their paths
}

// path returns the path of the file kind: output, export or step.json.
func (f *files) path(kind string) string { return f.in.join(f.entry(kind)) }

func (f *files) entry(kind string) string { return filepath.Join(f.name, kind) }

// create makes the files, empty, if they are wanted.
func (f *files) create() error {
	if !f.wanted {
		return nil
	}
	if err := f.in.mkdir(f.name); err != nil {
		return fmt.Errorf("create directory for outputs: %w", err)
	}
	for _, kind := range []string{"output", "export"} {
		if err := f.in.write(f.entry(kind), "", kind+" file"); err != nil {
			return err
		}
	}
	return nil
}

// read returns the content of the file kind. The step may have put anything in its place.
func (f *files) read(kind string) ([]byte, error) {
	if !f.wanted {
		return nil, nil
	}
	data, err := f.in.read(f.entry(kind))
	if err != nil {
		return nil, fmt.Errorf("read %s file: %w", kind, err)
	}
	return data, nil
}

func readPlain(file *os.File, err error) ([]byte, error) {
	switch {
	case errors.Is(err, syscall.ELOOP):
		return nil, errors.New("the step has replaced it by a symbolic link; write to the file that is there")
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("the step has removed it; write to the file that is there")
	case err != nil:
		return nil, oserr.Bare(err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, oserr.Bare(err)
	case !info.Mode().IsRegular():
		return nil, errors.New(
			"the step has replaced it by something that is no regular file; write to the file that is there")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("the file has %d bytes, the limit is %d; pass large data in a file of the project",
			info.Size(), maxFile)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, oserr.Bare(err)
	case len(data) > maxFile:
		return nil, fmt.Errorf("the file grows while it is read, beyond the limit of %d bytes", maxFile)
	}
	return data, nil
}
