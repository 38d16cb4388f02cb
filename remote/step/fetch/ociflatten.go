package fetch

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// A whiteout file in a layer hides the file in lower layers whose name follows the prefix. An opaque whiteout hides
// everything that lower layers have in its directory (OCI image specification, "Whiteouts").
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// flattener writes the files of an image's layers, from the uppermost to the lowest.
//
// It does not use mutate.Extract. That cleans names before a caller can refuse them, drops duplicates and links out of
// the tree without an error, does not count hidden entries, and hides a directory beside a whiteout of its name.
type flattener struct {
	w       *treeWriter
	entries int              // of all layers, also hidden ones
	above   map[string]cover // the entries of lower layers that upper layers hide, by path
}

// cover says which entries an entry of a layer hides.
type cover uint8

const (
	hidesItself cover = 1 << iota // entries of the same path
	hidesBelow                    // entries below that path
)

// writeLayers writes the visible files of an image's layers. The last layer is the uppermost.
func writeLayers(ctx context.Context, layers []v1.Layer, w *treeWriter) error {
	f := &flattener{w: w, above: map[string]cover{}}
	for i := len(layers) - 1; i >= 0; i-- {
		r, err := layers[i].Uncompressed()
		if err != nil {
			return registryError(err)
		}
		err = f.layer(tar.NewReader(contextReader{ctx, r}))
		r.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// layer writes the entries of a layer that the layers above do not hide.
func (f *flattener) layer(archive *tar.Reader) error {
	own := map[string]cover{}
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // the writer refuses insecure paths, and says why
			return registryError(err)
		}
		if f.entries++; f.entries > f.w.limits.entries {
			return fmt.Errorf("the layers of the image have more than %d entries", f.w.limits.entries)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		if name == "" || name == "." || h.Typeflag == tar.TypeXGlobalHeader { // a comment, as git archive writes it
			continue
		}
		err = checkPath(name)
		if err == nil { // also the paths of whiteouts and of hidden entries stay in memory
			err = f.w.keeps(len(name) - nameSize)
		}
		if err != nil {
			return entryError(name, err)
		}
		dir, base := path.Split(name)
		hidden, isWhiteout := strings.CutPrefix(base, whiteout)
		switch {
		case base == opaque:
			own[path.Clean(dir)] |= hidesBelow
			continue
		case isWhiteout: // also if this layer has a directory of that name
			own[dir+hidden] |= hidesItself | hidesBelow
			continue
		case h.Typeflag == tar.TypeDir:
			own[name] |= hidesItself
		default:
			own[name] |= hidesItself | hidesBelow
		}
		if !f.hidden(name) {
			if err := f.write(name, h, archive); err != nil {
				return err
			}
		}
	}
	for name, hides := range own {
		f.above[name] |= hides
	}
	return nil
}

// hidden reports whether the layers above hide name.
func (f *flattener) hidden(name string) bool {
	hidden := f.above[name]&hidesItself != 0
	for name != "." && !hidden {
		name = path.Dir(name)
		hidden = f.above[name]&hidesBelow != 0
	}
	return hidden
}

func (f *flattener) write(name string, h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return f.w.dir(name)
	case tar.TypeReg:
		return f.w.file(name, h.Mode&0o111 != 0, content)
	case tar.TypeSymlink:
		return f.w.symlink(name, strings.NewReader(h.Linkname))
	default:
		return entryError(name, errSpecial)
	}
}
