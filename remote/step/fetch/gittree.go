package fetch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/termtext"
)

// download fetches a commit and writes its files. resolved is a ref that leads to the commit, or empty.
func (f *fetcher) download(
	ctx context.Context, repo *repository, commit, resolved string, w *treeWriter, tmp *scratch,
) (Source, error) {
	source := Source{Kind: kindGit, Location: repo.location}
	format := "sha1"
	if len(commit) == 64 {
		format = "sha256"
	}
	g, err := f.newGit(ctx, repo, tmp, format)
	if err != nil {
		return source, err
	}
	defer g.close()
	g.fsck = true
	if source.Commit, source.GitTree, err = g.fetchCommit(ctx, commit, resolved); err != nil {
		return source, err
	}
	if w.git, err = g.proof(ctx, commit, source.Commit); err != nil {
		return source, err
	}
	return source, g.writeTree(ctx, source.GitTree, w)
}

// proof returns the parts of the proof that are not about files. name is the name of the commit, or of a tag object
// that leads to it.
func (g *gitProgram) proof(ctx context.Context, name, commit string) (*gitProof, error) {
	p := &gitProof{Links: map[string]string{}, Modes: map[string]string{}}
	for name != commit {
		tag, err := g.text(ctx, "tag", name)
		if err != nil {
			return nil, err
		}
		p.Tags = append(p.Tags, tag)
		line, _, _ := strings.Cut(string(tag), "\n")
		next, found := strings.CutPrefix(line, "object ")
		if !found || !isHex(next) || len(p.Tags) > maxTags {
			return nil, fmt.Errorf("more than %d tag objects lead to the commit %s", maxTags, commit)
		}
		name = next
	}
	var err error
	p.Commit, err = g.text(ctx, "commit", commit)
	return p, err
}

// text returns an object that is a commit or a tag, as git stores it.
func (g *gitProgram) text(ctx context.Context, kind, name string) ([]byte, error) {
	var text []byte
	err := g.run(ctx, strings.NewReader(""), func(r io.Reader) (err error) {
		if text, err = io.ReadAll(io.LimitReader(r, maxCommit+1)); err == nil && len(text) > maxCommit {
			err = fmt.Errorf("the %s %s has more than %d bytes", kind, name, maxCommit)
		}
		return err
	}, "cat-file", kind, name)
	return text, err
}

// wholeHistory is the option by which git fetches what an earlier attempt with less depth has left out, too.
const wholeHistory = "--depth=2147483647"

// fetchCommit fetches a commit, or the commit of a tag: only it, by its name or else by the name of the ref, or, if the
// server refuses both, with all branches and tags. It returns the commit and its tree.
func (g *gitProgram) fetchCommit(ctx context.Context, name, resolved string) (commit, tree string, err error) {
	attempts := [][]string{{"--depth=1", "--", g.url, name}}
	if resolved != "" && resolved != "HEAD" {
		attempts = append(attempts, []string{"--depth=1", "--", g.url, "+" + resolved + ":refs/fetched/one"})
	}
	attempts = append(attempts, []string{wholeHistory, "--", g.url, allBranches, allTags})
	var first error
	for _, attempt := range attempts {
		err := g.fetch(ctx, attempt...)
		refused, is := errors.AsType[*gitError](err)
		switch {
		case err != nil && (!is || !refused.refusal()):
			return "", "", err
		case err == nil:
			if out, err := g.output(ctx, "rev-parse", name+"^{commit}", name+"^{tree}"); err == nil {
				commit, tree, _ = strings.Cut(strings.TrimSpace(out), "\n")
				return commit, tree, nil
			}
		case first == nil:
			first = err
		}
		if ctx.Err() != nil {
			return "", "", context.Cause(ctx)
		}
	}
	if first == nil {
		return "", "", fmt.Errorf("the repository has no commit %s", name)
	}
	return "", "", fmt.Errorf("the repository has no commit %s: %w", name, first)
}

// refusal reports whether the server refuses to send a commit by its name. The server may still send it with a branch.
func (e *gitError) refusal() bool {
	return slices.ContainsFunc([]string{"not our ref", "unadvertised object", "couldn't find remote ref"},
		func(text string) bool { return strings.Contains(e.stderr, text) })
}

// object is an entry of a tree of git.
type object struct {
	mode, id, path string
	size           int64 // of a file or a link
}

// writeTree writes the files of a tree byte for byte as they are in the repository. Filters, attributes and line-ending
// settings do not apply.
func (g *gitProgram) writeTree(ctx context.Context, tree string, w *treeWriter) error {
	listing, err := g.output(ctx, "ls-tree", "-r", "-t", "-z", "-l", "--full-tree", tree)
	if err != nil {
		return err
	}
	objects, err := parseTree(listing, w.limits)
	if err != nil {
		return err
	}
	objects = append([]object{{mode: modeDir, id: tree}}, objects...)
	var ids strings.Builder
	for _, o := range objects {
		if o.mode != modeGitlink {
			ids.WriteString(o.id + "\n")
		}
	}
	err = g.run(ctx, strings.NewReader(ids.String()), func(r io.Reader) error {
		b := bufio.NewReaderSize(r, 64<<10)
		for _, o := range objects {
			if err := o.write(b, w); err != nil {
				return err
			}
		}
		return nil
	}, "cat-file", "--batch")
	if err == nil && w.git.size() > w.limits.proof {
		err = fmt.Errorf("the submodules, empty directories and files of modes that git no longer writes are too many: "+
			"their paths have more than %d bytes", w.limits.proof)
	}
	return err
}

// modeGitlink is the mode of a submodule, which becomes an empty directory.
const modeGitlink = "160000"

// parseTree reads the output of ls-tree: "<mode> <type> <id> <size>\t<path>\x00" for each entry.
func parseTree(listing string, l limits) ([]object, error) {
	var objects []object
	var total int64
	for line := range strings.FieldsFuncSeq(listing, func(c rune) bool { return c == 0 }) {
		about, path, found := strings.Cut(line, "\t")
		fields := strings.Fields(about)
		if !found || len(fields) != 4 {
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
		case modeGitlink, modeDir:
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

// write writes an object that cat-file prints as "<id> <type> <size>\n", the bytes and a newline.
func (o object) write(r *bufio.Reader, w *treeWriter) error {
	if o.mode == modeGitlink {
		w.git.Links[o.path] = o.id
		return w.dir(o.path)
	}
	header, err := r.ReadString('\n')
	if err != nil {
		return fmt.Errorf("git does not print %s: %w", o.id, err)
	}
	if o.mode == modeDir {
		_, err = fmt.Sscanf(header, o.id+" tree %d\n", &o.size)
	} else if header != fmt.Sprintf("%s blob %d\n", o.id, o.size) {
		err = errors.New("git answered with another object")
	}
	if err != nil {
		return fmt.Errorf("git prints %q for %s: %w", termtext.Short(header, 100), o.id, err)
	}
	content := io.LimitReader(r, o.size)
	switch o.mode {
	case modeDir:
		err = o.writeDir(content, w)
	case modeSymlink:
		err = w.symlink(o.path, content)
	default:
		err = w.file(o.path, o.mode == modeExecutable, content)
	}
	if err != nil {
		return err
	}
	_, err = r.Discard(1)
	return err
}

// writeDir reads a tree as git stores it: "<mode> <name>\x00<id>" for each entry. It adds the parts to the proof that
// are neither in the files nor in the output of ls-tree, which shows old modes in today's form.
func (o object) writeDir(r io.Reader, w *treeWriter) error {
	if o.size == 0 && o.path != "" {
		w.git.Empty = append(w.git.Empty, o.path)
		return checkPath(o.path)
	}
	if o.size > maxListing {
		return fmt.Errorf("%q: a directory of %d bytes is too large", termtext.Short(o.path, 200), o.size)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		mode, rest, _ := bytes.Cut(data, []byte(" "))
		name, rest, _ := bytes.Cut(rest, []byte{0})
		if len(rest) < len(o.id)/2 {
			return fmt.Errorf("%q is not a directory of git", termtext.Short(o.path, 200))
		}
		data = rest[len(o.id)/2:]
		if is := string(mode); is != treeMode(canonicalMode(is)) {
			w.git.Modes[path.Join(o.path, string(name))] = is
		}
	}
	return nil
}
