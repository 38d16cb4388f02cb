package faultrig

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Journal keeps the results of rounds in a file, a line each, so that a run which was stopped goes on. Its methods may
// be called at the same time.
type Journal struct {
	mu   sync.Mutex // guards the following
	file *os.File
	done map[int]Result
}

// OpenJournal opens a journal, made if it is not there. The caller calls Close.
func OpenJournal(path string) (*Journal, error) {
	results, whole, err := readJournal(path)
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
	j := &Journal{file: file, done: map[int]Result{}}
	for _, r := range results {
		j.done[r.Round] = r
	}
	return j, nil
}

// ReadJournal returns the results in a journal. A last line that was not written to its end is left out.
func ReadJournal(path string) ([]Result, error) {
	all, _, err := readJournal(path)
	return all, err
}

// readJournal is ReadJournal, and tells how many bytes whole lines have.
func readJournal(path string) (all []Result, whole int64, err error) {
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
		var r Result
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, 0, fmt.Errorf("read %s: line %d: %w", path, n, err)
		}
		whole += int64(len(text))
		all = append(all, r)
	}
}

// Done returns the result of a round, if there is one.
func (j *Journal) Done(round int) (Result, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.done[round]
	return r, ok
}

// Add writes a result.
func (j *Journal) Add(r Result) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done[r.Round] = r
	_, err = j.file.Write(append(text, '\n'))
	return err
}

// Close closes the file.
func (j *Journal) Close() error { return j.file.Close() }
