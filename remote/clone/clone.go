package clone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/rmtree"
)

// Config names the repository to clone, and the directory to clone it to.
type Config struct {
	// URL is the repository, by HTTPS or HTTP, without a user or a password. Required.
	URL string
	// Revision is a commit, a branch, a tag or a full ref. If empty, HEAD.
	Revision string
	// Refspecs are references that are fetched, too, as git writes them: +refs/heads/*:refs/remotes/origin/*. Names there
	// of an earlier clone that the repository does not have any more go.
	Refspecs []string
	// Dir is the directory, which is made if it is missing. If it has an earlier clone, its history is used again.
	// Required.
	Dir string
	// Depth is how many commits of the history are fetched. If zero, all.
	Depth int
	// Clean removes files of an earlier clone that are not in the repository, ignored ones too.
	Clean bool
	// Submodules are checked out too.
	Submodules Submodules
	// User and Password are the login for the server of URL. If Password is empty, there is no login.
	User, Password string
	// Env is the environment of git, in the form of [os.Environ]. The variables by which a GitLab job describes its
	// sources have an effect: GIT_CHECKOUT, GIT_CLEAN_FLAGS, GIT_FETCH_EXTRA_FLAGS, GIT_SUBMODULE_PATHS, _DEPTH,
	// _UPDATE_FLAGS and _FORCE_HTTPS, GET_SOURCES_ATTEMPTS, and CI_SERVER_TLS_CA_FILE.
	Env []string
	// Output gets the messages of git. Required.
	Output io.Writer
}

// Submodules says which submodules are checked out.
type Submodules string

// The values of Submodules.
const (
	None      Submodules = "none"
	Normal    Submodules = "normal"    // those of the repository
	Recursive Submodules = "recursive" // those of the repository, and their submodules
)

func (cfg *Config) check() error {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		return errors.New("the repository is not a URL such as https://host/path")
	case u.User != nil:
		return errors.New("the repository's URL has a user; give user and password by themselves")
	case strings.ContainsFunc(cfg.URL, isControl):
		return errors.New("the repository's URL holds a control character")
	case strings.HasPrefix(cfg.Revision, "-") || strings.ContainsFunc(cfg.Revision, isControl) ||
		strings.ContainsAny(cfg.Revision, ":+^~*?[\\ "):
		return errors.New("the revision is not valid; write a commit, a branch or a tag")
	case len(cfg.Refspecs) > maxRefspecs || slices.ContainsFunc(cfg.Refspecs, func(r string) bool {
		return !refspec.MatchString(r) || strings.Contains(r, "..")
	}):
		return fmt.Errorf("the refspecs are not valid; write at most %d, each as +refs/heads/*:refs/remotes/origin/*",
			maxRefspecs)
	case cfg.Depth < 0:
		return errors.New("the depth is negative; use 0 for the whole history")
	case !slices.Contains([]Submodules{"", None, Normal, Recursive}, cfg.Submodules):
		return fmt.Errorf("submodules %.64q: use none, normal or recursive", cfg.Submodules)
	}
	return nil
}

// refspec is a reference, or a commit, and where it goes.
var refspec = regexp.MustCompile(`^\+?[A-Za-z0-9_][A-Za-z0-9_./@*#+-]*(:refs/[A-Za-z0-9_./@*#+-]+)?$`)

// maxRefspecs bounds the references that are named.
const maxRefspecs = 100

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

// Clone checks out cfg.Revision in cfg.Dir and returns the commit, or "" if GIT_CHECKOUT is false. It replaces files in
// the way. When ctx ends, git is killed, and the directory stays as it is then.
func Clone(ctx context.Context, cfg Config) (commit string, err error) {
	if err := cfg.check(); err != nil {
		return "", err
	}
	asked, err := readSettings(cfg.Env)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return "", fmt.Errorf("make the directory: %w", err)
	}
	g := &git{cfg: &cfg, settings: asked}
	if cfg.Password != "" {
		login, err := newLogin(cfg.User, cfg.Password)
		if err != nil {
			return "", err
		}
		defer login.close()
		g.login = login
	}
	return g.attempt(ctx, func() (string, error) { return g.clone(ctx) })
}

// clone clones once.
func (g *git) clone(ctx context.Context) (commit string, err error) {
	cfg := g.cfg
	again, err := cfg.reset()
	if err != nil {
		return "", err
	}
	if err := g.init(ctx); err != nil {
		return "", err
	}
	indexed := func() error { return nil }
	if again && !g.noCheckout {
		indexed = g.startIndex(ctx)
	}
	err = g.fetch(ctx, again)
	indexErr := indexed()
	if again {
		err = g.refetch(ctx, err)
	}
	if err != nil {
		return "", err
	}
	if g.noCheckout {
		fmt.Fprintln(cfg.Output, "GIT_CHECKOUT is false: nothing is checked out")
		return "", nil
	}
	if indexErr != nil { // perhaps of the damaged clone
		if err := g.index(ctx); err != nil {
			return "", err
		}
	}
	if err := g.run(ctx, "checkout", "--quiet", "--force", "--detach", "FETCH_HEAD"); err != nil {
		return "", err
	}
	if again && cfg.Clean {
		if err := g.cleanAs(ctx); err != nil {
			return "", fmt.Errorf("remove files of an earlier build: %w", err)
		}
	}
	if err := g.submodules(ctx, again); err != nil {
		return "", err
	}
	commit, err = g.head()
	if err == nil && isCommit(cfg.Revision) && commit != cfg.Revision {
		err = fmt.Errorf("the server sent the commit %s in place of the one that was asked for", commit)
	}
	return commit, err
}

// isCommit reports whether a revision is the full id of a commit.
func isCommit(revision string) bool {
	return (len(revision) == 40 || len(revision) == 64) && strings.Trim(revision, "0123456789abcdef") == ""
}

// kept are the files of a repository in which an earlier build can only have left objects and names for them: see
// gitrepository-layout(5). Any other may change what the rest means, as config and commondir do, or block git:
// packed-refs can have names in refs/replace. removed are such files below those that are kept.
var (
	kept    = []string{"HEAD", "logs", "objects", "refs", "shallow"}
	removed = []string{"objects/info", "refs/replace"}
)

// reset removes files from the repository in Dir by which an earlier build could run code in this one. again says that
// there is a repository. If it is not a plain directory, reset removes it as a whole.
func (cfg *Config) reset() (again bool, err error) {
	dir := filepath.Join(cfg.Dir, ".git")
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at an earlier clone: %w", err)
	case !info.IsDir():
		if err := os.Remove(dir); err != nil {
			return false, fmt.Errorf("remove an earlier clone: %w", err)
		}
		return false, nil
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if err == nil && (!slices.Contains(kept, e.Name()) || e.Type() == fs.ModeSymlink) {
			err = rmtree.Remove(filepath.Join(dir, e.Name()))
		}
	}
	for _, name := range removed {
		if err == nil {
			err = rmtree.Remove(filepath.Join(dir, name))
		}
	}
	if err != nil {
		return false, fmt.Errorf("reset an earlier clone: %w", err)
	}
	return true, nil
}

// init makes the repository if it is missing, and adds the remote.
func (g *git) init(ctx context.Context) error {
	init := []string{"init", "--quiet", "--template="}
	if len(g.cfg.Revision) == 64 && isCommit(g.cfg.Revision) {
		init = append(init, "--object-format=sha256")
	}
	if err := g.run(ctx, init...); err != nil {
		return err
	}
	return g.addOrigin()
}

// fetch fetches the revision.
func (g *git) fetch(ctx context.Context, again bool) error {
	// Only FETCH_HEAD is needed. A branch origin/x of an earlier clone would be in the way of a new origin/x/y.
	args := []string{
		"fetch", "--quiet", "--force", "--refmap=", "--no-tags", "--no-recurse-submodules", "--no-write-commit-graph",
	}
	_, err := os.Lstat(filepath.Join(g.cfg.Dir, ".git", "shallow"))
	switch {
	case g.cfg.Depth > 0:
		args = append(args, "--depth="+strconv.Itoa(g.cfg.Depth))
	case err == nil:
		args = append(args, "--unshallow")
	}
	if _, err := g.head(); again && err == nil { // no ref names the commit that is there
		args = append(args, "--negotiation-tip=HEAD")
	}
	revision := g.cfg.Revision
	if revision == "" {
		revision = "HEAD"
	}
	if len(g.cfg.Refspecs) > 0 {
		args = append(args, "--prune")
	}
	args = append(args, g.settings.fetch...)
	args = append(args, "--", "origin", revision) // FETCH_HEAD is the first
	return g.run(ctx, append(args, g.cfg.Refspecs...)...)
}

// addOrigin adds the remote to the configuration of the repository, which is new: reset has removed that of an earlier
// clone. Two calls of git would take as long as all the rest of a small clone.
func (g *git) addOrigin() error {
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(g.cfg.URL) // it has no control characters
	text := fmt.Sprintf("[remote \"origin\"]\n\turl = \"%s\"\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n", quoted)
	file, err := os.OpenFile(filepath.Join(g.cfg.Dir, ".git", "config"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("configure the repository: %w", err)
	}
	_, err = file.WriteString(text)
	return cmp.Or(err, file.Close())
}

// head returns the commit that is checked out.
func (g *git) head() (string, error) {
	text, err := os.ReadFile(filepath.Join(g.cfg.Dir, ".git", "HEAD"))
	commit := strings.TrimSpace(string(text))
	if err == nil && !isCommit(commit) {
		err = fmt.Errorf("git has not checked out a commit: HEAD is %.100q", commit)
	}
	return commit, err
}

// cleanAs removes files of an earlier clone, in the way that GIT_CLEAN_FLAGS says.
func (g *git) cleanAs(ctx context.Context) error {
	switch {
	case g.settings.clean == nil:
		return g.clean(ctx)
	case len(g.settings.clean) == 0:
		return nil
	}
	return g.run(ctx, append([]string{"clean", "--quiet"}, g.settings.clean...)...)
}

// startIndex starts index while git waits for the server, and returns a function that waits for its end.
func (g *git) startIndex(ctx context.Context) (wait func() error) {
	quiet := *g.cfg
	quiet.Output = io.Discard // the messages of the fetch go on
	done := make(chan error, 1)
	go func() { done <- (&git{cfg: &quiet, settings: g.settings}).index(ctx) }()
	return func() error { return <-done }
}

// index rebuilds the index of an earlier clone from the content of its files: an index of the earlier build can say of
// any file that it is unchanged, and git then leaves that file as it is. Files that are the same keep their times.
func (g *git) index(ctx context.Context) error {
	if g.run(ctx, "read-tree", "HEAD") != nil {
		return context.Cause(ctx) // without an index all files are written
	}
	return g.run(ctx, "update-index", "-q", "--refresh")
}

// submodules checks out the submodules. again says that files of an earlier clone may be in their place.
func (g *git) submodules(ctx context.Context, again bool) error {
	if g.cfg.Submodules == "" || g.cfg.Submodules == None {
		return nil
	}
	if again {
		if err := g.run(ctx, "submodule", "--quiet", "deinit", "--force", "--all"); err != nil {
			return err
		}
	}
	args := []string{"submodule", "--quiet", "update", "--init", "--force"}
	if g.cfg.Submodules == Recursive {
		args = append(args, "--recursive")
	}
	depth := g.cfg.Depth
	if g.submoduleDepth >= 0 {
		depth = g.submoduleDepth
	}
	if depth > 0 {
		args = append(args, "--depth="+strconv.Itoa(depth))
	}
	args = append(args, g.submoduleUpdate...)
	return g.run(ctx, append(append(args, "--"), g.paths...)...)
}
