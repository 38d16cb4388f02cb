package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/docker/go-units"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/subprocess"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/archive"
)

const (
	// maxListed bounds the list of a project's files, in bytes. listTime bounds the time that git takes to make it.
	maxListed, listTime = 256 << 20, 5 * time.Minute
	// maxNested bounds the depth of repositories inside repositories.
	maxNested = 16
	// maxWarnings bounds the lines about files that were left out.
	maxWarnings = 10
)

// projectFlags name the files that builds get and the artifacts that they return.
type projectFlags struct {
	project   string
	artifacts []string
}

func (f *projectFlags) registerProject(fl *pflag.FlagSet) {
	fl.StringVar(&f.project, "project", "", "copy the files of this `DIR` to each build's work directory, without .git "+
		"and the files that git ignores; they are sent to a VM only once")
	fl.StringArrayVar(&f.artifacts, "artifacts", nil, "collect the files and directories in the work directory that "+
		"match this `GLOB`, such as dist or 'logs/**/*.txt', when a build has ended, even if it failed; repeatable")
	grouped(fl, fileGroup)
}

func (f *projectFlags) checkProject() error {
	size := 0
	for _, pattern := range f.artifacts {
		if clean := path.Clean(pattern); pattern == "" || path.IsAbs(clean) || clean == ".." ||
			strings.HasPrefix(clean, "../") {
			return fmt.Errorf("--artifacts %.80q: write a path below the work directory", pattern)
		}
		if !utf8.ValidString(pattern) { // no message of protobuf can have it
			return fmt.Errorf("--artifacts %.80q: it is not valid UTF-8; use ? for a byte of a name", pattern)
		}
		if err := archive.CheckPattern(pattern); err != nil {
			return fmt.Errorf("--artifacts %.80q: %w", pattern, err)
		}
		size += len(pattern)
	}
	if len(f.artifacts) > wire.MaxPatterns || size > wire.MaxPatternBytes {
		return fmt.Errorf("--artifacts: use at most %d patterns of %d bytes together", wire.MaxPatterns, wire.MaxPatternBytes)
	}
	return nil
}

// checkDir returns an error if it is certain that no directory can be made below dir, which need not exist.
func checkDir(dir string) error {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at):
			continue
		case err != nil:
			err = errors.Unwrap(err)
		case !info.IsDir():
			err = unix.ENOTDIR
		default:
			err = unix.Access(at, unix.W_OK|unix.X_OK)
		}
		if err != nil {
			return fmt.Errorf("make a directory in %s: %w", at, err)
		}
		return nil
	}
}

// packed is the archive of a project, in a file that has no name any more.
type packed struct {
	files.Project
	file *os.File
}

// pack packs the project, if one is given. The caller closes it. warnings receives lines about files that were left
// out.
// git is a repository for it, and may be empty.
func (f *projectFlags) pack(ctx context.Context, git checkout.Copy, warnings io.Writer) (*packed, error) {
	if f.project == "" {
		return nil, nil
	}
	p, err := packProject(ctx, f.project, git, warnings)
	if err == nil {
		return p, nil
	}
	code := exitUsage
	if coded, ok := errors.AsType[*exitError](err); ok {
		code, err = coded.code, coded.err
	}
	return nil, withCode(code, fmt.Errorf("--project %s: %w", f.project, err))
}

func packProject(ctx context.Context, dir string, git checkout.Copy, warnings io.Writer) (*packed, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(dir); err != nil {
		return nil, errors.Unwrap(err)
	} else if !info.IsDir() {
		return nil, errors.New("the project is not a directory")
	}
	left := 0
	warn := func(text string) {
		if left++; left <= maxWarnings {
			fmt.Fprintf(warnings, "stepmux: --project: %s\n", termtext.Line(text))
		}
	}
	defer func() {
		if left > maxWarnings {
			fmt.Fprintf(warnings, "stepmux: --project: %d more warnings\n", left-maxWarnings)
		}
	}()
	names, err := projectFiles(ctx, dir, 0, warn)
	if err != nil {
		return nil, systemError(err)
	}
	p, err := packFiles(ctx, dir, names, git, warn)
	if errors.Is(err, errLargeProject) && len(git.Names) > 0 {
		warn(err.Error() + " with the history of its repository: the jobs have no .git; choose a smaller --git-depth")
		p, err = packFiles(ctx, dir, names, checkout.Copy{}, warn)
	}
	return p, err
}

// packFiles packs the named files of a directory, and a repository, which may be empty.
func packFiles(
	ctx context.Context, dir string, names []string, git checkout.Copy, warn func(string),
) (_ *packed, err error) {
	found, err := archive.Named(dir, names, warn)
	if err != nil {
		return nil, systemError(err)
	}
	defer found.Close()
	if len(found.Names()) == 0 {
		return nil, errors.New("the project has no files, or git ignores all of them")
	}
	if err := found.Beside(git.Dir, git.Names); err != nil {
		return nil, systemError(err)
	}
	file, err := os.CreateTemp("", "stepmux-project-")
	if err != nil {
		return nil, systemError(err)
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	if err := os.Remove(file.Name()); err != nil {
		return nil, systemError(err)
	}
	p := &packed{file: file}
	sum := sha256.New()
	to := &limited{to: io.MultiWriter(file, sum)}
	if err := found.Write(ctx, to, archive.TarZstd, "fast"); err != nil {
		return nil, systemError(err)
	}
	p.Digest, p.Size = hex.EncodeToString(sum.Sum(nil)), to.n
	p.Open = func(context.Context) (io.ReadSeekCloser, error) {
		return section{io.NewSectionReader(file, 0, to.n)}, nil
	}
	return p, nil
}

// archive returns the archive for builds, nil without a project.
func (p *packed) archive() *files.Project {
	if p == nil {
		return nil
	}
	return &p.Project
}

// Close removes the archive.
func (p *packed) Close() {
	if p != nil {
		p.file.Close()
	}
}

// section reads a part of a file. Its Close does nothing: another owner closes the file.
type section struct{ *io.SectionReader }

func (section) Close() error { return nil }

// errLargeProject says that an archive is too large.
var errLargeProject = fmt.Errorf("the project's archive is larger than %s", units.BytesSize(wire.MaxProject))

// limited counts the bytes of an archive and fails when there are too many.
type limited struct {
	to io.Writer
	n  int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.n += int64(len(p)); l.n > wire.MaxProject {
		return 0, errLargeProject
	}
	return l.to.Write(p)
}

// projectFiles returns the files of a project's directory that git does not ignore, whether or not git tracks them.
// depth is the number of repositories around it. warn gets lines about directories that cannot be read.
func projectFiles(ctx context.Context, dir string, depth int, warn func(string)) ([]string, error) {
	if depth > maxNested {
		return nil, fmt.Errorf("%s: there are more than %d git repositories in one another", dir, maxNested)
	}
	if _, err := exec.LookPath("git"); err != nil {
		return filesWithoutGit(ctx, dir, warn)
	}
	text, err := listByGit(ctx, dir, warn)
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range bytes.SplitSeq(text, []byte{0}) {
		name := strings.TrimSuffix(string(name), "/")
		if name == "" {
			continue
		}
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || !info.IsDir() {
			names = append(names, name)
			continue
		}
		// A repository inside this one: a submodule, or another checkout.
		if _, err := os.Lstat(filepath.Join(dir, name, ".git")); err != nil {
			continue
		}
		below, err := projectFiles(ctx, filepath.Join(dir, name), depth+1, warn)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			warn(fmt.Sprintf("the repository %s is left out: %v", name, err))
			continue
		}
		for _, b := range below {
			names = append(names, name+"/"+b)
		}
	}
	return names, nil
}

// listByGit returns the output of git ls-files for a directory, also if it is in no repository.
func listByGit(ctx context.Context, dir string, warn func(string)) ([]byte, error) {
	argv := checkout.Git(dir)
	list := []string{"ls-files", "-z", "--others", "--exclude-standard"}
	if checkout.Contains(dir) {
		list = append(list, "--cached")
	} else {
		empty, err := makeTempDir(ctx, "git-")
		if err != nil {
			return nil, err
		}
		defer func() { _ = empty.remove() }() // it holds no files of the project
		limit := subprocess.Limit{Time: listTime, Bytes: maxListed}
		if _, err := subprocess.Output(ctx, append(argv, "init", "-q", "--template=", empty.path), limit); err != nil {
			return nil, err
		}
		argv = append(argv, "--git-dir="+filepath.Join(empty.path, ".git"), "--work-tree="+dir)
	}
	return subprocess.Output(ctx, append(argv, list...), subprocess.Limit{
		Time: listTime, Bytes: maxListed, Said: func(text string) { // about directories that it may not read
			for line := range strings.Lines(text) {
				warn(strings.TrimSpace(line))
			}
		},
	})
}

// filesWithoutGit returns all files below a directory that does not use git. If it does use git, the error says that
// git is required. A directory that cannot be read is left out.
func filesWithoutGit(ctx context.Context, dir string, warn func(string)) (names []string, err error) {
	size := 0
	// The slash at the end makes WalkDir follow dir if it is a link.
	err = filepath.WalkDir(dir+"/", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && filepath.Clean(file) == dir:
			return err
		case err != nil:
			warn(fmt.Sprintf("%s: left out: %v", file, errors.Unwrap(err)))
			return nil
		case entry.Name() == ".gitignore" || entry.Name() == ".git":
			return fmt.Errorf("%s: git is not installed here, and it is needed to know which files it ignores", file)
		case entry.IsDir():
			return nil
		}
		name, err := filepath.Rel(dir, file)
		if size += len(name); size > maxListed {
			return errors.New("the project has too many files")
		}
		names = append(names, filepath.ToSlash(name))
		return err
	})
	return names, err
}

// artifactsFor returns the artifacts of a build, which are unpacked in a directory of its own below dir. It returns
// nil without patterns.
func (f *projectFlags) artifactsFor(dir, build string, say func(line string)) *files.Artifacts {
	if len(f.artifacts) == 0 {
		return nil
	}
	return &files.Artifacts{Paths: f.artifacts, Take: func(ctx context.Context, from *os.File) error {
		to := filepath.Join(dir, build)
		n, err := unpackArtifacts(ctx, from, to)
		if err == nil {
			say(fmt.Sprintf("%s: %s in %s", build, plural.Count(n, "artifact"), to))
		}
		return err
	}}
}

// unpackArtifacts unpacks the artifacts of a build in a directory, which is created if missing. The archive is
// untrusted.
func unpackArtifacts(ctx context.Context, from *os.File, dir string) (int, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	return archive.Extract(ctx, from, dir, archive.Bounds{})
}
