package faults

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Journal keeps results in a file, a line each, so that a run which was stopped goes on. Its methods may be called at
// the same time.
type Journal[R any] struct {
	mu   sync.Mutex // guards the following
	file *os.File
	all  []R
}

// OpenJournal opens a journal, made if it is not there. The caller calls Close.
func OpenJournal[R any](path string) (*Journal[R], error) {
	results, whole, err := readJournal[R](path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	if err := file.Truncate(whole); err != nil {
		file.Close()
		return nil, err
	}
	return &Journal[R]{file: file, all: results}, nil
}

// ReadJournal returns the results in a journal. A last line that was not written to its end is left out.
func ReadJournal[R any](path string) ([]R, error) {
	all, _, err := readJournal[R](path)
	return all, err
}

// readJournal is ReadJournal, and tells how many bytes whole lines have.
func readJournal[R any](path string) (all []R, whole int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for n := 1; ; n++ {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return all, whole, nil //nolint:nilerr // the end
		}
		var r R
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, 0, fmt.Errorf("read %s: line %d: %w", path, n, err)
		}
		whole += int64(len(text))
		all = append(all, r)
	}
}

// All returns the results so far, the oldest first.
func (j *Journal[R]) All() []R {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.all)
}

// Add writes a result.
func (j *Journal[R]) Add(r R) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, r)
	_, err = j.file.Write(append(text, '\n'))
	return err
}

// Close closes the file.
func (j *Journal[R]) Close() error { return j.file.Close() }
