package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// maxFile is the longest output or export file that is read, in bytes.
const maxFile = 8 << 20

// files are the output and export files of a step, in a directory of its own. They are made only for steps that can
// know their paths: most steps need no files, and making them costs more than the rest of a short step.
type files struct {
	dir    string
	wanted bool // the step is told where they are
	made   bool // there is something to read, and to remove
}

// nextFiles returns the files of the step that comes next. They are made when it starts, if at all.
func (r *Runner) nextFiles() *files {
	r.serial++
	return &files{dir: filepath.Join(r.place.ScriptDir, fmt.Sprintf("step-%d", r.serial))}
}

// path returns the path of the file kind: output, export or step.json.
func (f *files) path(kind string) string { return filepath.Join(f.dir, kind) }

// create makes the files, empty, if they are wanted.
func (f *files) create() error {
	if !f.wanted {
		return nil
	}
	f.made = true
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		return fmt.Errorf("create directory for outputs: %w", err)
	}
	for _, kind := range []string{"output", "export"} {
		if err := writePrivate(f.path(kind), "", kind+" file"); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the directory. What resists goes with the directory of the job.
func (f *files) remove() {
	if !f.made {
		return
	}
	if os.RemoveAll(f.dir) != nil {
		_ = os.Chmod(f.dir, 0o700)
		_ = os.RemoveAll(f.dir)
	}
}

// read returns the content of the file kind. The step may have put anything in its place.
func (f *files) read(kind string) ([]byte, error) {
	if !f.made {
		return nil, nil
	}
	data, err := readPlain(f.path(kind))
	if err != nil {
		return nil, fmt.Errorf("read %s file: %w", kind, err)
	}
	return data, nil
}

func readPlain(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
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
			"the step has replaced it by something that is no regular file; write to the file that is there",
		)
	case info.Size() > maxFile:
		return nil, fmt.Errorf(
			"it has %d bytes, the limit is %d; pass large data in a file of the project",
			info.Size(),
			maxFile,
		)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, oserr.Bare(err)
	case len(data) > maxFile:
		return nil, fmt.Errorf("it grows while it is read, beyond the limit of %d bytes", maxFile)
	}
	return data, nil
}

// writePrivate writes text to a new file at path that only its owner can read. Errors name it by label. The file of
// an earlier step still exists if the file system was read-only when that step ended.
func writePrivate(path, text, label string) error {
	create := func() (*os.File, error) { return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) }
	f, err := create()
	if errors.Is(err, fs.ErrExist) {
		if err = os.Remove(path); err == nil {
			f, err = create()
		}
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", label, err)
	}
	_, err = f.WriteString(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("write %s: %w", label, err)
	}
	return nil
}

// describeStep writes the file that tells a step of the blueprint's dialect all about itself.
func (f *files) describeStep(name string, inputs map[string]expr.Value, dir string, job map[string]any) error {
	about, err := json.Marshal(map[string]any{
		"version":     1,
		"inputs":      inputs,
		"step":        map[string]string{"name": name, "component": dir},
		"job":         job,
		"output_file": f.path("output"),
		"export_file": f.path("export"),
	})
	if err != nil {
		return fmt.Errorf("describe step: %w", err)
	}
	return writePrivate(f.path("step.json"), string(about), "step.json")
}
