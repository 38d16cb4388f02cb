package isolate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

func TestAutoAsksOnceWhetherTheUserCanBecomeRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root is not asked")
	}
	defer func(owner int) { sudoOwner = owner }(sudoOwner)
	for _, c := range []struct {
		name, sudo string
		level      vmconfig.Level
	}{
		{"can", "exit 0", vmconfig.Off},
		{"cannot", "exit 1", vmconfig.Processes},
	} {
		t.Run(c.name, func(t *testing.T) {
			bin := t.TempDir()
			asked := filepath.Join(bin, "asked")
			text := "#!/bin/sh\necho asked: \"$@\" >>" + asked + "\n" + c.sudo + "\n"
			require.NoError(t, os.WriteFile(filepath.Join(bin, "sudo"), []byte(text), 0o700))
			t.Setenv("PATH", bin+":/usr/bin:/bin")
			t.Setenv("HOME", t.TempDir())
			sudoOwner = os.Geteuid()
			for range 2 {
				level, why := Choose(t.Context())
				require.Equal(t, c.level, level)
				require.Equal(t, c.level == vmconfig.Off, why != nil)
			}
			questions, err := os.ReadFile(asked)
			require.NoError(t, err)
			require.Equal(t, "asked: -n true\n", string(questions))
		})
	}
}
