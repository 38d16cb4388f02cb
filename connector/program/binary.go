package program

import (
	"bufio"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip" // reads twice as fast as that of the standard library

	"github.com/stepmux/stepmux/internal/wire"
)

// programPaths are the package paths in the build information of our programs.
var programPaths = []string{vmProgram, "github.com/stepmux/stepmux/cmd/stepmux"}

const (
	vmProgram    = "github.com/stepmux/stepmux/cmd/stepmux-vm"
	fetchProgram = "github.com/stepmux/stepmux/cmd/stepmux-fetch"
)

// Binary is a stepmux program that may be uploaded to VMs. It is immutable.
type Binary struct {
	name     string // for messages
	platform string
	open     func() (io.ReadCloser, error) // the program's bytes
	packed   func() (io.ReadCloser, error) // the bytes as gzip; nil if they are compressed for each upload
	facts    func() (facts, error)
	beside   *Binary // a program that must be in the same directory; nil if there is none
	missing  string  // see Missing
	dynamic  bool
}

// facts identifies the bytes of a program.
type facts struct {
	size int64
	sum  string // SHA-256, hexadecimal
}

func readFacts(r io.Reader) (facts, error) {
	sum := sha256.New()
	size, err := io.Copy(sum, r)
	return facts{size: size, sum: hex.EncodeToString(sum.Sum(nil))}, err
}

// PackedBinary returns the program for a platform (os/arch as Go names them) from a gzip file that contains nothing
// else. The manager's program carries such files. open opens the file. If it is damaged, uploads fail.
func PackedBinary(platform string, open func() (io.ReadCloser, error)) *Binary {
	b := &Binary{name: "the stepmux for " + platform + " in this program", platform: platform, packed: open}
	b.open = func() (io.ReadCloser, error) {
		file, err := open()
		if err != nil {
			return nil, err
		}
		plain, err := gzip.NewReader(file)
		if err != nil {
			file.Close()
			return nil, err
		}
		return struct {
			io.Reader
			io.Closer
		}{plain, file}, nil
	}
	b.facts = sync.OnceValues(func() (facts, error) {
		plain, err := b.open()
		if err != nil {
			return facts{}, err
		}
		defer plain.Close()
		return readFacts(plain)
	})
	return b
}

// WithBeside returns b together with the stepmux-fetch that it needs for network access.
func (b *Binary) WithBeside(fetch *Binary) *Binary {
	both := *b
	both.beside, both.missing = fetch, ""
	return &both
}

// Missing returns the path where LoadBinary looked for a stepmux-fetch and did not find it, or "" if nothing is
// missing. Without stepmux-fetch, VMs cannot fetch steps, artifacts or caches.
func (b *Binary) Missing() string { return b.missing }

// LoadBinary reads the platform and checksum of a stepmux program, for upload to VMs of that platform. Next to a
// stepmux-vm it looks for a file whose name has stepmux-fetch in its place. The files are read again for each upload:
// if they have changed, uploads fail.
func LoadBinary(path string) (*Binary, error) {
	b, kind, err := loadBinary(path, programPaths)
	if err != nil || kind != vmProgram {
		return b, err
	}
	dir, name := filepath.Split(path)
	if !strings.Contains(name, "stepmux-vm") {
		name = "stepmux-vm"
	}
	besidePath := filepath.Join(dir, strings.Replace(name, "stepmux-vm", wire.FetchProgram, 1))
	beside, _, err := loadBinary(besidePath, []string{fetchProgram})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b.missing = besidePath
		return b, nil
	case err != nil:
		return nil, err
	case beside.platform != b.platform:
		return nil, fmt.Errorf("%s is for %s, and %s for %s", path, b.platform, besidePath, beside.platform)
	}
	return b.WithBeside(beside), nil
}

// loadBinary loads one file, whose build information must name one of the allowed package paths. It also returns that
// path.
func loadBinary(path string, allowed []string) (*Binary, string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, "", err
	}
	defer file.Close()
	info, err := buildinfo.Read(file)
	if err != nil {
		return nil, "", fmt.Errorf("%s is no stepmux program: %w", path, err)
	}
	if !slices.Contains(allowed, info.Path) {
		return nil, "", fmt.Errorf("%s is no stepmux program, but %s", path, info.Path)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	platform := settings["GOOS"] + "/" + settings["GOARCH"]
	if !wire.ValidPlatform(platform) {
		return nil, "", fmt.Errorf("%s does not say which platform it is built for", path)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, "", err
	}
	loaded, err := readFacts(file)
	if err != nil {
		return nil, "", err // it names the file
	}
	return &Binary{
		name: path, platform: platform, dynamic: needsLoader(file),
		open:  func() (io.ReadCloser, error) { return os.Open(path) },
		facts: func() (facts, error) { return loaded, nil },
	}, info.Path, nil
}

// Platform returns os/arch as Go names them.
func (b *Binary) Platform() string { return b.platform }

// Name returns the program's name for messages.
func (b *Binary) Name() string { return b.name }

// Dynamic reports whether the program needs shared libraries, so that it may not run everywhere on its platform.
func (b *Binary) Dynamic() bool { return b.dynamic }

// Open returns the program's bytes and their number.
func (b *Binary) Open() (io.ReadCloser, int64, error) {
	told, err := b.facts()
	if err != nil {
		return nil, 0, err
	}
	file, err := b.open()
	return file, told.size, err
}

// Files returns all files that the program needs in one directory, by name: itself as stepmux and, if it has one, its
// stepmux-fetch.
func (b *Binary) Files() map[string]*Binary {
	files := map[string]*Binary{wire.ProgramName: b}
	if b.beside != nil {
		files[wire.FetchProgram] = b.beside
	}
	return files
}

// needsLoader reports whether a program names an interpreter that loads shared libraries.
func needsLoader(file io.ReaderAt) bool {
	program, err := elf.NewFile(file)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// SHA256 returns the checksum of the program's file, in hexadecimal.
func (b *Binary) SHA256() (string, error) {
	told, err := b.facts()
	return told.sum, err
}

// writeTo writes the program's bytes to w, compressed by gzip if pack is set. A *os.PathError concerns the program's
// file; other errors are w's.
func (b *Binary) writeTo(w io.Writer, pack bool, size int64) error {
	open := b.open
	if pack && b.packed != nil {
		open = b.packed
	}
	file, err := open()
	if err != nil {
		return err
	}
	defer file.Close()
	switch {
	case !pack:
		return b.copy(w, file, size)
	case b.packed != nil:
		_, err := io.Copy(w, file)
		return err
	}
	large := bufio.NewWriterSize(w, 64<<10) // gzip writes pieces of 240 bytes, and each write is a packet of SSH
	zip, err := gzip.NewWriterLevel(large, gzip.BestSpeed)
	if err != nil {
		return err
	}
	return errors.Join(b.copy(zip, file, size), zip.Close(), large.Flush())
}

func (b *Binary) copy(w io.Writer, file io.Reader, size int64) error {
	_, err := io.CopyN(w, file, size)
	if errors.Is(err, io.EOF) {
		return &os.PathError{Op: "read", Path: b.name, Err: errors.New("the file has changed since it was loaded")}
	}
	return err
}

// Install writes the program to a new file at path, executable by its owner, and its stepmux-fetch next to it.
func (b *Binary) Install(path string) error {
	if b.beside != nil {
		if err := b.beside.Install(filepath.Join(filepath.Dir(path), wire.FetchProgram)); err != nil {
			return err
		}
	}
	plain, err := b.open()
	if err != nil {
		return fmt.Errorf("read %s: %w", b.name, err)
	}
	defer plain.Close()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, plain)
	return errors.Join(err, file.Close())
}
