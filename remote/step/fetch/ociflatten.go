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

// What a layer says of those below it: a file of this name hides what has the rest of it, or all in its directory
// (OCI image specification, "Whiteouts").
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// flattener writes the files of an image's layers, from the uppermost to the lowest.
type flattener struct {
	w       *treeWriter
	entries int // of all layers, seen or not
	// above are the paths that the layers above have, or hide, and whether something below them can be seen.
	above  map[string]bool
	opaque map[string]bool // directories of which the layers below show nothing
}

// writeLayers writes what the layers of an image, of which the last is the uppermost, show.
func writeLayers(ctx context.Context, layers []v1.Layer, w *treeWriter) error {
	f := &flattener{w: w, above: map[string]bool{}, opaque: map[string]bool{}}
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

// layer writes what a layer has that those above do not hide.
func (f *flattener) layer(archive *tar.Reader) error {
	own, gone, ownOpaque := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // of which the writer tells which
			return registryError(err)
		}
		if f.entries++; f.entries > f.w.limits.entries {
			return fmt.Errorf("the layers of the image have more than %d entries", f.w.limits.entries)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		if name == "" || name == "." {
			continue
		}
		if err := checkPath(name); err != nil {
			return f.w.wrong(name, err)
		}
		dir, base := path.Split(name)
		hidden, isWhiteout := strings.CutPrefix(base, whiteout)
		switch {
		case base == opaque:
			ownOpaque[path.Clean(dir)] = true
			continue
		case isWhiteout:
			gone[dir+hidden] = true
			continue
		}
		if !f.hidden(name) {
			if err := f.write(name, h, archive); err != nil {
				return err
			}
		}
		own[name] = own[name] || h.Typeflag == tar.TypeDir
	}
	for name, open := range own {
		if above, there := f.above[name]; !there || above {
			f.above[name] = open
		}
	}
	for name := range gone { // also if the layer has a directory of that name, before or after
		f.above[name] = false
	}
	for dir := range ownOpaque {
		f.opaque[dir] = true
	}
	return nil
}

// hidden reports whether the layers above hide name.
func (f *flattener) hidden(name string) bool {
	if _, there := f.above[name]; there {
		return true
	}
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		open, there := f.above[dir]
		switch {
		case there && !open, f.opaque[dir]:
			return true
		case dir == ".":
			return false
		}
	}
}

func (f *flattener) write(name string, h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return f.w.dir(name)
	case tar.TypeReg:
		return f.w.file(name, h.Mode&0o111 != 0, content)
	case tar.TypeSymlink:
		return f.w.symlink(name, h.Linkname)
	default:
		return f.w.wrong(name, errSpecial)
	}
}
