package isolate_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/isolate"
)

// A build could make the files that were missing. The next login of the user then ran them, outside the isolation.
func TestPrepareMakesWhatALoginShellStartsFrom(t *testing.T) {
	t.Parallel()
	for shell, files := range map[string][]string{
		"": {
			".pam_environment", ".local/share/systemd", ".bash_aliases", ".bash_logout", ".bashrc.d", ".i18n", ".alias",
			".config/bash_completion", ".config/locale.conf", ".forward", ".inputrc", ".local/share/bash-completion",
		},
		"/bin/bash": {".pam_environment", ".local/share/systemd", ".bash_completion", ".bash_aliases", ".bash_logout"},
		"/bin/zsh":  {".pam_environment", ".zlogout", ".zcompdump", ".config/containers/systemd"},
		"/bin/fish": {".config/fish", ".local/share/fish", ".config/user-tmpfiles.d", ".local/share/user-tmpfiles.d"},
		"/bin/ksh":  {".pam_environment", ".profile", ".kshrc"},
		"/bin/mksh": {".forward", ".profile", ".mkshrc"},
		"/bin/csh":  {".cshrc", ".login", ".logout"},
		"/bin/tcsh": {".cshrc", ".tcshrc", ".login", ".logout"},
		"/bin/ash":  {".profile"},
	} {
		t.Run(filepath.Base(shell), func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			require.NoError(t, isolate.Prepare(home, shell))
			for _, name := range files {
				_, err := filepath.EvalSymlinks(filepath.Join(home, name))
				require.NoError(t, err)
			}
		})
	}
}
