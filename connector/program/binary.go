package program

import (
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
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

	"github.com/stepmux/stepmux/internal/wire"
)

// programPaths are the package paths in the build information of our programs.
var programPaths = []string{vmProgram, "github.com/stepmux/stepmux/cmd/stepmux"}

const (
	vmProgram    = "github.com/stepmux/stepmux/cmd/stepmux-vm"
	fetchProgram = "github.com/stepmux/stepmux/cmd/stepmux-fetch"
)

// Binary is a stepmux program that may be put on VMs. It is immutable.
type Binary struct {
	name     string // for messages
	platform string
	open     func() (io.ReadCloser, error) // the program's bytes
	packed   func() (io.ReadCloser, error) // the same by gzip; nil if it is packed for each upload
	facts    func() (facts, error)
	beside   *Binary // goes into the same directory; nil if it needs no other program
	missing  string  // see Missing
}

// facts identify the bytes of a program.
type facts struct {
	size int64
	sum  string // SHA-256, hexadecimal
}

func readFacts(r io.Reader) (facts, error) {
	sum := sha256.New()
	size, err := io.Copy(sum, r)
	return facts{size: size, sum: hex.EncodeToString(sum.Sum(nil))}, err
}

// PackedBinary returns the program of a platform, os/arch as Go names them, from a gzip file that has nothing else. The
// manager's program carries such files; open opens the file. Uploads fail if it is damaged.
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

// WithBeside returns b with a stepmux-fetch, which b needs for the network.
func (b *Binary) WithBeside(fetch *Binary) *Binary {
	both := *b
	both.beside, both.missing = fetch, ""
	return &both
}

// Missing returns the path at which LoadBinary has found no stepmux-fetch for a stepmux-vm, or "". Without it steps
// cannot be fetched on VMs, nor artifacts and caches brought there.
func (b *Binary) Missing() string { return b.missing }

// LoadBinary reads the platform and the checksum of a stepmux program, built for any platform, that may be put on VMs
// of that platform. The stepmux-fetch of a stepmux-vm is in the same directory, and has that name in place of
// stepmux-vm. The files are read again for each upload: if they change, uploads fail.
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

// loadBinary loads one file, whose build information must have one of the package paths. It returns the path, too.
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
		return nil, "", err // names the file
	}
	return &Binary{
		name: path, platform: platform,
		open:  func() (io.ReadCloser, error) { return os.Open(path) },
		facts: func() (facts, error) { return loaded, nil },
	}, info.Path, nil
}

// Platform returns os/arch as Go names them.
func (b *Binary) Platform() string { return b.platform }

// SHA256 returns the checksum of the program's file, in hexadecimal.
func (b *Binary) SHA256() (string, error) {
	told, err := b.facts()
	return told.sum, err
}

// writeTo writes the program's bytes to w, packed by gzip or as they are. A *os.PathError is about the file and not
// about w.
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
	zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	return errors.Join(b.copy(zip, file, size), zip.Close())
}

func (b *Binary) copy(w io.Writer, file io.Reader, size int64) error {
	_, err := io.CopyN(w, file, size)
	if errors.Is(err, io.EOF) {
		return &os.PathError{Op: "read", Path: b.name, Err: errors.New("it has changed since it was loaded")}
	}
	return err
}

// Install writes the program to a new file at path, which its owner may execute, and the stepmux-fetch that it needs
// beside it.
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
