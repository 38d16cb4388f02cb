package fetch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// download fetches a commit, to which resolved leads if that is not empty, and writes its files.
func (f *fetcher) download(ctx context.Context, repo *repository, commit, resolved string, w *treeWriter,
	aside *scratch,
) (Source, error) {
	source := Source{Kind: kindGit, Location: repo.location}
	format := ""
	if len(commit) == 64 {
		format = "sha256"
	}
	g, err := repo.program(aside, format)
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

// peel returns the commit that name, which is in the repository, leads to, and its tree.
func (g *gitProgram) peel(ctx context.Context, name string) (commit, tree string, err error) {
	var fields []string
	in := strings.NewReader(name + "^{commit}\n" + name + "^{tree}\n")
	err = g.run(ctx, in, func(r io.Reader) error {
		out, err := io.ReadAll(io.LimitReader(r, maxTail))
		fields = strings.Fields(string(out))
		return err
	}, "cat-file", "--batch-check=%(objectname) %(objecttype)")
	if err == nil && (len(fields) != 4 || fields[1] != "commit" || fields[3] != "tree") {
		err = fmt.Errorf("%s is no commit", name)
	}
	if err != nil {
		return "", "", err
	}
	return fields[0], fields[2], nil
}

// fetchCommit fetches a commit, alone where the server gives that: by its name, by that of the ref, or else with
// all there is.
func (g *gitProgram) fetchCommit(ctx context.Context, repo *repository, commit, resolved string) error {
	ways := [][]string{{"--depth=1", commit}}
	if resolved != "" && resolved != "HEAD" {
		ways = append(ways, []string{"--depth=1", "+" + resolved + ":refs/fetched/one"})
	}
	ways = append(ways, []string{allBranches, allTags})
	var first error
	for _, way := range ways {
		err := g.fetch(ctx, repo.url, way...)
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

// refusal reports whether the server does not give what was asked for by its name, which it may give otherwise.
func (e *gitError) refusal() bool {
	for _, text := range []string{"not our ref", "unadvertised object", "couldn't find remote ref"} {
		if strings.Contains(e.said, text) {
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

// writeTree writes the files of a tree as they are in the repository, without any of the ways by which git would make
// something else of them.
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

// modeGitlink is a submodule: an empty directory, to us.
const modeGitlink = "160000"

// parseTree reads what ls-tree says: "<mode> <type> <id> <size>\t<path>\x00".
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
			return nil, errors.New("git lists something that is no entry of a tree")
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
			return nil, fmt.Errorf("%q has the mode %s, which no file has", printable(path, 200), printable(o.mode, 10))
		}
		total += o.size
		switch {
		case o.size > l.file || total > l.total:
			return nil, fmt.Errorf("%q: %w", printable(path, 200), tooLarge(min(l.file, l.total)))
		case len(objects) >= l.entries:
			return nil, fmt.Errorf("there are more than %d entries", l.entries)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// write writes an object that cat-file gives: "<id> blob <size>\n", the bytes and a newline.
func (o object) write(r *bufio.Reader, w *treeWriter) error {
	if o.mode == modeGitlink {
		return w.dir(o.path)
	}
	header, err := r.ReadString('\n')
	if err != nil {
		return fmt.Errorf("git gives no %s: %w", o.id, err)
	}
	if header != fmt.Sprintf("%s blob %d\n", o.id, o.size) {
		return fmt.Errorf("git gives %q for %s", printable(header, 100), o.id)
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
