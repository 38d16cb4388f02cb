package fetch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/termtext"
)

// download fetches a commit and writes its files. resolved, if not empty, is a ref that leads to the commit.
func (f *fetcher) download(
	ctx context.Context, repo *repository, commit, resolved string, w *treeWriter, tmp *scratch,
) (Source, error) {
	source := Source{Kind: kindGit, Location: repo.location}
	format := ""
	if len(commit) == 64 {
		format = "sha256"
	}
	g, err := repo.program(tmp, format)
	if err != nil {
		return source, err
	}
	g.limit = w.limits.total
	if err := g.fetchCommit(ctx, repo, commit, resolved); err != nil {
		return source, err
	}
	if source.Commit, source.GitTree, err = g.peel(ctx, commit); err != nil {
		return source, err
	}
	return source, g.writeTree(ctx, source.GitTree, w)
}

// peel returns the commit that name leads to in the repository, and its tree.
func (g *gitProgram) peel(ctx context.Context, name string) (commit, tree string, err error) {
	var fields []string
	in := strings.NewReader(name + "^{commit}\n" + name + "^{tree}\n")
	err = g.run(ctx, in, func(r io.Reader) error {
		out, err := io.ReadAll(io.LimitReader(r, maxTail))
		fields = strings.Fields(string(out))
		return err
	}, "cat-file", "--batch-check=%(objectname) %(objecttype)")
	if err == nil && (len(fields) != 4 || fields[1] != "commit" || fields[3] != "tree") {
		err = fmt.Errorf("%s is not a commit", name)
	}
	if err != nil {
		return "", "", err
	}
	return fields[0], fields[2], nil
}

// fetchCommit fetches a commit: alone by its name, or alone by the name of the ref, or, if the server refuses both,
// with all branches and tags.
func (g *gitProgram) fetchCommit(ctx context.Context, repo *repository, commit, resolved string) error {
	attempts := [][]string{{"--depth=1", commit}}
	if resolved != "" && resolved != "HEAD" {
		attempts = append(attempts, []string{"--depth=1", "+" + resolved + ":refs/fetched/one"})
	}
	attempts = append(attempts, []string{allBranches, allTags})
	var first error
	for _, attempt := range attempts {
		err := g.fetch(ctx, repo.url, attempt...)
		refused, is := errors.AsType[*gitError](err)
		switch {
		case err != nil && (!is || !refused.refusal()):
			return err
		case err == nil:
			if _, err := g.output(ctx, "cat-file", "-e", commit+"^{commit}"); err == nil {
				return nil
			}
		case first == nil:
			first = err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if first == nil {
		return fmt.Errorf("the repository has no commit %s", commit)
	}
	return fmt.Errorf("the repository has no commit %s: %w", commit, first)
}

// refusal reports whether the server refuses to send a commit by its name. It may send it with a branch.
func (e *gitError) refusal() bool {
	for _, text := range []string{"not our ref", "unadvertised object", "couldn't find remote ref"} {
		if strings.Contains(e.stderr, text) {
			return true
		}
	}
	return false
}

// object is an entry of a tree of git.
type object struct {
	mode, id, path string
	size           int64
}

// writeTree writes the files of a tree byte for byte as they are in the repository: no filter, attribute or line ending
// setting applies.
func (g *gitProgram) writeTree(ctx context.Context, tree string, w *treeWriter) error {
	listing, err := g.output(ctx, "ls-tree", "-r", "-z", "-l", "--full-tree", tree)
	if err != nil {
		return err
	}
	objects, err := parseTree(listing, w.limits)
	if err != nil {
		return err
	}
	var ids strings.Builder
	for _, o := range objects {
		if o.mode != modeGitlink {
			ids.WriteString(o.id + "\n")
		}
	}
	return g.run(ctx, strings.NewReader(ids.String()), func(r io.Reader) error {
		b := bufio.NewReaderSize(r, 64<<10)
		for _, o := range objects {
			if err := o.write(b, w); err != nil {
				return err
			}
		}
		return nil
	}, "cat-file", "--batch")
}

// modeGitlink is the mode of a submodule, which becomes an empty directory.
const modeGitlink = "160000"

// parseTree reads the output of ls-tree: "<mode> <type> <id> <size>\t<path>\x00" for each entry.
func parseTree(listing string, l limits) ([]object, error) {
	var objects []object
	var total int64
	for line := range strings.SplitSeq(strings.TrimSuffix(listing, "\x00"), "\x00") {
		about, path, found := strings.Cut(line, "\t")
		fields := strings.Fields(about)
		if !found || len(fields) != 4 {
			if listing == "" {
				return nil, nil
			}
			return nil, errors.New("git lists something that is not an entry of a tree")
		}
		o := object{mode: fields[0], id: fields[2], path: path}
		switch o.mode {
		case modeFile, modeExecutable, modeSymlink:
			size, err := strconv.ParseInt(fields[3], 10, 64)
			if err != nil || size < 0 {
				return nil, errors.New("git lists an entry without a size")
			}
			o.size = size
		case modeGitlink:
		default:
			return nil, fmt.Errorf("%q has the mode %s, which is not that of a file", termtext.Short(path, 200),
				termtext.Short(o.mode, 10))
		}
		total += o.size
		switch {
		case o.size > l.file || total > l.total:
			return nil, fmt.Errorf("%q: %w", termtext.Short(path, 200), tooLarge(min(l.file, l.total)))
		case len(objects) >= l.entries:
			return nil, fmt.Errorf("there are more than %d entries", l.entries)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// write writes an object that cat-file prints as "<id> blob <size>\n", the bytes and a newline.
func (o object) write(r *bufio.Reader, w *treeWriter) error {
	if o.mode == modeGitlink {
		return w.dir(o.path)
	}
	header, err := r.ReadString('\n')
	if err != nil {
		return fmt.Errorf("git does not print %s: %w", o.id, err)
	}
	if header != fmt.Sprintf("%s blob %d\n", o.id, o.size) {
		return fmt.Errorf("git prints %q for %s", termtext.Short(header, 100), o.id)
	}
	content := io.LimitReader(r, o.size)
	if o.mode == modeSymlink {
		var target []byte
		if target, err = io.ReadAll(io.LimitReader(content, maxTarget+1)); err == nil {
			err = w.symlink(o.path, string(target))
		}
	} else {
		err = w.file(o.path, o.mode == modeExecutable, content)
	}
	if err != nil {
		return err
	}
	_, err = r.Discard(1)
	return err
}
