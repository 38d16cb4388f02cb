package carry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"

	"github.com/stepmux/stepmux/remote/archive"
)

// Archive is a file with files of the project or of jobs, tar in zstd. The zero value is no files.
type Archive struct {
	// Digest is the SHA-256 of the file, in lower hexadecimal, and Size its length in bytes.
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// Path is where the file is until the run has ended.
	Path string `json:"-"`
}

// IsZero reports whether there are no files.
func (a Archive) IsZero() bool { return a.Digest == "" }

// Unpack unpacks the archive in a directory.
func (a Archive) Unpack(ctx context.Context, dir string) error {
	file, err := os.Open(a.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = archive.Extract(ctx, file, dir, archive.Bounds{})
	return err
}

// Shelf is a directory in which archives are named by their content. All of them are in one file system.
type Shelf string

// Path returns the path of an archive.
func (s Shelf) Path(digest string) string { return filepath.Join(string(s), filepath.Base(digest)) }

// Pack makes an archive of files.
func (s Shelf) Pack(ctx context.Context, files *archive.Files) (a Archive, err error) {
	file, err := os.CreateTemp(string(s), ".pack-")
	if err != nil {
		return a, err
	}
	defer func() {
		file.Close()
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	sum := sha256.New()
	if err := files.Write(ctx, io.MultiWriter(file, sum), archive.TarZstd, level); err != nil {
		return a, err
	}
	return s.name(file, sum.Sum(nil))
}

// keep keeps a file of the same file system, which it renames.
func (s Shelf) keep(file *os.File) (a Archive, err error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return a, err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return a, err
	}
	return s.name(file, sum.Sum(nil))
}

// name gives a file its name.
func (s Shelf) name(file *os.File, sum []byte) (a Archive, err error) {
	info, err := file.Stat()
	if err != nil {
		return a, err
	}
	a = Archive{Digest: hex.EncodeToString(sum), Size: info.Size()}
	a.Path = s.Path(a.Digest)
	return a, os.Rename(file.Name(), a.Path)
}

// level is that of the archives: they are read soon.
const level = archive.Level("fastest")
