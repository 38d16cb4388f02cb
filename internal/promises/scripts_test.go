package promises

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// verbose is what go test -v says of a package with a test that fails, others that skip, and one that passes.
const verbose = `=== RUN   TestFails
=== PAUSE TestFails
=== RUN   TestPasses
    a_test.go:4: of a test that passes
--- PASS: TestPasses (0.00s)
=== RUN   TestOfAPart
    a_test.go:5: part missing: openssh-server: stat /usr/sbin/sshd: no such file
--- SKIP: TestOfAPart (0.00s)
=== RUN   TestOfSubtests
=== RUN   TestOfSubtests/mount
    a_test.go:6: part missing: only root can mount
=== RUN   TestOfSubtests/cases
    a_test.go:7: part missing: STEPMUX_CASES, the folder of the conformance cases
--- PASS: TestOfSubtests (0.00s)
    --- SKIP: TestOfSubtests/mount (0.00s)
    --- SKIP: TestOfSubtests/cases (0.00s)
=== RUN   TestOfUsers
    a_test.go:8: root can read all files
--- SKIP: TestOfUsers (0.00s)
=== CONT  TestFails
no end of a line    a_test.go:9: the reason
--- FAIL: TestFails (0.00s)
FAIL
FAIL	example.com/a	0.016s
=== RUN   TestPanics
panic: ouch
FAIL	example.com/b	0.010s
# example.com/c
c/c.go:2:23: undefined: x
FAIL	example.com/c [build failed]
=== RUN   TestPassesToo
--- PASS: TestPassesToo (0.00s)
PASS
ok  	example.com/d	0.003s
FAIL
`

// make test must not hide a failure behind its list of skipped tests.
func TestMakeTestShowsFailuresAndCountsSkippedTestsByPart(t *testing.T) {
	bin := t.TempDir()
	command := "#!/bin/sh\ncat <<'E'\n" + verbose + "E\nexit 3\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "go"), []byte(command), 0o700)) // in place of the go command
	cmd := exec.Command(filepath.Join(root, ".ci", "tests"), "-count=1")
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "PACKAGES=./a ./b ./c ./d")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	require.Equal(t, 3, exit.ExitCode(), "%s", out)
	require.Equal(t, `--- FAIL: TestFails (0.00s)
no end of a line    a_test.go:9: the reason
FAIL
FAIL	example.com/a	0.016s
panic: ouch
FAIL	example.com/b	0.010s
# example.com/c
c/c.go:2:23: undefined: x
FAIL	example.com/c [build failed]
ok  	example.com/d	0.003s
FAIL

skipped:
not for this user or system: 1 test
part missing: conformance cases: 1 test (set STEPMUX_CASES to their folder)
part missing: openssh-server: 1 test (on Debian: apt-get install openssh-server)
part missing: root: 1 test (run them as root)
tests failed: see above
`, string(out))
}

// .ci/run runs those tests again as root, by their names.
func TestSkippedTestsAreListedWithTheirReasons(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(log, []byte(verbose), 0o600))
	out, err := exec.Command(filepath.Join(root, ".ci", "skipped"), log).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, `example.com/a TestOfAPart part missing: openssh-server: stat /usr/sbin/sshd: no such file
example.com/a TestOfSubtests/mount part missing: only root can mount
example.com/a TestOfSubtests/cases part missing: STEPMUX_CASES, the folder of the conformance cases
example.com/a TestOfUsers root can read all files
`, string(out))
}
