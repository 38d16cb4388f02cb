package checkout

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/subprocess"
)

const (
	// packTime bounds the time that git takes to pack a history.
	packTime = 5 * time.Minute
	// maxListed bounds a list of commits or refs, in bytes, maxIndex the index, and maxCopy the packed history.
	maxListed, maxIndex, maxCopy = 256 << 20, 1 << 30, 4 << 30
)

// Copying says which part of a repository is copied.
type Copying struct {
	// Depth bounds the history.
	Depth Depth
	// Detached says that HEAD names its commit, and no branch.
	Detached bool
}

// Copy is a new repository. Its files are Names, paths from Dir with slashes.
type Copy struct {
	Dir   string
	Names []string
}

// Into copies the repository into a directory, which has no .git.
func (c Copy) Into(ctx context.Context, dir string) error {
	for _, name := range c.Names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		from, to := filepath.Join(c.Dir, name), filepath.Join(dir, name)
		info, err := os.Lstat(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		switch {
		case err != nil:
			return err
		case info.IsDir():
			err = os.MkdirAll(to, 0o755)
		default:
			err = copyFile(from, to, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file with its mode and its time.
func copyFile(from, to string, info os.FileInfo) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in) // by the file system, if it can share blocks
	if err = cmp.Or(err, out.Close()); err != nil {
		return err
	}
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}

// CopyTo makes a new repository in the directory to, with the history of the repository whose work tree is dir, up to
// a depth. It has the same HEAD, index, tags and branches of the remote origin, as far as their history is copied, so
// that git shows the same status in a copy of the work tree. It has no configuration but settings of a fixed list: no
// hooks, no filters, no credentials. Nothing in the repository of dir changes, and the new one needs it no more.
//
// The Copy is empty, without an error, for [None] and if there is no repository. An error says why there can be no
// copy; to may have files then.
func CopyTo(ctx context.Context, dir, to string, c Copying) (made Copy, err error) {
	if c.Depth == None || !Contains(dir) {
		return Copy{}, nil
	}
	if _, err := exec.LookPath("git"); err != nil {
		return Copy{}, errors.New("git is not installed")
	}
	r := &copier{Copying: c, ctx: ctx, dir: dir, to: filepath.Join(to, ".git"), refs: map[string]string{}}
	for _, step := range []func() error{
		r.look, r.configure, r.findHead, r.findRefs, r.copyIndex, r.bound, r.pack, r.write,
	} {
		if err := step(); err != nil {
			return Copy{}, cmp.Or(context.Cause(ctx), err)
		}
	}
	return Copy{Dir: to, Names: r.names}, nil
}

// copier makes a Copy. Its methods are called once, in the order of CopyTo.
type copier struct {
	Copying
	ctx     context.Context // of the single call of CopyTo
	dir, to string
	index   string // the file, which may not exist
	objects string // their directory in the repository that is copied; empty until it is known
	when    time.Time
	settings
	branch, head string            // head is the commit; each may be empty
	refs         map[string]string // objects by their full names
	tags         map[string]string // commits of the tags in refs, as far as they are tags of commits
	upstream     string            // of branch
	mainOf       string            // the ref that is the default branch of the remote
	shallow      []string          // commits without their parents
	names        []string
}

// git runs git without the user's replacements for objects, and without a download of objects that are missing.
func (r *copier) git(input string, limit subprocess.Limit, args ...string) ([]byte, error) {
	set := []string{"GIT_NO_LAZY_FETCH=1", "GIT_GRAFT_FILE=" + os.DevNull}
	if r.objects != "" { // git writes temporary files where its own objects are
		set = append(set, "GIT_OBJECT_DIRECTORY="+r.path("objects"),
			"GIT_ALTERNATE_OBJECT_DIRECTORIES="+listed(r.objects))
	}
	if _, err := os.Lstat(r.path("index")); err == nil {
		set = append(set, "GIT_INDEX_FILE="+r.path("index"))
	}
	argv := append(Git(r.dir, set...), "-c", "advice.graftFileDeprecated=false")
	limit.Input = strings.NewReader(input)
	return subprocess.Output(r.ctx, slices.Concat(argv, []string{"--no-replace-objects"}, args), limit)
}

// listed returns a path as git takes it in a list with colons.
func listed(path string) string {
	if !strings.Contains(path, ":") && !strings.HasPrefix(path, `"`) {
		return path
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(path) + `"`
}

// ask returns the output of git, for a short answer.
func (r *copier) ask(args ...string) ([]byte, error) {
	return r.git("", subprocess.Limit{Time: gitTime, Bytes: maxCommit}, args...)
}

// path returns the path of a file of the copy.
func (r *copier) path(name string) string { return filepath.Join(r.to, filepath.FromSlash(name)) }

// look finds the files of the repository that are copied.
func (r *copier) look() error {
	out, err := r.ask("rev-parse", "--is-inside-work-tree", "--show-cdup", "--git-path", "index", "--git-path", "shallow",
		"--git-path", "objects")
	if err != nil {
		return err
	}
	inside, rest, _ := strings.Cut(string(out), "\n")
	lines := strings.Split(rest, "\n")
	switch {
	case inside != "true":
		return errors.New("it is in the directory of a repository, and not in a work tree")
	case len(lines) != 5:
		return errors.New("the path of the repository has a line break")
	case lines[0] != "":
		return errors.New("it is a directory of a repository, and not the top of its work tree")
	}
	for i, line := range lines {
		if !filepath.IsAbs(line) {
			lines[i] = filepath.Join(r.dir, line)
		}
	}
	r.index, r.objects = lines[1], lines[3]
	known, err := boundedfile.Read(lines[2], maxListed)
	if err == nil {
		r.shallow = strings.Fields(string(known))
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.MkdirAll(r.path("objects/pack"), 0o700)
}

// findHead finds the commit and the branch that are checked out.
func (r *copier) findHead() error {
	if head, err := r.ask("symbolic-ref", "-q", "HEAD"); err == nil {
		r.branch = strings.TrimSpace(string(head))
	}
	if head, err := r.ask("rev-parse", "-q", "--verify", "HEAD^{commit}"); err == nil {
		r.head = strings.TrimSpace(string(head))
	}
	switch {
	case r.head != "" && !commitID.MatchString(r.head):
		return errors.New("git describes a commit in another form than expected")
	case r.head == "" && r.branch == "":
		return errors.New("HEAD names no commit and no branch")
	case r.branch != "" && r.head != "":
		r.refs[r.branch] = r.head
	}
	return nil
}

// ofBranch and ofOrigin begin the full names of branches, and of those of the remote origin.
const ofBranch, ofOrigin = "refs/heads/", "refs/remotes/origin/"

// findRefs finds the tags and the branches of the remote origin.
func (r *copier) findRefs() error {
	args := []string{
		"for-each-ref", "--format=%(refname)%00%(objectname)%00%(*objectname)%00%(symref)%00%(upstream)%00%(objecttype)",
		ofOrigin, "refs/tags/",
	}
	if r.branch != "" {
		args = append(args, r.branch)
	}
	list, err := r.git("", subprocess.Limit{Time: gitTime, Bytes: maxListed}, args...)
	if err != nil {
		return err
	}
	r.tags = map[string]string{}
	for line := range strings.Lines(string(list)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\x00")
		if len(f) != 6 || !commitID.MatchString(f[1]) {
			return errors.New("git describes a ref in another form than expected")
		}
		switch name := f[0]; {
		case name == r.branch:
			r.upstream = f[4]
		case name == ofOrigin+"HEAD":
			r.mainOf = f[3]
		case f[3] != "": // another name of a ref
		case strings.HasPrefix(name, ofOrigin):
			r.refs[name] = f[1]
		default:
			r.refs[name] = f[1]
			r.tags[name] = cmp.Or(f[2], f[1])
		}
	}
	for _, name := range []string{"main", "master"} {
		if r.mainOf == "" && r.refs[ofOrigin+name] != "" {
			r.mainOf = ofOrigin + name
		}
	}
	return nil
}

// copyIndex copies the index, without the parts of it that other files or programs complete.
func (r *copier) copyIndex() error {
	from, err := boundedfile.Open(os.OpenFile, r.index)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if info.Size() > maxIndex {
		return fmt.Errorf("its index has %d bytes, at most %d are copied", info.Size(), maxIndex)
	}
	to, err := os.Create(r.path("index"))
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.LimitReader(from, maxIndex))
	err = cmp.Or(err, to.Close())
	// Git compares files that were written in the second of the index, or later, with their objects, when it writes the
	// index. After that their times and sizes say whether they change: so the copy is a second younger.
	if err == nil {
		err = os.Chtimes(r.path("index"), info.ModTime(), info.ModTime())
	}
	r.when = info.ModTime().Add(time.Second)
	if err == nil {
		_, err = r.ask("-c", "core.splitIndex=false", "-c", "core.untrackedCache=false", "update-index",
			"--force-write-index")
	}
	return err
}

// bound finds the commits at which the history ends, and leaves out the refs that it does not have.
func (r *copier) bound() error {
	if r.Depth == All {
		return nil
	}
	tips := map[string]bool{}
	for name, id := range r.refs {
		switch isTag := r.tags[name] != ""; {
		case name == r.branch, name == r.mainOf, name == r.upstream, name == ofOrigin+strings.TrimPrefix(r.branch, ofBranch):
			tips[id] = true
		case !isTag:
			delete(r.refs, name)
		}
	}
	if r.head != "" {
		tips[r.head] = true
	}
	known := r.shallow
	r.shallow = nil
	inside, err := r.walk(slices.Sorted(maps.Keys(tips)))
	if err != nil {
		return err
	}
	for _, id := range known {
		if inside[id] {
			r.shallow = append(r.shallow, id)
		}
	}
	r.shallow = slices.Compact(slices.Sorted(slices.Values(r.shallow)))
	maps.DeleteFunc(r.refs, func(name, _ string) bool { return r.tags[name] != "" && !inside[r.tags[name]] })
	return nil
}

// walk returns the commits from tips that have a depth of at most Depth, and adds those of Depth that have parents to
// shallow.
func (r *copier) walk(tips []string) (inside map[string]bool, err error) {
	for most := 1000 + 2*int(r.Depth)*len(tips); len(tips) > 0; most *= 8 {
		// The newest commits first: a walk that meets one which is not listed starts again with more.
		list, err := r.git("", subprocess.Limit{Time: packTime, Bytes: maxListed}, slices.Concat(
			[]string{"rev-list", "--parents", fmt.Sprintf("--max-count=%d", most)}, tips, []string{"--"})...)
		if err != nil {
			return nil, err
		}
		parents := map[string][]string{}
		for line := range strings.Lines(string(list)) {
			if ids := strings.Fields(line); len(ids) > 0 {
				parents[ids[0]] = ids[1:]
			}
		}
		var complete bool
		if inside, r.shallow, complete = within(tips, parents, int(r.Depth)); complete || len(parents) < most {
			return inside, nil
		}
	}
	return nil, nil
}

// within returns the commits from tips that have at most a depth, and those of them that have this depth and parents.
func within(tips []string, parents map[string][]string, depth int) (all map[string]bool, last []string, complete bool) {
	all = map[string]bool{}
	for complete = true; len(tips) > 0 && depth > 0; depth-- {
		var next []string
		for _, id := range tips {
			above, known := parents[id]
			if all[id] {
				continue
			}
			all[id], complete = true, complete && known
			if depth == 1 && len(above) > 0 {
				last = append(last, id)
			}
			next = append(next, above...)
		}
		tips = next
	}
	return all, last, complete
}

// pack packs the objects of the refs and of the index.
func (r *copier) pack() error {
	wanted, err := r.staged()
	if err != nil {
		return err
	}
	wanted = append(wanted, r.head)
	wanted = slices.AppendSeq(wanted, maps.Values(r.refs))
	var input strings.Builder
	if r.Depth != All {
		for _, id := range r.shallow {
			input.WriteString("--shallow " + id + "\n")
		}
	}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(wanted))) {
		if id != "" {
			input.WriteString(id + "\n")
		}
	}
	// Without a window git searches for no deltas, but copies those that it has: fast, and the same each time.
	args := []string{
		"-c", "pack.packSizeLimit=0", "-c", "pack.writeReverseIndex=false", "pack-objects", "-q", "--revs", "--shallow",
		"--window=0", "--delta-base-offset",
	}
	if r.partial {
		args = append(args, "--missing=allow-promisor")
	}
	limit := subprocess.Limit{Time: packTime, Bytes: maxCommit}
	if _, err := r.git(input.String(), limit, append(args, r.path("objects/pack/pack"))...); err != nil {
		return err
	}
	made, err := os.ReadDir(r.path("objects/pack"))
	for _, file := range made {
		info, err := file.Info()
		if err != nil {
			return err
		}
		if info.Size() > maxCopy {
			return fmt.Errorf("its history has %d bytes, at most %d are copied: choose a smaller --git-depth", info.Size(),
				int64(maxCopy))
		}
		if err := r.add("objects/pack/"+file.Name(), 0o444); err != nil {
			return err
		}
		if base, ok := strings.CutSuffix(file.Name(), ".pack"); ok && r.partial {
			if err := r.put("objects/pack/"+base+".promisor", ""); err != nil {
				return err
			}
		}
	}
	return err
}

// staged returns the objects of the index that are not in the commit.
func (r *copier) staged() (ids []string, err error) {
	if _, err := os.Lstat(r.path("index")); err != nil {
		return nil, nil //nolint:nilerr // it does not exist
	}
	whole := r.head == ""
	limit := subprocess.Limit{Time: packTime, Bytes: maxListed}
	if !whole {
		out, err := r.git("", limit, "diff-index", "--cached", "--raw", "--no-abbrev", "--no-renames", "-z", r.head, "--")
		if err != nil {
			return nil, err
		}
		for entry := range bytes.SplitSeq(out, []byte{0}) { // :MODE MODE ID ID STATUS, and then a name of its own
			f := strings.Fields(string(entry))
			if len(f) != 5 || !strings.HasPrefix(f[0], ":") {
				continue
			}
			whole = whole || f[4] == "U"
			ids = appendObject(ids, f[1], f[3])
		}
	}
	if !whole {
		return ids, nil
	}
	out, err := r.git("", limit, "ls-files", "-z", "--stage", ":/")
	for entry := range bytes.SplitSeq(out, []byte{0}) {
		if f := strings.Fields(string(entry)); len(f) > 2 {
			ids = appendObject(ids, f[0], f[1])
		}
	}
	return ids, err
}

// submodule is the mode of a submodule in the index: its commit is in another repository.
const submodule = "160000"

func appendObject(ids []string, mode, id string) []string {
	if mode == submodule || strings.Trim(id, "0") == "" || !commitID.MatchString(id) {
		return ids
	}
	return append(ids, id)
}

// write writes the other files.
func (r *copier) write() error {
	head := "ref: " + r.branch
	if r.branch == "" || r.Detached && r.head != "" {
		head = r.head
	}
	var refs strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.refs)) {
		refs.WriteString(r.refs[name] + " " + name + "\n")
	}
	files := map[string]string{"HEAD": head + "\n", "config": r.text(), "packed-refs": refs.String()}
	if len(r.shallow) > 0 {
		files["shallow"] = strings.Join(r.shallow, "\n") + "\n"
	}
	// A directory refs and one for objects make it a repository.
	if r.refs[r.mainOf] != "" {
		files[ofOrigin+"HEAD"] = "ref: " + r.mainOf + "\n"
	} else if err := r.put("refs/", ""); err != nil {
		return err
	}
	isPack := func(name string) bool { return strings.HasSuffix(name, ".pack") }
	if !slices.ContainsFunc(r.names, isPack) {
		if err := r.put("objects/", ""); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := r.put(name, files[name]); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(r.path("index")); err == nil {
		if err := r.add("index", 0o644); err != nil {
			return err
		}
	}
	for _, name := range r.names { // so that an equal repository makes an equal archive
		if err := os.Chtimes(filepath.Join(filepath.Dir(r.to), name), r.when, r.when); err != nil {
			return err
		}
	}
	return nil
}

// put writes a file, or makes a directory, whose name ends with a slash.
func (r *copier) put(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(r.path(name)), 0o700); err != nil {
		return err
	}
	if strings.HasSuffix(name, "/") {
		if err := os.MkdirAll(r.path(name), 0o700); err != nil {
			return err
		}
		return r.add(name, 0o755)
	}
	if err := os.WriteFile(r.path(name), []byte(text), 0o600); err != nil {
		return err
	}
	return r.add(name, 0o644)
}

// add makes a file a part of the copy.
func (r *copier) add(name string, mode os.FileMode) error {
	r.names = append(r.names, path.Join(".git", name))
	return os.Chmod(r.path(name), mode)
}
