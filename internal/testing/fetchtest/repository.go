package fetchtest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
)

// File is a file of a repository or an archive.
type File struct {
	Content string
	// Executable, Symlink (the target) and Submodule (the commit) are set for files that are not plain.
	Executable bool
	Symlink    string
	Submodule  string
}

// Files are files by path.
type Files map[string]File

// Texts are plain files.
func Texts(texts map[string]string) Files {
	files := Files{}
	for name, text := range texts {
		files[name] = File{Content: text}
	}
	return files
}

// Repository is a bare git repository.
type Repository struct {
	Dir string
	t   TB
}

// NewRepository makes dir and an empty repository in it.
func NewRepository(t TB, dir string, args ...string) *Repository {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(dir), 0o755))
	r := &Repository{Dir: dir, t: t}
	r.run(
		"",
		append([]string{"init", "--quiet", "--bare", "--template=", "--initial-branch=main"}, append(args, "--", dir)...)...)
	r.Git("config", "uploadpack.allowFilter", "true")
	return r
}

// Git runs a git command in the repository and returns its output.
func (r *Repository) Git(args ...string) string {
	r.t.Helper()
	return r.run("", append([]string{"--git-dir=" + r.Dir}, args...)...)
}

// Input is Git with input.
func (r *Repository) Input(input string, args ...string) string {
	r.t.Helper()
	return r.run(input, append([]string{"--git-dir=" + r.Dir}, args...)...)
}

func (r *Repository) run(input string, args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "git", args...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	cmd.Stdin = strings.NewReader(input)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	require.NoError(r.t, cmd.Run(), "git %v: %s", args, &said)
	return strings.TrimSpace(out.String())
}

// Commit makes a commit with exactly these files on top of a branch and returns its hash.
func (r *Repository) Commit(branch string, files Files) string {
	r.t.Helper()
	ref := "refs/heads/" + branch
	var b strings.Builder
	fmt.Fprintf(&b, "commit %s\ncommitter a <a@example.com> 1700000000 +0000\ndata 1\nx\n", ref)
	if parent := r.Git("for-each-ref", "--format=%(objectname)", ref); parent != "" {
		fmt.Fprintf(&b, "from %s\n", parent)
	}
	b.WriteString("deleteall\n")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		mode, content := "100644", f.Content
		switch {
		case f.Submodule != "":
			fmt.Fprintf(&b, "M 160000 %s %s\n", f.Submodule, name)
			continue
		case f.Symlink != "":
			mode, content = "120000", f.Symlink
		case f.Executable:
			mode = "100755"
		}
		fmt.Fprintf(&b, "M %s inline %s\ndata %d\n%s\n", mode, name, len(content), content)
	}
	r.Input(b.String(), "fast-import", "--quiet")
	return r.Git("rev-parse", ref)
}
