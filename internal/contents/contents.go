// Package contents keeps files by their content: a [Store] is a directory in which each file is named by its SHA-256. A
// file arrives as an [Upload]; its sum is checked before it is in the store. Both ends have a store: the VM for the
// archives of projects, and the manager for archives that wait for a VM. A Store owns no open file; the caller closes
// the files it gets.
package contents

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
)

const (
	// keepPart is how long an incomplete file is kept without new bytes.
	keepPart   = 24 * time.Hour
	partPrefix = ".part-"
)

// Store is a directory with files by their content. The directory must exist, and only this user may use it. Several
// processes may use it at the same time. It is safe for concurrent use.
type Store struct {
	// Dir is the directory.
	Dir string
	// Bytes bounds all files together, and Age is how long an unused file is kept. Sweep enforces both.
	Bytes int64
	Age   time.Duration
	// Sync makes a file survive a crash of the machine once Keep has returned.
	Sync bool
}

// CheckDigest returns an error unless digest is a valid name of a file in a Store: a SHA-256 in lower hexadecimal.
func CheckDigest(digest string) error {
	if sum, err := hex.DecodeString(digest); err != nil || len(sum) != sha256.Size || hex.EncodeToString(sum) != digest {
		return fmt.Errorf("the digest %.80q is not a SHA-256 in hexadecimal", digest)
	}
	return nil
}

// Find returns a file, or nil if it is not there, and records its use. It removes a file whose content does not match
// its name, because it was cut off or changed. The caller closes the file. It can be read to its end even if a Sweep
// removes it.
func (s *Store) Find(digest string, size int64) (*os.File, error) {
	path := filepath.Join(s.Dir, digest)
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) { // this is no fault of the file
		return nil, err
	}
	if err != nil {
		return nil, os.RemoveAll(path)
	}
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() {
		sum := sha256.New()
		if _, err = io.Copy(sum, file); err == nil && hex.EncodeToString(sum.Sum(nil)) == digest {
			if info.Size() != size { // the caller is wrong about the file
				return nil, file.Close()
			}
			s.Touch(digest)
			if _, err = file.Seek(0, io.SeekStart); err == nil {
				return file, nil
			}
		}
	}
	file.Close()
	return nil, os.RemoveAll(path)
}

// Touch records the use of a file, and reports whether it is there.
func (s *Store) Touch(digest string) bool {
	now := time.Now()
	return os.Chtimes(filepath.Join(s.Dir, digest), now, now) == nil
}

// Begin begins a file of size bytes. The caller passes it to Keep, or discards it.
func (s *Store) Begin(digest string, size int64) (*Upload, error) {
	file, err := os.CreateTemp(s.Dir, partPrefix)
	if err != nil {
		return nil, oserr.Hint(err, s.Dir)
	}
	return &Upload{Digest: digest, file: file, size: size, sum: sha256.New()}, nil
}

// Keep puts a complete file into the store, if its content matches its digest. The caller closes the file.
func (s *Store) Keep(u *Upload) (*os.File, error) {
	err := error(nil)
	if is := hex.EncodeToString(u.sum.Sum(nil)); is != u.Digest {
		err = fmt.Errorf("the content was changed on its way: its SHA-256 is %s, not %s", is, u.Digest)
	}
	if err == nil && s.Sync {
		err = u.file.Sync()
	}
	if err == nil {
		err = os.Rename(u.file.Name(), filepath.Join(s.Dir, u.Digest))
	}
	if err == nil && s.Sync {
		err = SyncDir(s.Dir)
	}
	if err == nil {
		_, err = u.file.Seek(0, io.SeekStart)
	}
	if err != nil {
		u.Discard()
		return nil, oserr.Hint(err, s.Dir)
	}
	return u.file, nil
}

// Create creates an empty file for content whose digest is not known yet. The caller passes it to Adopt or removes it,
// and closes it.
func (s *Store) Create() (*os.File, error) {
	file, err := os.CreateTemp(s.Dir, partPrefix)
	return file, oserr.Hint(err, s.Dir)
}

// Adopt puts a complete file of Create into the store, and returns its digest.
func (s *Store) Adopt(file *os.File) (digest string, err error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	if err != nil {
		return "", err
	}
	s.Sweep(0, nil) // its own bytes are there already
	digest = hex.EncodeToString(sum.Sum(nil))
	if size == 0 {
		return digest, os.Remove(file.Name())
	}
	return digest, oserr.Hint(os.Rename(file.Name(), filepath.Join(s.Dir, digest)), s.Dir)
}

// SyncDir makes the names of the files in a directory survive a crash of the machine.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Sweep removes files that were not used for the Age, and then the least recently used ones until there is room for
// more bytes. It keeps files for which needed is true; needed may be nil. It returns how many bytes are then still over
// the limit.
func (s *Store) Sweep(more int64, needed func(digest string) bool) (over int64) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return 0
	}
	var kept []fs.FileInfo
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		limit := s.Age
		if isPart(info) {
			limit = keepPart
		}
		if time.Since(info.ModTime()) > limit && (isPart(info) || needed == nil || !needed(info.Name())) {
			s.remove(info)
			continue
		}
		kept = append(kept, info)
		more += info.Size()
	}
	// Not slices.SortFunc: that is compiled again for each type, which costs the VM's end 13 KB.
	sort.Slice(kept, func(i, j int) bool { return kept[i].ModTime().Before(kept[j].ModTime()) })
	for _, info := range kept {
		if more <= s.Bytes {
			return 0
		}
		if !isPart(info) && (needed == nil || !needed(info.Name())) {
			s.remove(info)
			more -= info.Size()
		}
	}
	return max(more-s.Bytes, 0)
}

func isPart(info fs.FileInfo) bool { return strings.HasPrefix(info.Name(), partPrefix) }

// remove removes a file. It ignores errors, because another process may have removed it.
func (s *Store) remove(info fs.FileInfo) { _ = os.Remove(filepath.Join(s.Dir, info.Name())) }

// Upload is a file that has not arrived completely. It is not safe for concurrent use.
type Upload struct {
	// Digest is its name in the store.
	Digest string

	file    *os.File
	size    int64
	arrived int64
	sum     hash.Hash
}

// Missing returns how many bytes are still to arrive.
func (u *Upload) Missing() int64 { return u.size - u.arrived }

// Write adds the next bytes.
func (u *Upload) Write(data []byte) (int, error) {
	if int64(len(data)) > u.Missing() {
		return 0, errors.New("more bytes arrived than the file has")
	}
	n, err := u.file.Write(data)
	u.arrived += int64(n)
	_, _ = u.sum.Write(data[:n]) // never fails
	if err != nil {
		return n, oserr.Hint(oserr.Bare(err), filepath.Dir(u.file.Name()))
	}
	return n, nil
}

// Discard removes the incomplete file. It does nothing for nil.
func (u *Upload) Discard() {
	if u == nil {
		return
	}
	u.file.Close()
	_ = os.Remove(u.file.Name()) // a Sweep may have removed it
}
