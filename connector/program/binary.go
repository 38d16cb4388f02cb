package program

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"github.com/stepmux/stepmux/internal/wire"
)

// programPath is the package path in the build information of our program.
const programPath = "github.com/stepmux/stepmux/cmd/stepmux"

// Binary is a file of the stepmux program that may be put on VMs. It is immutable.
type Binary struct {
	path     string
	platform string
	size     int64
	sum      string // SHA-256, hexadecimal
}

// LoadBinary reads the platform and the checksum of a stepmux program, built for any platform, that may be put on VMs
// of that platform. The file is read again for each upload: if it changes, uploads fail.
func LoadBinary(path string) (*Binary, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := buildinfo.Read(file)
	if err != nil {
		return nil, fmt.Errorf("%s is no stepmux program: %w", path, err)
	}
	if info.Path != programPath {
		return nil, fmt.Errorf("%s is no stepmux program, but %s", path, info.Path)
	}
	b := &Binary{path: path}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	b.platform = settings["GOOS"] + "/" + settings["GOARCH"]
	if !wire.ValidPlatform(b.platform) {
		return nil, fmt.Errorf("%s does not say which platform it is built for", path)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	sum := sha256.New()
	if b.size, err = io.Copy(sum, file); err != nil {
		return nil, err // names the file
	}
	b.sum = hex.EncodeToString(sum.Sum(nil))
	return b, nil
}

// Platform returns os/arch as Go names them.
func (b *Binary) Platform() string { return b.platform }
