package clone

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"github.com/stepmux/stepmux/internal/rmtree"
)

// clean removes the files that are not in the repository, ignored ones too. git clean fails at directories in which
// their owner may not write, such as those of a module cache.
func (g *git) clean(ctx context.Context) error {
	root, err := os.OpenRoot(g.cfg.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	list := g.command(ctx, "ls-files", "--others", "--directory", "-z")
	out, err := list.StdoutPipe()
	if err != nil {
		return err
	}
	if err := list.Start(); err != nil {
		return err
	}
	if err = removeListed(ctx, root, bufio.NewReader(out)); err != nil {
		cancel()
	}
	return cmp.Or(err, list.Wait())
}

// removeListed removes the files and directories in a list, whose entries end with a NUL byte.
func removeListed(ctx context.Context, root *os.Root, list *bufio.Reader) error {
	for {
		name, err := list.ReadString(0)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		dir, base := path.Split(strings.TrimRight(name, "/\x00"))
		parent, err := root.OpenRoot(path.Clean(dir))
		if err != nil {
			return err
		}
		err = rmtree.RemoveIn(ctx, parent, base)
		parent.Close()
		if err != nil {
			return err
		}
	}
}
