// Package checkout returns git's information about a directory: the variables of its commit, as GitLab predefines them,
// and the changed and ignored files. [CopyTo] makes a repository for jobs from that of the directory.
//
// [Variables], [Changed], [Ignored] and CopyTo run git, bounded in time and output. They do not trust git's output:
// invalid names are left out, and texts are cut and made valid UTF-8. All wait for git, so the package owns nothing.
package checkout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/internal/subprocess"
)

const (
	// gitTime bounds each call of git.
	gitTime = 30 * time.Second
	// maxCommit bounds git's output about a commit, and maxMessage the part of the message that is used, in bytes.
	maxCommit, maxMessage = 4 << 20, 64 << 10
	// maxChanged bounds the list of changed files, in bytes.
	maxChanged = 16 << 20
	// maxSlug bounds the slug of a branch or tag.
	maxSlug = 63
	// maxRefName bounds the name of a branch, a tag or a revision, in bytes: git keeps such a name as a file's.
	maxRefName = 255
)

var (
	// commitID matches the ID of a commit.
	commitID = regexp.MustCompile(`\A[0-9a-f]{40,64}\z`)
	// refName matches a name that a branch, a tag or a revision may have, and that is not an option. A bound of its
	// length in the expression would take 13 ms of each start of the program.
	refName = regexp.MustCompile(`\A[^\s\p{C}~^:?*\[\\-][^\s\p{C}~^:?*\[\\]*\z`)
)

// isRefName reports whether a name matches refName and has at most maxRefName bytes.
func isRefName(name string) bool { return len(name) <= maxRefName && refName.MatchString(name) }

// Git returns the beginning of a command line: git in dir. Variables of the environment that name another repository
// have no effect, and git does not start its file system monitor. set are variables, NAME=VALUE.
func Git(dir string, set ...string) []string {
	return slices.Concat([]string{"env", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", "-u", "GIT_INDEX_FILE"}, set,
		[]string{"git", "-C", dir, "-c", "core.fsmonitor=false"})
}

// Contains reports whether a directory is in a git repository.
func Contains(dir string) bool {
	if real, err := filepath.EvalSymlinks(dir); err == nil { // the repository is above that, not above the link
		dir = real
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return true
		}
		if dir == filepath.Dir(dir) {
			return false
		}
	}
}

// Variables returns CI_COMMIT_SHA, CI_COMMIT_SHORT_SHA, CI_COMMIT_BRANCH or CI_COMMIT_TAG, CI_COMMIT_REF_NAME,
// CI_COMMIT_REF_SLUG, CI_COMMIT_MESSAGE, CI_COMMIT_TITLE, CI_COMMIT_DESCRIPTION, CI_COMMIT_AUTHOR, CI_COMMIT_TIMESTAMP
// and CI_DEFAULT_BRANCH of the commit that is checked out in dir, an absolute path, and CI_PROJECT_PATH,
// CI_PROJECT_NAMESPACE and CI_PROJECT_ROOT_NAMESPACE of the remote origin. Unknown ones are left out, and all of them
// if dir is in no repository or that has no commit. CI_COMMIT_TAG is for a checkout of a tag without a branch.
func Variables(ctx context.Context, dir string) ([]gitlabci.Variable, error) {
	if !Contains(dir) {
		return nil, nil
	}
	if _, err := exec.LookPath("git"); err != nil {
		return nil, errors.New("git is not installed")
	}
	if _, err := git(ctx, dir, maxCommit, "rev-parse", "--git-dir"); err != nil {
		return nil, err
	}
	commit, err := git(ctx, dir, maxCommit, "log", "-1", "--no-show-signature", "--encoding=UTF-8",
		"--format=tformat:%H%x00%an <%ae>%x00%cI%x00%B", "HEAD")
	if err != nil {
		return nil, nil //nolint:nilerr // the repository has no commit
	}
	fields := strings.SplitN(string(commit), "\x00", 4)
	if len(fields) != 4 || !commitID.MatchString(fields[0]) {
		return nil, errors.New("git describes a commit in another form than expected")
	}
	var vars []gitlabci.Variable
	add := func(name, value string) { vars = append(vars, gitlabci.Variable{Name: "CI_" + name, Value: value}) }
	add("COMMIT_SHA", fields[0])
	add("COMMIT_SHORT_SHA", fields[0][:8])
	branch, tag := current(ctx, dir)
	if branch != "" {
		add("COMMIT_BRANCH", branch)
	} else if tag != "" {
		add("COMMIT_TAG", tag)
	}
	if ref := branch + tag; ref != "" {
		add("COMMIT_REF_NAME", ref)
		add("COMMIT_REF_SLUG", Slug(ref))
	}
	message := text(strings.TrimRight(fields[3], "\n"), maxMessage)
	title, description, _ := strings.Cut(message, "\n")
	add("COMMIT_MESSAGE", message)
	add("COMMIT_TITLE", title)
	add("COMMIT_DESCRIPTION", strings.TrimLeft(description, "\n"))
	add("COMMIT_AUTHOR", line(fields[1]))
	add("COMMIT_TIMESTAMP", line(fields[2]))
	head, err := git(ctx, dir, maxMessage, "symbolic-ref", "-q", "refs/remotes/origin/HEAD")
	name, found := strings.CutPrefix(strings.TrimSpace(string(head)), "refs/remotes/origin/")
	if err == nil && found && isRefName(name) {
		add("DEFAULT_BRANCH", name)
	}
	url, err := git(ctx, dir, maxMessage, "config", "--get", "remote.origin.url")
	if project := projectOf(strings.TrimSpace(string(url))); err == nil && project != "" {
		root, _, _ := strings.Cut(project, "/")
		add("PROJECT_PATH", project)
		add("PROJECT_NAMESPACE", path.Dir(project))
		add("PROJECT_ROOT_NAMESPACE", root)
	}
	return vars, context.Cause(ctx)
}

// project matches the URL of a repository on a server: scheme://host/PATH or user@host:PATH.
var project = regexp.MustCompile(`\A(?:(?:https?|ssh|git)://[^/\s]+/|[\w.-]+@[\w.-]+:/?)([\w.-]+(?:/[\w.-]+)+)/?\z`)

// projectOf returns the path of a project on its server, such as owner/name, or an empty text.
func projectOf(url string) string {
	found := project.FindStringSubmatch(url)
	if found == nil || len(found[1]) > maxRefName {
		return ""
	}
	return strings.TrimSuffix(found[1], ".git")
}

// current returns the branch that is checked out or, if there is no branch, a tag of the commit.
func current(ctx context.Context, dir string) (branch, tag string) {
	if head, err := git(ctx, dir, maxMessage, "symbolic-ref", "-q", "HEAD"); err == nil {
		name, found := strings.CutPrefix(strings.TrimSpace(string(head)), "refs/heads/")
		if found && isRefName(name) {
			branch = name
		}
		return branch, ""
	}
	return "", Tag(ctx, dir)
}

// Tag returns a tag of the commit that is checked out in dir, or an empty text.
func Tag(ctx context.Context, dir string) string {
	tags, err := git(ctx, dir, maxCommit, "for-each-ref", "--count=1", "--points-at=HEAD", "--format=%(refname)",
		"refs/tags")
	name, found := strings.CutPrefix(strings.TrimSpace(string(tags)), "refs/tags/")
	if err != nil || !found || !isRefName(name) {
		return ""
	}
	return name
}

// Commit returns the ID of the commit that a revision names in the repository of dir: a branch, a tag, a commit, or a
// text such as HEAD~2.
func Commit(ctx context.Context, dir, revision string) (id string, err error) {
	if !Contains(dir) {
		return "", errors.New("there is no git repository")
	}
	if revision == "" || strings.HasPrefix(revision, "-") {
		return "", fmt.Errorf("%.80q cannot be a commit", revision)
	}
	out, err := git(ctx, dir, maxMessage, "rev-parse", "-q", "--verify", revision+"^{commit}")
	if id = strings.TrimSpace(string(out)); err != nil || !commitID.MatchString(id) {
		return "", fmt.Errorf("the repository has no commit %.80q", revision)
	}
	return id, nil
}

// Repository returns a directory that all work trees of the repository of dir have in common. It is dir itself if that
// is in no repository.
func Repository(ctx context.Context, dir string) string {
	if !Contains(dir) {
		return dir
	}
	common, err := git(ctx, dir, maxMessage, "rev-parse", "--git-common-dir")
	found := strings.TrimSuffix(string(common), "\n")
	switch {
	case err != nil || found == "":
		return dir
	case !filepath.IsAbs(found):
		found = filepath.Join(dir, found)
	}
	return found
}

// Changed returns the slash-separated paths, from the top of the repository, of the files in the work tree of dir that
// have changed. They are compared with the commit where HEAD left compareTo, a branch, tag or commit, or with the
// commit before HEAD if compareTo is empty. It returns nil, without an error, if there is no repository or no such
// commit.
func Changed(ctx context.Context, dir, compareTo string) ([]string, error) {
	if !Contains(dir) {
		return nil, nil
	}
	base := []string{"rev-parse", "-q", "--verify", "HEAD^{commit}~1"}
	if compareTo != "" {
		if !isRefName(compareTo) {
			return nil, fmt.Errorf("%.80q cannot be a branch or a commit", compareTo)
		}
		base = []string{"merge-base", "--", compareTo, "HEAD"}
	}
	from, err := git(ctx, dir, maxMessage, base...)
	if err != nil && compareTo != "" { // a clone has only its own branch, and those of the remote below origin/
		base[2] = "origin/" + compareTo
		if there, remote := git(ctx, dir, maxMessage, base...); remote == nil {
			from, err = there, nil
		}
	}
	id := strings.TrimSpace(string(from))
	switch {
	case err != nil && compareTo == "":
		return nil, context.Cause(ctx) // HEAD is the first commit
	case err != nil:
		return nil, fmt.Errorf("compare with %.80q: %w", compareTo, err)
	case !commitID.MatchString(id):
		return nil, errors.New("git describes a commit in another form than expected")
	}
	list, err := git(ctx, dir, maxChanged, "diff", "--name-only", "-z", "--no-ext-diff", "--no-renames",
		"--ignore-submodules=dirty", id, "--")
	if err != nil {
		return nil, err
	}
	untracked, err := git(ctx, dir, maxChanged, "ls-files", "-z", "--others", "--exclude-standard", "--full-name")
	if err != nil {
		return nil, err
	}
	paths := []string{}
	for name := range bytes.SplitSeq(append(list, untracked...), []byte{0}) {
		if len(name) > 0 {
			paths = append(paths, string(name))
		}
	}
	return paths, nil
}

// Ignored returns the slash-separated paths, from dir, of the files and directories that git ignores; a directory ends
// with a slash, and the files in it are left out. It returns nil if there is no repository.
func Ignored(ctx context.Context, dir string) ([]string, error) {
	if !Contains(dir) {
		return nil, nil
	}
	list, err := git(ctx, dir, maxChanged, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
	if err != nil {
		return nil, err
	}
	return strings.Split(string(list), "\x00"), nil
}

// git returns the output of git in dir, at most limit bytes.
func git(ctx context.Context, dir string, limit int, args ...string) ([]byte, error) {
	return subprocess.Output(ctx, append(Git(dir), args...), subprocess.Limit{Time: gitTime, Bytes: limit})
}

// text returns a text of git as the value of a variable, cut to limit bytes.
func text(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}

// line is text for a single line.
func line(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return text(first, 1024)
}

// Slug converts the name of a branch or tag for URLs and host names, as in CI_COMMIT_REF_SLUG.
func Slug(name string) string {
	s := strings.Map(func(c rune) rune {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return '-'
		}
		return c
	}, strings.ToLower(name))
	return strings.Trim(s[:min(len(s), maxSlug)], "-")
}
