package proc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

// Each init looks at the login files anew: what an earlier build or the user has changed since is protected as it is.
func TestLoginFilesAreReadOnlyAsTheyAreWhenABuildBegins(t *testing.T) {
	home := t.TempDir()
	in := func(name string) string { return filepath.Join(home, name) }
	require.NoError(t, os.MkdirAll(in("dotfiles/environment.d"), 0o755))
	require.NoError(t, os.WriteFile(in("dotfiles/profile"), nil, 0o600))
	rounds := []struct {
		name   string
		change func() error
		files  string // that no command may write
	}{
		{"made by stepmux", func() error { return nil }, ".bashrc .profile .inputrc .config/environment.d/evil"},
		{
			"removed", func() error { return os.Remove(in(".bashrc")) },
			".bashrc .profile .config/environment.d/evil .config/locale.conf",
		},
		{
			"created", func() error { return os.WriteFile(in(".zshrc"), nil, 0o600) },
			".zshrc .bashrc .config/environment.d/evil",
		},
		{
			"replaced by a link", func() error {
				require.NoError(t, os.Remove(in(".profile")))
				return os.Symlink("dotfiles/profile", in(".profile"))
			}, ".profile dotfiles/profile .bashrc .local/share/systemd/evil .zshrc",
		},
		{
			"a directory replaced by a link", func() error {
				require.NoError(t, os.Remove(in(".config/environment.d")))
				return os.Symlink(in("dotfiles/environment.d"), in(".config/environment.d"))
			}, ".config/environment.d/evil dotfiles/environment.d/evil .profile .config/systemd/evil .inputrc",
		},
		{
			"replaced by a file", func() error {
				require.NoError(t, os.Remove(in(".profile")))
				return os.WriteFile(in(".profile"), nil, 0o600)
			}, ".profile .bashrc .config/environment.d/evil .cache/stepmux/evil",
		},
	}
	const script = `cd "$1" && echo fine >fine && rm fine || exit 9
		for f in $2; do
			! (echo evil >"$f") 2>/dev/null || { echo "wrote $f"; exit 1; }
			[ ! -e "$f" ] || { rm -f "$f" 2>/dev/null; [ -e "$f" ] || { echo "removed $f"; exit 2; }; }
		done
		for d in .config .local/share .profile; do ! mv "$d" gone 2>/dev/null || { echo "moved $d"; exit 3; }; done`
	for _, round := range rounds {
		require.NoError(t, round.change())
		build := &Init{Room: isolate.Spec{Level: vmconfig.Processes, Dir: t.TempDir(), Home: home, Shell: "/bin/bash"}}
		t.Cleanup(func() { build.Close() })
		build.Prepare()
		if level, why := build.Isolation(t.Context()); level != vmconfig.Processes {
			t.Skip("part missing: namespaces: ", why)
		}
		c := shell(script, home, round.files)
		c.Stdout = os.Stdout
		p, err := build.Start(t.Context(), c)
		require.NoError(t, err)
		require.Zero(t, wait(t, p).Code, round.name)
		require.NoError(t, p.Close())
		require.NoError(t, build.Close())
	}
}
