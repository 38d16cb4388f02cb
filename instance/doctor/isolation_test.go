package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

func TestJudgeIsolation(t *testing.T) {
	for name, test := range map[string]struct {
		asked          vmconfig.Level
		told           isolationReport
		status         Status
		detail, change string
	}{
		"isolated":        {vmconfig.Auto, isolationReport{Level: "processes", Readable: true}, OK, "processes", ""},
		"by name":         {"private", isolationReport{Level: "private"}, OK, "private", ""},
		"off, configured": {"off", isolationReport{Level: "off"}, OK, "off, as configured", ""},
		"off, configured, with a program that can be read": {
			"off", isolationReport{Level: "off", Readable: true}, OK, "off, as configured", hideProgram,
		},
		"off, by the VM's variable": {
			vmconfig.Auto, isolationReport{Level: "off"}, OK, "off, as the VM's variable STEPMUX_ISOLATION says", "",
		},
		"none to be had": {
			vmconfig.Auto,
			isolationReport{Level: "off", Reason: "closed", Remedy: "sysctl x=1", Readable: true},
			Warn, "off: closed", "sysctl x=1; and " + hideProgram,
		},
		"none by name": {
			"private",
			isolationReport{Reason: "isolation private is not available", Remedy: "sysctl x=1"},
			Fail, "isolation private is not available", "sysctl x=1",
		},
		"no level":      {vmconfig.Auto, isolationReport{}, Fail, "the VM names no level", ""},
		"another level": {"private", isolationReport{Level: "off"}, Fail, "the VM has isolation off, not private", ""},
		"no such level": {
			vmconfig.Auto, isolationReport{Level: "x\n"}, Fail, `isolation "x\n": use auto, off, processes or private`, "",
		},
		"hostile texts": {
			vmconfig.Auto,
			isolationReport{Level: "off", Reason: "\x1b" + strings.Repeat("x", 1<<20), Remedy: "a\nb"},
			Warn, "off: " + strings.Repeat("x", maxReason) + "...", "a b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := test.told.judge(test.asked)
			require.Equal(t, test.status, f.Status, f.Detail)
			require.Equal(t, test.detail, f.Detail)
			require.Equal(t, test.change, f.Change)
			require.Equal(t, f.Status == Warn, f.Gain != "")
		})
	}
}

func TestLimitsAreJudgedByWhatIsAsked(t *testing.T) {
	no := isolationReport{Limits: new(false), LimitsReason: "the cgroup is not\ndelegated", LimitsRemedy: "delegate it"}
	stepmux := program.Program{Kind: program.Stepmux}
	for name, test := range map[string]struct {
		limits         vmconfig.Limits
		told           isolationReport
		status         Status
		detail, change string
	}{
		"available":        {vmconfig.Limits{}, isolationReport{Limits: new(true)}, OK, "available for memory", ""},
		"asked, available": {vmconfig.Limits{PIDs: 64}, isolationReport{Limits: new(true)}, OK, "as configured", ""},
		"not available":    {vmconfig.Limits{}, no, Warn, "not available: the cgroup is not delegated", "delegate it"},
		"asked, not available": {
			vmconfig.Limits{PIDs: 64}, no, Fail, "not available for the builds: the cgroup", "delegate it",
		},
		"an older one": {
			vmconfig.Limits{}, isolationReport{}, Warn, "is older than this program", install(instance.Instance{}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := &examination{in: instance.Instance{Options: vmconfig.Options{Limits: test.limits}}}
			got := e.judgeLimits(stepmux, test.told, nil)
			require.Equal(t, test.status, got.Status)
			require.Contains(t, got.Detail, test.detail)
			require.Equal(t, test.change, got.Change)
			require.Equal(t, test.status == Warn, got.Gain != "")
		})
	}
}

// ownLibVar makes the test binary run TestAProgramForABuildUserIsPutWhereThatUserCanStartIt with a /var/lib of its own.
const ownLibVar = "STEPMUX_TEST_OWN_LIB"

// Symptom: doctor put the program into the cache of root, and found that builds would fail.
func TestAProgramForABuildUserIsPutWhereThatUserCanStartIt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("part missing: only root can run builds as another user")
	}
	if os.Getenv(ownLibVar) == "" {
		sshtest.RequirePart(t, "util-linux", "/usr/bin/unshare")
		cmd := exec.CommandContext(sshtest.Within(t), "unshare", "-m", "sh", "-ec",
			`mount -t tmpfs tmpfs /var/lib; exec "$@"`, "sh", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), ownLibVar+"=1", runnertest.DirVar+"="+filepath.Dir(runnertest.Command(t)[0]))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	in := instanceOf(t, sshtest.OpenSSH(t))
	require.NoError(t, os.Chmod(in.TempDir, 0o777|os.ModeSticky))
	in.Runner, in.BuildUser, in.Isolation = []string{"no-such-runner"}, "2100050-2100050", "off"
	end, err := program.LoadBinary(runnertest.Command(t)[0])
	require.NoError(t, err)
	r := Examine(sshtest.Within(t), provider(t, in), in, Config{
		Version: "devel", Bootstrap: []*program.Binary{end}, Timeout: sshtest.Bound,
	})
	require.True(t, r.Usable, "%+v", r)
	requireFinding(t, r, checkBinary, OK, "^/var/lib/stepmux-0/")
}
