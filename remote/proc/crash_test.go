package proc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/racefree"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

// Symptom: an init that got no thread or no memory was "the init process ended at its start".
func TestAnInitThatCannotStartSaysWhyInOneSentence(t *testing.T) {
	racefree.Only(t) // the race detector has limits of its own
	self, err := os.Executable()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		limit      string // a command that lowers a limit, and then executes the init
		says, hint string
		level      vmconfig.Level
	}{
		"memory": {"prlimit --as=100000000", "failed to reserve page summary memory", "raise ulimit -v", vmconfig.Off},
		"isolated, memory": {
			"prlimit --as=100000000", "failed to reserve page summary memory", "raise ulimit -v", vmconfig.Processes,
		},
		"threads": {
			"setpriv --reuid=54321 --clear-groups prlimit --nproc=1", // root has no such limit
			"failed to create new OS thread", "raise ulimit -u, or TasksMax", vmconfig.Off,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, word := range strings.Fields(c.limit) {
				if _, err := exec.LookPath(word); err != nil && !strings.HasPrefix(word, "-") {
					t.Skipf("part missing: %v", err)
				}
			}
			if strings.HasPrefix(c.limit, "setpriv") && os.Geteuid() != 0 {
				t.Skip("part missing: root")
			}
			text := "#!/bin/sh\nexec 9<" + self + "\nexec " + c.limit + ` /proc/self/fd/9 "$@"` + "\n"
			program := filepath.Join(t.TempDir(), "init")
			require.NoError(t, os.WriteFile(program, []byte(text), 0o700))
			initProgram = program
			t.Cleanup(func() { initProgram = "/proc/self/exe" })
			if c.level != vmconfig.Off {
				if _, err := isolate.Choose(t.Context()); err != nil {
					t.Skipf("part missing: isolation: %v", err)
				}
			}
			in := &Init{Room: isolate.Spec{Level: c.level, Dir: t.TempDir()}}
			t.Cleanup(func() { in.Close() })
			_, err := in.Start(t.Context(), shell("true"))
			require.ErrorContains(t, err, "the init process could not start: ")
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, c.hint)
			require.NotContains(t, err.Error(), "runtime stack")
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "isolation", "it is not to blame")
			require.True(t, MachineFailed(err))
			t.Log(err)
		})
	}
}
