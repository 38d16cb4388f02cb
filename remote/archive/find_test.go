package archive

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// tree writes files below a new directory. A content that begins with -> is a link's target, and a name that ends in /
// a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "project")
	require.NoError(t, os.Mkdir(dir, 0o755))
	for name, content := range files {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		target, isLink := strings.CutPrefix(content, "->")
		switch {
		case strings.HasSuffix(name, "/"):
			require.NoError(t, os.MkdirAll(at, 0o755))
		case isLink:
			require.NoError(t, os.Symlink(target, at))
		default:
			require.NoError(t, os.WriteFile(at, []byte(content), 0o644))
		}
	}
	return dir
}

// says collects the lines about a selection.
type says struct{ infos, warnings []string }

func (s *says) info(text string) { s.infos = append(s.infos, text) }
func (s *says) warn(text string) { s.warnings = append(s.warnings, text) }

func find(t *testing.T, s Selection) (*Files, *says) {
	t.Helper()
	said := &says{}
	s.Info, s.Warn = said.info, said.warn
	files, err := Find(t.Context(), s)
	require.NoError(t, err)
	t.Cleanup(files.Close)
	return files, said
}

func TestPatternsMatchAsInGitLab(t *testing.T) {
	dir := tree(t, map[string]string{
		"dist/a.js": "", "dist/sub/b.js": "", "dist/sub/b.map": "", "dist/empty/": "", "top.txt": "", ".hidden/x": "",
		"[odd]/{x}": "", "link": "->dist", "loop/self": "->.",
	})
	for _, c := range []struct {
		paths, exclude string
		want           string
	}{
		{"dist", "", "dist dist/a.js dist/empty dist/sub dist/sub/b.js dist/sub/b.map"},
		{"dist/", "", "dist dist/a.js dist/empty dist/sub dist/sub/b.js dist/sub/b.map"},
		{"./dist/*.js", "", "dist/a.js"},
		{"dist/**/*.js", "", "dist/a.js dist/sub/b.js"},
		{"**/*.{js,txt}", "", "dist/a.js dist/sub/b.js top.txt"},
		{"dist", "dist/**/*.map", "dist dist/a.js dist/empty dist/sub dist/sub/b.js"},
		{"dist", "dist/sub/**", "dist dist/a.js dist/empty"},
		{"dist top.txt dist/a.js", "./dist/sub/* dist/empty", "dist dist/a.js dist/sub top.txt"},
		{dir + "/top.txt", "", "top.txt"},
		{"../project/top.txt", dir + "/x", "top.txt"},
		{`\[odd\]`, "", "[odd] [odd]/{x}"},
		{"link", "", "link"},
		{"loop/**", "", "loop loop/self"},
		{".hidden", "", ".hidden .hidden/x"},
		{"dist/sub/../a.js", "", "dist/a.js"},
	} {
		files, said := find(t, Selection{Dir: dir, Paths: strings.Fields(c.paths), Exclude: strings.Fields(c.exclude)})
		require.Equal(t, strings.Fields(c.want), files.Names(), "%s less %s", c.paths, c.exclude)
		require.Empty(t, said.warnings, "%s", c.paths)
	}
}

func TestTheRepositoryOfTheDirectoryIsFoundByItsName(t *testing.T) {
	dir := tree(t, map[string]string{
		".git/HEAD": "", ".git/objects/x": "", ".gitignore": "", "a": "", "sub/.git/HEAD": "", "sub/b": "",
	})
	rest := ".gitignore a sub sub/.git sub/.git/HEAD sub/b"
	own := ".git .git/HEAD .git/objects .git/objects/x"
	for pattern, want := range map[string]string{
		".": rest, "**": rest, "*": rest, ".git*": ".gitignore", "**/HEAD": "sub/.git/HEAD", "**/*": rest, dir: rest,
		".git": own, "./.git/": own, ".git/HEAD": ".git/HEAD", "**/.git/HEAD": ".git/HEAD sub/.git/HEAD", dir + "/.git": own,
	} {
		files, _ := find(t, Selection{Dir: dir, Paths: []string{pattern}})
		require.Equal(t, want, strings.Join(files.Names(), " "), pattern)
	}
	files, _ := find(t, Selection{
		Dir: dir, Paths: []string{".git/HEAD", "*"}, Untracked: true, Tracked: map[string]bool{"a": true},
	})
	require.Equal(t, ".git/HEAD "+rest, strings.Join(files.Names(), " "))
	link := tree(t, map[string]string{".git": "gitdir: elsewhere", "z": ""}) // as in a linked work tree
	files, _ = find(t, Selection{Dir: link, Paths: []string{"."}})
	require.Equal(t, "z", strings.Join(files.Names(), " "))
}

func TestFilesOfTwoDirectoriesAreOneArchive(t *testing.T) {
	one, two := tree(t, map[string]string{"a": "1", "c/d": "2"}), tree(t, map[string]string{"b/": "", "c/e": "3"})
	files, err := Named(one, []string{"a", "c/d"}, func(text string) { t.Error(text) })
	require.NoError(t, err)
	defer files.Close()
	require.NoError(t, files.Beside(two, []string{"b", "c/e"}))
	packed, err := os.Create(filepath.Join(t.TempDir(), "packed"))
	require.NoError(t, err)
	defer packed.Close()
	require.NoError(t, files.Write(t.Context(), packed, TarZstd, "fast"))
	to := t.TempDir()
	n, err := Extract(t.Context(), packed, to, Bounds{})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	for name, want := range map[string]string{"a": "1", "c/d": "2", "c/e": "3"} {
		text, err := os.ReadFile(filepath.Join(to, name))
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	require.DirExists(t, filepath.Join(to, "b"))
	require.Error(t, files.Beside(filepath.Join(two, "gone"), []string{"x"}))
}

func TestPatternsThatMatchNothingAreWarnings(t *testing.T) {
	dir := tree(t, map[string]string{
		"a": "", "away": "->../outside", "up": "->..", "etc": "->/etc",
	})
	outside := filepath.Join(filepath.Dir(dir), "outside")
	require.NoError(t, os.Mkdir(outside, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644))
	for pattern, want := range map[string]string{
		"missing":           "no matching files",
		"missing/**":        "no matching files",
		"../outside/secret": "the path is outside of the project's directory",
		"..":                "the path is outside of the project's directory",
		"/etc/passwd":       "the path is outside of the project's directory",
		outside:             "the path is outside of the project's directory",
		dir + "2":           "the path is outside of the project's directory",
		"away/secret":       "no matching files",
		"away/*":            "no matching files",
		"etc/**":            "",
		"up/outside/**":     "no matching files",
		"[":                 "the text is not a valid pattern",
		"":                  "the path is empty",
	} {
		files, said := find(t, Selection{Dir: dir, Paths: []string{pattern}})
		for _, name := range files.Names() {
			require.Equal(t, "etc", name, "%q", pattern)
		}
		if want != "" {
			require.Len(t, said.warnings, 1, "%q", pattern)
			require.Contains(t, said.warnings[0], want)
		}
	}
	files, said := find(t, Selection{Dir: dir, Paths: []string{"a"}, Exclude: []string{"a"}})
	require.Empty(t, files.Names())
	require.Equal(t, []string{"a: all matching files are excluded"}, said.warnings)
	require.Equal(t, []string{"a: excluded 1 file"}, said.infos)
}

func TestLinksThatLeadOutsideAreNamed(t *testing.T) {
	dir := tree(t, map[string]string{"v/python": "->/usr/bin/python3", "v/up": "->../..", "v/in": "->../v/x", "v/x": ""})
	files, said := find(t, Selection{Dir: dir, Paths: []string{"v"}})
	require.Len(t, files.Names(), 5)
	require.Len(t, said.warnings, 1)
	require.Regexp(t, "^2 symbolic links lead outside of the project's directory, as v/(python|up): ", said.warnings[0])
}

func TestPipesAndSocketsAreLeftOut(t *testing.T) {
	dir := tree(t, map[string]string{"d/a": ""})
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "d", "pipe"), 0o600))
	files, said := find(t, Selection{Dir: dir, Paths: []string{"d"}})
	require.Equal(t, []string{"d", "d/a"}, files.Names())
	require.Equal(t, []string{"d/pipe: it is not a file, a directory or a symbolic link"}, said.warnings)
}

func TestUntrackedFilesAreThoseThatGitDoesNotTrack(t *testing.T) {
	dir := tree(t, map[string]string{"tracked": "", "new": "", "sub/ü n": "", "ignored.o": "", ".gitignore": "*.o\n"})
	git := func(args ...string) {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	_, said := find(t, Selection{Dir: dir, Untracked: true})
	require.Len(t, said.warnings, 1)
	require.Contains(t, said.warnings[0], "untracked: git ls-files: exit status 128")
	git("init", "-q")
	git("add", "tracked", ".gitignore")
	files, said := find(t, Selection{Dir: dir, Untracked: true, Exclude: []string{"new"}})
	require.Equal(t, []string{"ignored.o", "sub/ü n"}, files.Names())
	require.Empty(t, said.warnings)
}

// Untracked files are those that the caller does not name, in a directory without a repository too.
func TestUntrackedFilesBesidesNamedOnes(t *testing.T) {
	dir := tree(t, map[string]string{
		"src/a": "", "src/new": "", "ignored/x": "", "link": "->src", ".git/config": "", "sub/.git": "gitdir", "sub/b": "",
	})
	tracked := map[string]bool{"src/a": true}
	for _, c := range []struct{ paths, exclude, want string }{
		{"", "", "ignored/x link src/new sub/b"},
		{"", "ignored/** sub/b", "link src/new"},
		{"src", "", "ignored/x link src src/a src/new sub/b"},
	} {
		files, said := find(t, Selection{
			Dir: dir, Paths: strings.Fields(c.paths), Exclude: strings.Fields(c.exclude), Untracked: true, Tracked: tracked,
		})
		require.Equal(t, c.want, strings.Join(files.Names(), " "))
		require.Empty(t, said.warnings)
	}
	_, said := find(t, Selection{Dir: filepath.Join(dir, "src"), Untracked: true, Tracked: map[string]bool{
		"a": true, "new": true,
	}})
	require.Equal(t, []string{"untracked: no files"}, said.warnings)
}
