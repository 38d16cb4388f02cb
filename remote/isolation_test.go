package remote

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/cgroup"
	"github.com/stepmux/stepmux/remote/proc"
)

// told returns the answer of TellIsolation, which leaves nothing in the directory for temporary files.
func told(t *testing.T, level vmconfig.Level) (r isolationReport) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	tmp := t.TempDir()
	var out bytes.Buffer
	require.NoError(t, TellIsolation(t.Context(), &out, vmconfig.Options{Isolation: level, TempDir: tmp}))
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	require.Equal(t, os.Geteuid() != 0, r.Readable, "the test's program is readable for everybody")
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
	return r
}

// Symptom: the init did not start in a directory without a base of sockets above it.
func TestTellIsolationReportsTheLevelThatWasTried(t *testing.T) {
	require.Equal(t, vmconfig.Off, told(t, vmconfig.Off).Level)
	for _, level := range []vmconfig.Level{vmconfig.Processes, vmconfig.Private} {
		r := told(t, level)
		if r.Level == "" {
			t.Skip("part missing: namespaces: ", r.Reason)
		}
		require.Equal(t, level, r.Level)
		require.Empty(t, r.Reason)
	}
}

func TestTellIsolationOfAnUnavailableLevelReportsTheReason(t *testing.T) {
	t.Setenv("HOME", "/missing") // a private build needs one, and this is not below a directory that is hidden
	var out bytes.Buffer
	o := vmconfig.Options{Isolation: vmconfig.Private, TempDir: t.TempDir()}
	require.NoError(t, TellIsolation(t.Context(), &out, o))
	var r isolationReport
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	require.Empty(t, r.Level)
	require.Contains(t, r.Reason, "isolation private is not available")
	require.Contains(t, r.Reason, "missing")
}

func TestTellIsolationReportsWhetherLimitsAreAvailable(t *testing.T) {
	r := told(t, vmconfig.Off)
	err := cgroup.Check(vmconfig.Limits{Memory: 1, PIDs: 1, CPUs: 1})
	require.Equal(t, err == nil, r.Limits)
	if err != nil {
		require.ErrorContains(t, err, r.LimitsReason)
		require.ErrorContains(t, err, r.LimitsRemedy)
		require.NotEmpty(t, r.LimitsReason)
	}
}

func TestServeFailsAtOnceWithUnavailableLimits(t *testing.T) {
	limits := vmconfig.Limits{Memory: 512 << 20}
	err := cgroup.Check(limits)
	if err == nil {
		t.Skip("this machine gives limits")
	}
	socket := filepath.Join(t.TempDir(), "gitlab-runner-steps", "b1", "step-runner.sock")
	refused := Serve(t.Context(), Stdio{}, ServeConfig{Socket: socket, Options: vmconfig.Options{Limits: limits}})
	require.ErrorContains(t, refused, err.Error())
	require.NoDirExists(t, filepath.Dir(socket))

	script := ScriptConfig{Shell: []string{"sh"}, Options: vmconfig.Options{Isolation: vmconfig.Off, Limits: limits}}
	init, remove, err := script.init(t.Context())
	require.NoError(t, err)
	_, err = init.Start(t.Context(), proc.Command{Argv: []string{"true"}, Dir: "/"})
	require.ErrorContains(t, err, refused.Error()[len("serve: "):])
	require.NoError(t, init.Close())
	require.NoError(t, remove(t.Context()))
}

func TestTellIsolationNeedsItsDirectory(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	err := TellIsolation(t.Context(), &bytes.Buffer{}, vmconfig.Options{TempDir: missing})
	require.ErrorContains(t, err, "isolation: make a directory")
}
