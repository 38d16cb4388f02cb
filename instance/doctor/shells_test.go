package doctor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Symptom: the commands of doctor were not understood where the login shell is tcsh, and a missing program was none.
func TestDoctorIsUnderstoodByEveryLoginShell(t *testing.T) {
	for _, shell := range sshtest.LoginShells {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			in := instanceOf(t, sshtest.WithLoginShell(t, shell))
			in.TempDir, in.Linger = filepath.Join(in.TempDir, sshtest.Awkward), time.Minute
			require.NoError(t, os.Mkdir(in.TempDir, 0o700))
			r := examine(t, in)
			require.True(t, r.Usable)
			for _, check := range []string{checkBinary, checkTemp, checkClock, checkRelay, checkStreamlocal} {
				requireFinding(t, r, check, OK, "")
			}
			requireFinding(t, r, checkIsolation, OK, "^off, as the VM's variable")
			in.Runner = []string{"/no/such/program"}
			requireFinding(t, examine(t, in), checkBinary, Fail, "^/no/such/program cannot be executed: .*not found")
		})
	}
}
