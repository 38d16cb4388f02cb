package clone

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/stepmux/stepmux/internal/rmtree"
)

// refetch fetches into a new repository if the earlier clone is damaged. fetched is the result of the fetch into it.
func (g *git) refetch(ctx context.Context, fetched error) error {
	revision := "FETCH_HEAD"
	if fetched != nil {
		if g.run(ctx, "rev-parse", "--quiet", "--verify", "HEAD") != nil { // no clone has succeeded here
			return fetched
		}
		revision = "HEAD"
	}
	damage := g.verify(ctx, revision)
	if damage == nil || ctx.Err() != nil {
		return cmp.Or(context.Cause(ctx), fetched)
	}
	fmt.Fprintf(g.cfg.Output, "everything is fetched again: the earlier clone is damaged: %v\n", damage)
	if err := rmtree.Remove(filepath.Join(g.cfg.Dir, ".git")); err != nil {
		return fmt.Errorf("remove an earlier clone: %w", err)
	}
	if err := g.init(ctx); err != nil {
		return err
	}
	return g.fetch(ctx, false)
}

// verify compares a commit, its directories and its files with their names. git does that with objects that arrive, not
// with those that are there: an earlier build can have left others under these names, and a machine that was switched
// off can have left empty ones.
func (g *git) verify(ctx context.Context, revision string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	list := g.command(ctx, "rev-list", "--objects", "--no-object-names", "--no-walk", revision)
	show := g.command(ctx, "cat-file", "--batch", "--buffer")
	names, err := list.StdoutPipe()
	if err != nil {
		return err
	}
	defer names.Close()
	show.Stdin = names
	objects, err := show.StdoutPipe()
	if err != nil {
		return err
	}
	defer objects.Close()
	if err := list.Start(); err != nil {
		return err
	}
	if err := show.Start(); err != nil {
		cancel()
		return errors.Join(err, list.Wait())
	}
	names.Close() // show has it
	if err = verifyObjects(bufio.NewReaderSize(objects, 64<<10)); err != nil {
		cancel()
	}
	return cmp.Or(err, errors.Join(list.Wait(), show.Wait()))
}

// verifyObjects reads the output of cat-file: "<id> <type> <size>\n", the bytes and a newline for each object.
func verifyObjects(r *bufio.Reader) error {
	for {
		header, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) && header == "" {
			return nil
		}
		id, kind, size := "", "", int64(0)
		if _, err := fmt.Sscanf(header, "%s %s %d\n", &id, &kind, &size); err != nil {
			return fmt.Errorf("unexpected header from git cat-file: %.100q", header)
		}
		sum := sha1.New()
		if len(id) == 2*sha256.Size {
			sum = sha256.New()
		}
		fmt.Fprintf(sum, "%s %d\x00", kind, size)
		if _, err := io.CopyN(sum, r, size); err != nil {
			return fmt.Errorf("read the object %s: %w", id, err)
		}
		if is := fmt.Sprintf("%x", sum.Sum(nil)); is != id {
			return fmt.Errorf("the object %s is %s", id, is)
		}
		if _, err := r.Discard(1); err != nil {
			return fmt.Errorf("read the object %s: %w", id, err)
		}
	}
}
