package standalone

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// lockFile is the file of a project that names the commits of actions. Others write it: gh actions-lock.
const lockFile = ".github/workflows/actions.lock"

// lock has the commits of actions. The zero value has none, and holds for no workflow.
type lock struct {
	workflows []string          // the files of the workflows for which it holds
	commits   map[string]string // by owner/name@rev, in lower case but for the revision
}

// readLock reads the lock of the project in src.
func (src Source) readLock() (l lock, err error) {
	var failed error
	ask := func() (text []byte, err error) {
		if text, err = readBelow(src.WorkDir, lockFile); errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		failed = err
		return text, err
	}
	var text []byte
	if src.Answers == nil {
		text, err = ask()
	} else if text, err = src.Answers.Read(lockFile, ask); err != nil {
		err = failed // otherwise it was not asked for when the pipeline was submitted, by an older program
	}
	if err != nil || len(text) == 0 {
		return l, err
	}
	if l, err = parseLock(text); err != nil {
		err = fmt.Errorf("%s: %w", lockFile, err)
	}
	return l, err
}

// readBelow reads a text of a project.
func readBelow(dir, name string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return boundedfile.ReadBy(root.OpenFile, filepath.FromSlash(name), lang.MaxText+1)
}

// parseLock reads a lock.
func parseLock(text []byte) (l lock, err error) {
	var file struct {
		Version      string
		Workflows    map[string][]string
		Dependencies map[string]struct{ Commit string }
	}
	if len(text) > lang.MaxText {
		return l, fmt.Errorf("it has more than %d MiB", lang.MaxText>>20)
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return l, fmt.Errorf("it is not valid: %w", err)
	}
	if !strings.HasPrefix(file.Version, "v0.") {
		return l, fmt.Errorf("its version is %.40q; this program knows v0", file.Version)
	}
	for name := range file.Workflows {
		l.workflows = append(l.workflows, name)
	}
	l.commits = map[string]string{"": ""} // a lock is never empty: for a step that is none
	for key, of := range file.Dependencies {
		kind, commit, _ := strings.Cut(of.Commit, "-")
		if !action.IsCommit(commit) || kind != "sha1" && kind != "sha256" {
			return l, fmt.Errorf("the commit of %.160q is %.80q; it must begin with sha1- or sha256-", key, of.Commit)
		}
		l.commits[action.LockKey(key)] = commit
	}
	return l, nil
}

// LockedCommits returns the commits that the lock of the project in src.WorkDir has for the workflow src, by
// [action.LockKey], or nil if it is not locked.
func LockedCommits(src Source) (map[string]string, error) {
	l, err := src.readLock()
	return l.of(src), err
}

// of returns the commits for a workflow, or nil if the lock does not hold for it.
func (l lock) of(src Source) map[string]string {
	name := filepath.ToSlash(filepath.Join(filepath.Dir(lockFile), filepath.Base(src.Name)))
	if src.Repository != "" || !slices.Contains(l.workflows, name) {
		return nil
	}
	return l.commits
}
