package job

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/stepmux/stepmux/remote/mask"
)

// Variable is a variable of a job. It is not in the environment of its steps.
type Variable struct {
	// Key is the variable's name, and its file's: [A-Za-z_][A-Za-z0-9_]*, at most 255 bytes.
	Key, Value string
	// File puts the value into a file that goes with the job's end. What the job sees is the file's path.
	File bool
	// Masked keeps Value out of the job's logs and messages, if it has at least 4 bytes.
	Masked bool
}

// varsDir is where a job's file variables are.
func (j *record) varsDir() string { return filepath.Join(j.dir, "vars") }

// values makes the files of variables and returns what the job sees of each. Of those with the same key the
// last one counts.
func (j *record) values(variables []Variable) (map[string]string, error) {
	last := make(map[string]Variable, len(variables))
	values := make(map[string]string, len(variables))
	files := false
	for _, v := range variables {
		last[v.Key], values[v.Key] = v, v.Value
		files = files || v.File
	}
	if !files {
		return values, nil
	}
	if err := os.Mkdir(j.varsDir(), 0o700); err != nil {
		return nil, fmt.Errorf("create directory for file variables: %w", err)
	}
	root, err := os.OpenRoot(j.varsDir()) // whatever a key is, its file is in there
	if err != nil {
		return nil, fmt.Errorf("open directory for file variables: %w", err)
	}
	defer root.Close()
	for key, v := range last {
		if !v.File {
			continue
		}
		if err := writeFile(root, key, v.Value); err != nil {
			return nil, fmt.Errorf("write file variable %q: %w", key, err)
		}
		values[key] = filepath.Join(j.varsDir(), key)
	}
	return values, nil
}

// writeFile writes text to a new file that only its owner can read.
func writeFile(root *os.Root, name, text string) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	return errors.Join(err, f.Close())
}

// hideAll adds the masked variables to secrets, and returns a line for each that cannot be masked. A job
// with more of them than can be masked must not run.
func hideAll(secrets *mask.Set, variables []Variable) (notices []string, err error) {
	for _, v := range variables {
		if !v.Masked || v.Value == "" {
			continue
		}
		err := secrets.Add(v.Value)
		switch {
		case errors.Is(err, mask.ErrShort):
			notices = append(notices, fmt.Sprintf("Variable %s is not masked: %v", v.Key, err))
		case err != nil:
			return nil, fmt.Errorf("mask variable %s: %w", v.Key, err)
		}
	}
	return notices, nil
}
