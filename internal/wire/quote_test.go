package wire

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shells returns the login shells of this machine; sh is always among them. If STEPMUX_REQUIRE_PARTS is 1, none may be
// missing.
func shells(t testing.TB) []string {
	t.Helper()
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	found := []string{sh}
	for _, name := range []string{"bash", "dash", "zsh", "ksh", "busybox", "tcsh", "fish"} {
		path, err := exec.LookPath(name)
		if err != nil {
			require.NotEqual(t, "1", os.Getenv("STEPMUX_REQUIRE_PARTS"), err)
			continue
		}
		if name == "busybox" { // it is a shell by the name it is called with
			sh := filepath.Join(t.TempDir(), "sh")
			require.NoError(t, os.Symlink(path, sh))
			path = sh
		}
		found = append(found, path)
	}
	return found
}

// split lets shell split the quoted form of args and returns the arguments that a program receives.
func split(t testing.TB, shell string, args []string) []string {
	t.Helper()
	line, err := LoginLine(append([]string{"printf", `%s\0`}, args...)...)
	require.NoError(t, err)
	require.NotContains(t, line, "\n")
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), shell, "-c", line)
	cmd.Stderr = &stderr
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	out, err := cmd.Output()
	require.NoError(t, err, "%s -c %q: %s", shell, line, stderr.Bytes())
	require.Empty(t, stderr.String(), "%s -c %q", shell, line)
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

var awkward = []string{
	"plain", "", " ", "a b", "'", "''", `'\''`, `"`, "`id`", "$(id)", "$HOME", "${x}", "a\nb", "\n", "\t", "\\", `\\`,
	`\n`,
	"*", "?", "[a]", "{a,b}", "~", "~root", "!", "!!", "#", "a#b", "-", "--", "-n", "a=b", "=ls", "&", "&&", "|", ";",
	"<", ">", "(", ")",
	"2>x", "%s", "ü", "\xff\xfe", "\x01\x7f", "\r", "if", "/a/b:c@d,e+f", strings.Repeat("x'y", 5000),
}

//stepmux:faults vulnerabilities | A shell takes an argument for syntax | each command line is quoted in one place
//stepmux:with internal/wire.TestQuotedCommandWordIsNeverSyntax
func TestQuotedArgumentsComeOutOfEveryShellUnchanged(t *testing.T) {
	for _, shell := range shells(t) {
		t.Run(shell, func(t *testing.T) {
			require.Equal(t, awkward, split(t, shell, awkward))
			for _, arg := range awkward {
				require.Equal(t, []string{arg}, split(t, shell, []string{arg}))
			}
		})
	}
}

func TestQuotedCommandWordIsNeverSyntax(t *testing.T) {
	words := []string{"a=b", "!", "{", "}", "[[", "~", "#", "", "2", "x y"}
	words = append(words, reservedWords...)
	for _, shell := range shells(t) {
		if filepath.Base(shell) == "fish" {
			continue // it takes a quoted keyword for a keyword
		}
		for _, word := range words {
			line, err := Quote(word, "stepmux-no-such-argument")
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), shell, "-c", line)
			cmd.Env = []string{"PATH=/nonexistent"}
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "%s -c %q: %s", shell, line, out)
			if word == "[[" && strings.HasSuffix(string(out), "missing ]]\n") {
				continue // BusyBox has a command of this name, as others have one of the name [
			}
			if strings.HasSuffix(string(out), ": Command not found.\n") {
				continue // csh and tcsh end with 1
			}
			require.Contains(
				t, []int{126, 127}, exit.ExitCode(), "%s -c %q was not looked up as a command: %s", shell, line, out,
			)
		}
	}
}

func TestQuoteLeavesAnOrdinaryCommandReadable(t *testing.T) {
	line, err := Quote("stepmux", "steps", "serve", "--socket", "/tmp/gitlab-runner-steps/42/step-runner.sock")
	require.NoError(t, err)
	require.Equal(t, "stepmux steps serve --socket /tmp/gitlab-runner-steps/42/step-runner.sock", line)
}

// Symptom: where the login shell is fish, a command in a command (ssh -t) was split in other places than by a POSIX
// shell.
func TestQuoteAddsNoBackslash(t *testing.T) {
	line, err := Quote("sh", "-c", "echo 'a b'")
	require.NoError(t, err)
	require.Equal(t, `sh -c 'echo '"'"'a b'"'"''`, line)
}

// The manager's lines for a terminal, and those with the tools of the VM's stepmux, begin with exec.
func TestALineThatEveryLoginShellExecutesInItsPlace(t *testing.T) {
	for _, shell := range shells(t) {
		line, err := LoginLine("sh", "-c", "printf '%s %s'\nprintf '!%s' \"$1\"\n", "sh", "a\nb")
		require.NoError(t, err)
		out, err := exec.CommandContext(t.Context(), shell, "-c", "exec "+line).CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, out)
		require.Equal(t, " !a\nb", string(out), shell)
	}
}

// A builtin, such as the export of a script that a POSIX sh runs, keeps its newline: no other shell runs it.
func TestQuoteKeepsNewlinesForPOSIXShells(t *testing.T) {
	line, err := Quote("export", "A=a\nb!\\")
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", line+`; printf %s "$A"`).Output()
	require.NoError(t, err)
	require.Equal(t, "a\nb!\\", string(out))
}

func TestQuoteRefusesNULBytesAndNoArguments(t *testing.T) {
	_, err := Quote()
	require.ErrorContains(t, err, "no arguments")
	_, err = Quote("a", "b\x00"+strings.Repeat("c", 1<<20))
	require.ErrorContains(t, err, "argument 1")
	require.ErrorContains(t, err, "NUL")
	require.Less(t, len(err.Error()), 512)
}

func FuzzQuoteAgainstARealShell(f *testing.F) {
	all := shells(f)
	for _, arg := range awkward {
		f.Add(arg, "x")
		f.Add("y", arg)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.Contains(a+b, "\x00") {
			_, err := Quote(a, b)
			require.Error(t, err)
			return
		}
		if len(a)+len(b) > 16<<10 {
			t.Skip("one argument is at most 128 KiB, and the whole line is one")
		}
		for _, shell := range all {
			require.Equal(t, []string{a, b}, split(t, shell, []string{a, b}), shell)
		}
	})
}
