package archive

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/tail"
)

// gitDir is the name of the directory with the repository of a project.
const gitDir = ".git"

// maxName bounds the path of a file in git's list, in bytes.
const maxName = 64 << 10

// Selection says which files of a directory to archive.
type Selection struct {
	// Dir is the project's directory, an absolute path.
	Dir string
	// Paths are patterns (doublestar) of files and directories, relative to Dir or below it. A directory includes
	// everything in it. Only a pattern with the part .git finds the .git of Dir.
	Paths []string
	// Exclude are patterns of files to leave out.
	Exclude []string
	// Untracked adds the files that git does not track. If Tracked is not nil, it has the names of the tracked files,
	// with slashes, and git is not asked.
	Untracked bool
	Tracked   map[string]bool
	// OnlyInside leaves out symbolic links that lead out of Dir. Otherwise they are archived as links.
	OnlyInside bool
	// Info and Warn are called with lines about the patterns. Warn gets patterns that match nothing or lead outside of
	// Dir, and files that cannot be read. A pattern never makes Find fail.
	Info, Warn func(text string)
}

// Files are the files of a directory that match a [Selection]. The caller closes it.
type Files struct {
	root   *os.Root
	names  []string // sorted, with slashes
	newest time.Time
	leave  *leaver
	beside *Files // of another directory; may be nil
}

// Find collects files. It reads no contents.
func Find(ctx context.Context, s Selection) (*Files, error) {
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the project's directory: %w", err)
	}
	f := &finder{
		Selection: s, files: &Files{root: root, leave: &leaver{warn: s.Warn}}, fsys: root.FS(), found: map[string]bool{},
		excluded: map[string]int{}, targets: map[string]int{},
	}
	if err := f.find(ctx); err != nil {
		root.Close()
		return nil, err
	}
	f.list()
	return f.files, nil
}

// Named returns the files of a directory with these names, which are relative to it and have slashes. It leaves out
// symbolic links that lead out, missing files and files of other kinds, and calls warn with a line about each. The
// caller closes the Files.
func Named(dir string, names []string, warn func(text string)) (*Files, error) {
	if len(names) > maxEntries {
		return nil, fmt.Errorf("%s has %d files, at most %d can be archived", dir, len(names), maxEntries)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	f := &finder{
		Selection: Selection{Dir: dir, OnlyInside: true, Warn: warn},
		files:     &Files{root: root, leave: &leaver{warn: warn}}, found: map[string]bool{}, targets: map[string]int{},
		git: true,
	}
	for _, name := range names {
		f.add(name)
	}
	f.warnOutside()
	f.list()
	return f.files, nil
}

// Close closes the directory.
func (f *Files) Close() {
	if f.root.Close(); f.beside != nil {
		f.beside.Close()
	}
}

// Beside adds files of another directory to an archive, which must not have their names. It is called once, and names
// may be empty.
func (f *Files) Beside(dir string, names []string) (err error) {
	if len(names) > 0 {
		f.beside, err = Named(dir, names, f.leave.warn)
	}
	return err
}

// Names returns the paths of the files, links and directories, sorted.
func (f *Files) Names() []string { return f.names }

// Newest returns the latest modification time of the files.
func (f *Files) Newest() time.Time { return f.newest }

// Add adds the file name of the directory, as if a pattern had matched it.
func (f *Files) Add(name string) error {
	info, err := f.root.Lstat(name)
	if err != nil {
		return err
	}
	if at, found := slices.BinarySearch(f.names, name); !found {
		f.names = slices.Insert(f.names, at, name)
	}
	f.saw(info)
	return nil
}

// Root returns the open directory of the files.
func (f *Files) Root() *os.Root { return f.root }

func (f *Files) saw(info fs.FileInfo) {
	if info.ModTime().After(f.newest) {
		f.newest = info.ModTime()
	}
}

// finder collects the files of a selection.
type finder struct {
	Selection
	files    *Files
	fsys     fs.FS
	exclude  [][2]string // patterns of Exclude, relative to Dir and as the caller wrote them
	found    map[string]bool
	excluded map[string]int // files by pattern
	targets  map[string]int // lengths of the targets of links
	outside  []string       // links that lead outside
	git      bool           // the .git of Dir is not left out
}

func (f *finder) find(ctx context.Context) error {
	for _, pattern := range f.Exclude {
		relative, err := f.relative(pattern)
		if err != nil {
			f.Warn(fmt.Sprintf("exclude %s: %v", pattern, err))
			continue
		}
		f.exclude = append(f.exclude, [2]string{relative, pattern})
	}
	for _, pattern := range f.Paths {
		if err := f.match(ctx, pattern); err != nil {
			return err
		}
	}
	switch {
	case f.Untracked && f.Tracked != nil:
		if err := f.besides(ctx); err != nil {
			return err
		}
	case f.Untracked:
		if err := f.untracked(ctx); err != nil {
			return err
		}
	}
	f.warnOutside()
	for pattern, n := range f.excluded {
		f.Info(fmt.Sprintf("%s: excluded %s", pattern, plural.Count(n, "file")))
	}
	return nil
}

// warnOutside warns about links that lead outside.
func (f *finder) warnOutside() {
	switch n := len(f.outside); {
	case n == 0:
	case f.OnlyInside:
		f.Warn(fmt.Sprintf("left out %d symbolic links that lead out of the directory, as %s", n, f.outside[0]))
	default:
		f.Warn(fmt.Sprintf("%d symbolic links lead outside of the project's directory, as %s: they are archived as links. "+
			"Artifacts with such links are unpacked only with STEPMUX_OUTSIDE_LINKS=true", n, f.outside[0]))
	}
}

var errOutside = errors.New("the path is outside of the project's directory")

// relative returns a pattern relative to the project's directory.
func (f *finder) relative(pattern string) (string, error) {
	if pattern == "" {
		return "", errors.New("the path is empty")
	}
	clean := path.Clean(pattern)
	if !path.IsAbs(clean) && clean != ".." && !strings.HasPrefix(clean, "../") {
		return clean, CheckPattern(clean)
	}
	if !path.IsAbs(clean) {
		clean = path.Join(f.Dir, clean)
	}
	if clean == f.Dir {
		return ".", nil
	}
	inside, found := strings.CutPrefix(clean, strings.TrimSuffix(f.Dir, "/")+"/")
	if !found {
		return "", errOutside
	}
	return inside, CheckPattern(inside)
}

// CheckPattern returns an error if pattern does not have the form of a [Selection]'s paths.
func CheckPattern(pattern string) error {
	if !doublestar.ValidatePattern(pattern) {
		return errors.New("the text is not a valid pattern: a [, { or \\ has no end")
	}
	return nil
}

// match adds the files that match a pattern, and all files below matching directories. The error is the end of ctx.
func (f *finder) match(ctx context.Context, pattern string) error {
	relative, err := f.relative(pattern)
	if err != nil {
		f.Warn(fmt.Sprintf("%s: %v", pattern, err))
		return nil
	}
	f.git = slices.Contains(strings.Split(relative, "/"), gitDir)
	found, excluded := 0, f.sumExcluded()
	err = doublestar.GlobWalk(f.fsys, relative, func(match string, _ fs.DirEntry) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !f.isDir(match) {
			found += f.add(match)
			return nil
		}
		return fs.WalkDir(f.fsys, match, func(name string, _ fs.DirEntry, err error) error {
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case name == gitDir && !f.git && f.isDir(name):
				return fs.SkipDir
			case err != nil:
				f.Warn(fmt.Sprintf("%s: %v", name, oserr.Bare(err)))
			}
			found += f.add(name)
			return nil
		})
	}, doublestar.WithNoFollow())
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		f.Warn(fmt.Sprintf("%s: %v", pattern, err))
	case found == 0 && f.sumExcluded() > excluded:
		f.Warn(fmt.Sprintf("%s: all matching files are excluded", pattern))
	case found == 0:
		f.Warn(fmt.Sprintf("%s: no matching files. Paths are relative to the project's directory, %s; a path through a "+
			"symbolic link that leads outside matches nothing", pattern, f.Dir))
	default:
		f.Info(fmt.Sprintf("%s: found %d matching files and directories", pattern, found))
	}
	return nil
}

// isDir reports whether name is a directory. A link to one does not count: it is archived as a link.
func (f *finder) isDir(name string) bool {
	info, err := f.files.root.Lstat(name)
	return err == nil && info.IsDir()
}

func (f *finder) sumExcluded() (sum int) {
	for _, n := range f.excluded {
		sum += n
	}
	return sum
}

// add adds a file, link or directory, and returns 1. It returns 0 if it is excluded or of another kind.
func (f *finder) add(name string) int {
	if name == "." || !f.git && strings.HasPrefix(name+"/", gitDir+"/") {
		return 0
	}
	for _, pattern := range f.exclude {
		if doublestar.MatchUnvalidated(pattern[0], name) {
			f.excluded[pattern[1]]++
			return 0
		}
	}
	if f.found[name] {
		return 1
	}
	info, err := f.files.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist): // deleted in the meantime
		return 0
	case err != nil:
		f.Warn(fmt.Sprintf("%s: %v", name, oserr.Bare(err)))
		return 0
	case !info.Mode().IsRegular() && !info.IsDir() && info.Mode().Type() != fs.ModeSymlink:
		f.Warn(name + ": it is not a file, a directory or a symbolic link")
		return 0
	}
	if info.Mode().Type() == fs.ModeSymlink {
		target, err := f.files.root.Readlink(name)
		if err == nil && leadsOut(name, target) {
			f.outside = append(f.outside, name)
			if f.OnlyInside {
				return 1
			}
		}
		f.targets[name] = len(target)
	}
	f.found[name] = true
	f.files.saw(info)
	return 1
}

// list sets the names of the files. With OnlyInside it leaves out those that Extract would refuse, as it refuses all of
// the archive then.
func (f *finder) list() {
	f.files.names = slices.Sorted(maps.Keys(f.found))
	if !f.OnlyInside {
		return
	}
	entries, size := 0, 0
	f.files.names = slices.DeleteFunc(f.files.names, func(name string) bool {
		cost := len(name) - nameSize + f.targets[name]
		switch {
		case len(name) > maxPath:
			f.files.Leave(name[:100]+"...", fmt.Errorf("the file's path is longer than %d bytes", maxPath))
		case entries == maxEntries:
			f.files.Leave(name, fmt.Errorf("at most %d files can be archived", maxEntries))
		case size+cost > nameFloor:
			f.files.Leave(name, errors.New("the paths of all files together are too long"))
		default:
			entries++
			size += cost
			return false
		}
		return true
	})
}

// besides adds all files and links but those of Tracked. As git does, it leaves out what is below a .git.
func (f *finder) besides(ctx context.Context) error {
	found := 0
	err := fs.WalkDir(f.fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			f.Warn(fmt.Sprintf("%s: %v", name, oserr.Bare(err)))
		case entry.Name() == gitDir:
			if entry.IsDir() {
				return fs.SkipDir
			}
		case !entry.IsDir() && !f.Tracked[name]:
			found += f.add(name)
		}
		return nil
	})
	if err == nil && found == 0 {
		f.Warn("untracked: no files")
	}
	return err
}

// untracked adds the files that git does not track, ignored ones too.
func (f *finder) untracked(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "git", "ls-files", "--others", "-z")
	cmd.Dir = f.Dir
	cmd.WaitDelay = time.Second
	said := &tail.Writer{}
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	found := 0
	if err == nil {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, maxName)
		lines.Split(untilNUL)
		for lines.Scan() {
			found += f.add(path.Clean(lines.Text()))
		}
		if lines.Err() != nil {
			_ = cmd.Process.Kill()
		}
		err = errors.Join(lines.Err(), cmd.Wait())
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		f.Warn(fmt.Sprintf("untracked: git ls-files: %v %s", err, said))
	case found == 0:
		f.Warn("untracked: no files")
	default:
		f.Info("untracked: found " + plural.Count(found, "file"))
	}
	return nil
}

// untilNUL splits a text at its NUL bytes.
func untilNUL(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, errors.New("the list ends in the middle of a name")
	}
	return 0, nil, nil
}
