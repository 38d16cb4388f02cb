package sshtest

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// writeConfig writes a minimal configuration.
func writeConfig(t *testing.T, lines string) string {
	t.Helper()
	RequirePart(t, "openssh-server", sshdPath)
	hostKey, _ := writeKey(t, "host")
	path := filepath.Join(t.TempDir(), "sshd_config")
	require.NoError(
		t,
		os.WriteFile(path, []byte("HostKey "+hostKey+"\nListenAddress 127.0.0.1\nPidFile none\n"+lines+"\n"), 0o600),
	)
	return path
}

func TestTakenPortIsNoError(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	d, err := startDaemon(writeConfig(t, "Port "+strconv.Itoa(port)))
	require.NoError(t, err)
	require.Nil(t, d)
}

func TestDaemonThatRefusesItsConfigIsReportedWithItsLog(t *testing.T) {
	_, err := startDaemon(writeConfig(t, "NoSuchOption yes"))
	require.ErrorContains(t, err, "Bad configuration option: NoSuchOption")
}

// result is a test that records its result.
type result struct {
	testing.TB
	skipped, failed bool
}

func (v *result) Helper()      {}
func (v *result) Skip(...any)  { v.skipped = true }
func (v *result) Fatal(...any) { v.failed = true }

func TestMissingPartSkipsUnlessPartsAreRequired(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	t.Setenv(requireParts, "")
	v := &result{TB: t}
	RequirePart(v, "a part", missing)
	require.Equal(t, result{TB: t, skipped: true}, *v)

	t.Setenv(requireParts, "1")
	v = &result{TB: t}
	RequirePart(v, "a part", missing)
	require.Equal(t, result{TB: t, failed: true}, *v, "and only once")
}

func TestPresentPartChangesNothing(t *testing.T) {
	v := &result{TB: t}
	RequirePart(v, "this", t.TempDir())
	require.Equal(t, result{TB: t}, *v)
}
