package archive

import (
	"fmt"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Format is a format of an archive.
type Format string

// The formats.
const (
	Zip     Format = "zip"     // with deflate
	ZipZstd Format = "zipzstd" // zip with zstd
	TarZstd Format = "tarzstd" // tar in zstd
	Gzip    Format = "gzip"    // a gzip member for each file
	Raw     Format = "raw"     // the bytes of one file
)

// Level says how much time to spend on compression.
type Level string

// levels are the levels of deflate and zstd for each name.
var levels = map[Level]struct {
	deflate int
	zstd    zstd.EncoderLevel
}{
	"fastest": {1, zstd.SpeedFastest},
	"fast":    {3, zstd.SpeedFastest},
	"default": {5, zstd.SpeedDefault},
	"slow":    {7, zstd.SpeedBetterCompression},
	"slowest": {9, zstd.SpeedBestCompression},
}

// ParseLevel returns the level with a name: fastest, fast, default, slow or slowest. No name is default.
func ParseLevel(name string) (Level, error) {
	level := Level(strings.ToLower(name))
	if level == "" {
		level = "default"
	}
	if _, found := levels[level]; !found {
		return "", fmt.Errorf("the compression level %q is not one of fastest, fast, default, slow and slowest", name)
	}
	return level, nil
}
