package firstuse

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/boundedfile"
)

const (
	// maxEntries and maxUnused bound the file. Machines that were not reached for maxUnused are forgotten. If there are
	// more than maxEntries, those that were not reached for the longest time are forgotten.
	maxEntries = 16 << 10
	maxUnused  = 90 * 24 * time.Hour
	// maxFile bounds the file: room for maxEntries of the longest keys in use.
	maxFile = 32 << 20
)

// Store is a file of host keys. Any number of Stores, in any number of processes, may use one file at the
// same time. A Store holds nothing open and is safe for concurrent use.
type Store struct {
	path  string
	limit int
	now   func() time.Time
}

// Open checks that the file can be used. It makes nothing: the first Keep creates the file and its directory.
func Open(path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open store of host keys: %w", err)
	}
	s := &Store{path: path, limit: maxEntries, now: time.Now}
	// O_APPEND: Open writes no byte, but a file that cannot be written is an error now.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|openFlags, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err = mayCreate(filepath.Dir(path)); err == nil {
			return s, nil
		}
		fallthrough
	case err != nil:
		return nil, fmt.Errorf("open store of host keys: %w", err)
	}
	f.Close()
	if _, err := s.read(); err != nil {
		return nil, err
	}
	return s, nil
}

// mayCreate returns an error if no file can be created in dir, or no directory dir where it is missing.
func mayCreate(dir string) error {
	err := unix.Access(dir, unix.W_OK|unix.X_OK)
	if errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir) {
		return mayCreate(filepath.Dir(dir))
	}
	if err != nil {
		return fmt.Errorf("create a file in %s: %w", dir, err)
	}
	return nil
}

// Path returns the name of the file.
func (s *Store) Path() string { return s.path }

// Key returns the stored key of a machine, or nil.
func (s *Store) Key(id string) (ssh.PublicKey, error) {
	id, err := escape(id)
	if err != nil {
		return nil, err
	}
	all, err := s.read()
	if err != nil {
		return nil, err
	}
	if i := find(all, id); i >= 0 {
		return all[i].key, nil
	}
	return nil, nil
}

// Keep records that a machine was reached and showed key. It returns the stored key of the machine: this is key, unless
// another one was stored before. ctx bounds the wait for other writers.
func (s *Store) Keep(ctx context.Context, id string, key ssh.PublicKey) (kept ssh.PublicKey, err error) {
	id, err = escape(id)
	if err != nil {
		return nil, err
	}
	today := s.today()
	err = s.change(ctx, func(all []entry) ([]entry, bool) {
		i := find(all, id)
		switch {
		case i < 0:
			kept = key
			return append(all, entry{id: id, key: key, used: today}), true
		case !bytes.Equal(all[i].key.Marshal(), key.Marshal()) || all[i].used.Equal(today):
			kept = all[i].key
			return all, false
		default:
			kept = key
			all[i].used = today
			return all, true
		}
	})
	return kept, err
}

// Forget removes the keys of machines. ctx is as for Keep.
func (s *Store) Forget(ctx context.Context, ids ...string) error {
	gone := map[string]bool{}
	for _, id := range ids {
		id, err := escape(id)
		if err != nil {
			return err
		}
		gone[id] = true
	}
	return s.change(ctx, func(all []entry) ([]entry, bool) {
		left := slices.DeleteFunc(slices.Clone(all), func(e entry) bool { return gone[e.id] })
		return left, len(left) < len(all)
	})
}

// change applies fn to the entries under the lock, and writes the result if fn reports a change.
func (s *Store) change(ctx context.Context, fn func([]entry) ([]entry, bool)) error {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return fmt.Errorf("write store of host keys: %w", err)
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return fmt.Errorf("lock store of host keys: %w", err)
	}
	defer unlock()
	all, err := s.read()
	if err != nil {
		return err
	}
	all, changed := fn(all)
	if !changed {
		return nil
	}
	if err := s.write(s.bound(all)); err != nil {
		return fmt.Errorf("write store of host keys %s: %w", s.path, err)
	}
	return nil
}

// bound forgets machines that were not reached for a long time. A line without a day, written by hand, counts from
// today.
func (s *Store) bound(all []entry) []entry {
	for i := range all {
		if all[i].used.IsZero() {
			all[i].used = s.today()
		}
	}
	oldest := s.now().Add(-maxUnused)
	all = slices.DeleteFunc(all, func(e entry) bool { return e.used.Before(oldest) })
	if excess := len(all) - s.limit; excess > 0 {
		slices.SortStableFunc(all, func(a, b entry) int { return cmp.Compare(a.used.Unix(), b.used.Unix()) })
		all = all[excess:]
	}
	return all
}

func (s *Store) today() time.Time { return s.now().UTC().Truncate(24 * time.Hour) }

func find(all []entry, id string) int {
	return slices.IndexFunc(all, func(e entry) bool { return e.id == id })
}

// read returns the entries. It needs no lock, because writers replace the whole file.
func (s *Store) read() ([]entry, error) {
	f, err := os.OpenFile(s.path, os.O_RDONLY|openFlags, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // an operator has removed the file to start again
	}
	if err != nil {
		return nil, fmt.Errorf("read store of host keys: %w", err)
	}
	defer f.Close()
	if err := checkFile(f); err != nil {
		return nil, fmt.Errorf("read store of host keys %s: %w", s.path, err)
	}
	data, err := boundedfile.ReadAll(f, s.path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read store of host keys: %w", err)
	}
	all, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("read store of host keys %s: %w (correct or remove the line)", s.path, err)
	}
	return all, nil
}

// write replaces the file, so that readers and a crash see either the old or the new one.
func (s *Store) write(all []entry) error {
	var text bytes.Buffer
	for _, e := range all {
		text.WriteString(e.line())
	}
	name := s.path + ".new" // always the same name: crashed writers leave at most one file
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY|openFlags, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(text.Bytes())
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(name, s.path)
}
