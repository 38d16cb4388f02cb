package fetch

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/klauspost/compress/zstd"

	"github.com/stepmux/stepmux/internal/oserr"
)

// savedLayer is a layer that was downloaded to a file.
type savedLayer struct {
	v1.Layer
	path string
}

func (l savedLayer) Compressed() (io.ReadCloser, error) { return os.Open(l.path) }

// maxWindow bounds the memory that a layer can make zstd use for its window, in bytes. The library allows 512 MiB.
const maxWindow = 64 << 20

func (l savedLayer) Uncompressed() (io.ReadCloser, error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	begin := make([]byte, 4)
	if _, err = file.ReadAt(begin, 0); err != nil || string(begin) != "\x28\xb5\x2f\xfd" {
		file.Close()
		layer, err := partial.CompressedToLayer(l) // detects the other compressions
		if err != nil {
			return nil, err
		}
		return layer.Uncompressed()
	}
	z, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		file.Close()
		return nil, err
	}
	return zstdFile{z, file}, nil
}

// zstdFile is a file that is being decompressed.
type zstdFile struct {
	*zstd.Decoder
	file *os.File
}

func (z zstdFile) Close() error {
	z.Decoder.Close()
	return z.file.Close()
}

// saveLayers downloads the layers of img. It reads each to its end: only there does the library compare the digest, and
// a reader of the archive would stop before. cancel ends the downloads.
func saveLayers(
	ctx context.Context, cancel context.CancelCauseFunc, img v1.Image, l limits, tmp *scratch,
) ([]v1.Layer, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, registryError(err)
	}
	if len(layers) > l.entries {
		return nil, fmt.Errorf("the image has %d layers, the limit is %d", len(layers), l.entries)
	}
	left := l.total
	for i, layer := range layers {
		at := savedLayer{layer, filepath.Join(tmp.path, fmt.Sprintf("layer-%d", i))}
		n, err := at.save(ctx, cancel, left, l.stall)
		if err != nil {
			return nil, err
		}
		left -= n
		layers[i] = at
	}
	return layers, nil
}

// save downloads a layer of at most limit bytes. It fails if no byte arrives for stall.
func (l savedLayer) save(
	ctx context.Context, cancel context.CancelCauseFunc, limit int64, stall time.Duration,
) (int64, error) {
	body, err := l.Layer.Compressed()
	if err != nil {
		return 0, registryError(err)
	}
	guard := newStallGuard(body, stall, cancel)
	defer guard.timer.Stop()
	defer body.Close()
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := fill(file, contextReader{ctx, guard}, limit)
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case n > limit:
		err = fmt.Errorf("the image: %w", err)
	case err != nil && isFileError(err):
		err = oserr.Bare(err)
	case err != nil:
		err = registryError(err)
	}
	return n, err
}
