package sshtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// LoginShells are the shells that a login may have. They differ in how they read a command line.
var LoginShells = []string{"dash", "bash", "ksh", "zsh", "fish", "tcsh", "busybox"}

// Awkward is a name for directories and files that a careless command line takes apart in some shell.
const Awkward = "a 'b'!c\\$HOME`id`\""

// WithLoginShell starts an sshd that runs commands as it does for a user with this login shell. lines are as for
// OpenSSH. The test is skipped, or fails, without the shell.
func WithLoginShell(t testing.TB, shell string, lines ...string) *Server {
	t.Helper()
	dir := t.TempDir()
	path, err := exec.LookPath(shell)
	if err != nil {
		RequirePart(t, shell, "/usr/bin/"+shell)
	}
	if shell == "busybox" { // it is a shell by the name it is called with
		sh := filepath.Join(dir, "sh")
		require.NoError(t, os.Symlink(path, sh))
		path = sh
	}
	home, login := filepath.Join(dir, Awkward), filepath.Join(dir, "login")
	require.NoError(t, os.Mkdir(home, 0o700))
	text := "#!/bin/sh\ncd \"${0%/*}/\"a* && export HOME=\"$PWD\" SHELL=" + path +
		" && exec $SHELL -c \"$SSH_ORIGINAL_COMMAND\"\n"
	require.NoError(t, os.WriteFile(login, []byte(text), 0o700))
	return OpenSSH(t, append([]string{"ForceCommand " + login}, lines...)...)
}

// StartFile returns the ForceCommand of a login whose shell is bash and whose .bashrc has this line.
func StartFile(t testing.TB, line string) string {
	t.Helper()
	RequirePart(t, "bash", "/bin/bash")
	home := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(home, ".bashrc"), []byte(line+"\n"), 0o600))
	return `HOME=` + home + ` SHLVL=0 exec bash -c "$SSH_ORIGINAL_COMMAND"`
}
