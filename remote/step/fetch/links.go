package fetch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

var (
	errLeaves  = errors.New("the symlink leads outside of the tree that is fetched")
	errTooLong = fmt.Errorf("the symlink leads to a path of more than %d bytes", maxPath)
)

// outside reports whether a clean relative path begins with "..".
func outside(p string) bool { return p == ".." || strings.HasPrefix(p, "../") }

// linkWalk follows the links of a tree.
type linkWalk struct {
	links map[string]string // the targets of the links
	parts int               // parts of paths that were walked
	limit int               // of parts: a link may lead through 40 others, each with thousands of parts
}

// checkLinks refuses links that lead out of a tree through other links. links has the targets of all links of the tree.
// limit bounds the parts of all paths that they lead through.
func checkLinks(ctx context.Context, links map[string]string, limit int) error {
	return (&linkWalk{links: links, limit: limit}).check(ctx)
}

func (w *linkWalk) check(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(w.links)) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.follow(name); err != nil {
			return entryError(name, err)
		}
	}
	return nil
}

// follow refuses a path that leads out of the tree. It follows links as Linux does. os.Root does not help here: it
// follows fewer links, and reports a longer chain as a loop.
func (w *linkWalk) follow(name string) error {
	at, rest := "", []string{name} // the path so far, and the rest of the targets, the next one last
	for followed := 0; len(rest) > 0 && followed <= maxLinks; {
		if w.parts++; w.parts > w.limit {
			return fmt.Errorf("the symbolic links of the tree resolve through more than %d path elements", w.limit)
		}
		last := len(rest) - 1
		part, more, found := strings.Cut(rest[last], "/")
		if rest[last] = more; !found {
			rest = rest[:last]
		}
		switch {
		case part == "" || part == ".":
			continue
		case part == ".." && at == "":
			return errLeaves
		case part == "..":
			at = parentOf(at)
			continue
		case at == "":
			at = part
		default:
			at += "/" + part
		}
		if len(at) > maxPath {
			return errTooLong
		}
		if target, isLink := w.links[at]; isLink {
			if path.IsAbs(target) {
				return errLeaves
			}
			followed++
			at, rest = parentOf(at), append(rest, target)
		}
	}
	return nil
}

// parentOf returns the directory of a clean relative path, or "" for the top of the tree.
func parentOf(at string) string { return at[:max(0, strings.LastIndexByte(at, '/'))] }
