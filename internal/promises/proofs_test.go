//go:build proofs

package promises

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mechanism is a piece of code that keeps a promise: a row of the table "Without the mechanism" of docs/reliability.md,
// which has its file, and the test that fails without it.
type mechanism struct {
	promise string
	file    string
	code    string // stands in file exactly once
	without string // replaces code when the mechanism is taken out
}

// mechanisms has the code of each mechanism, by the first test of its row.
var mechanisms = map[string]mechanism{
	"mux.TestLossAfterTheExitStatusIsStillALoss": {
		code:    "ch.lost = c.ended(op) != nil",
		without: "ch.lost = false",
	},
	"connector/script.TestWhatRunsTheScriptIsKilled": {
		code:    "case p.native && code >= 0:",
		without: "case code >= 0:",
	},
	"instance.TestBridgeThatBreaksIsOpenedAnewAndTheLogGoesOn": {
		code:    "stdout += int64(len(msg.GetStream()))",
		without: "_ = stdout",
	},
	"remote/job/joblog.TestLimitKeepsSoMuchSaysSoOnceAndCountsTheRest": {
		code:    "p[:room], l.marker()",
		without: "p[:room], nil",
	},
	"mux.TestKeepaliveClosesADeadPeerWithinItsBound": {
		code:    `c.fail("keepalive", err)`,
		without: "_ = err",
	},
	"connector.TestCloseGivesUpOnAServeThatDoesNotEnd": {
		code:    "ctx, cancel := context.WithTimeout(ctx, c.cfg.StopTimeout)",
		without: "ctx, cancel := context.WithCancel(ctx)",
	},
	"pool.TestRetireDrainsTheKeysConnection": {
		code:    "c.e.current = nil // c was current, or c has just arrived and there is no current\n\tif c.leases == 0 {",
		without: "c.e.current = nil // c was current, or c has just arrived and there is no current\n\tif c.leases >= 0 {",
	},
	"pool.TestAcquireJoinsTheDialUnderWay": {
		code:    "if e.dial == nil {",
		without: "if e.dial == nil || true {",
	},
	"mux.TestDialRefusesAnUnexpectedHostKey": {
		code:    `return errors.New(strings.Join(reasons, "; "))`,
		without: "return nil",
	},
	"mux/login.TestServerThatShowsAnotherKeyLaterIsLeft": {
		code:    "if sameKey(v.key, key) {",
		without: "if true || sameKey(v.key, key) {",
	},
	"remote.TestServeEndsItsJobsInEveryWayItCanEnd": {
		code:    "cancel(ErrLeash)",
		without: "_ = cancel",
	},
	"remote/proc.TestServerThatIsKilledLeavesNothing": {
		code:    "left := k.KillAll()",
		without: "left := 0",
	},
	"remote/proc.TestCloseLeavesNoProcess": {
		code:    "unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0),",
		without: "",
	},
	"remote/proc.TestCommandDiesWithItsInitWhenTheServerCannotHelp": {
		code:    "Pdeathsig: syscall.SIGKILL",
		without: "Pdeathsig: 0",
	},
	"mux.TestReserveIsAllOrNoneSoThatPairsNeverDeadlock": {
		code:    "others := c.sessions.refuse() - len(opened)\n\t\tcloseSessions(opened)",
		without: "others := c.sessions.refuse() - len(opened)",
	},
	"instance.TestAJobCannotTouchTheServerOfAnotherBuild": {
		code:    "if !v.Admits(call.Header.Get(wire.AuthorizationKey)) {",
		without: "if false && !v.Admits(call.Header.Get(wire.AuthorizationKey)) {",
	},
	"remote.TestProxyRefusesASocketOfAnotherUser": {
		code:    "int64(cred.Uid) != int64(us) && cred.Uid != 0",
		without: "false && int64(cred.Uid) != int64(us) && cred.Uid != 0",
	},
	"remote/step/engine.TestSecretsAreMaskedEverywhere": {
		code:    "return r.cfg.Secrets.NewWriter(w)",
		without: "return (&mask.Set{}).NewWriter(w)",
	},
	"remote/step/fetch.TestComponentThatWasChangedIsFetchedAgain": {
		code:    "if err := compare(ctx, dir, nodes); err != nil {",
		without: "if err := compare(ctx, dir, nodes); err != nil && false {",
	},
	"remote/step/fetch.TestEntriesThatMeanHarmAreRefused": {
		code:    `case part == "..":`,
		without: `case part == ".." && false:`,
	},
	"remote.TestServeThatWasTouchedByItsBuildIsNotGivenAnotherOne": {
		code:    "return now.differs(&r.fresh)",
		without: "_ = now\n\treturn nil",
	},
	"remote/proc.TestIsolatedCommandsHaveASessionKeyringOfTheirOwn": {
		code:    "unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)",
		without: "unix.KEYCTL_GET_KEYRING_ID, uintptr(1<<32-3), 0)",
	},
	"connector/buildlog.TestALogThatTakesNothingFailsAfterItsTime": {
		code:    "len(l.queue)+n > room && len(l.queue) > 0 {",
		without: "false {",
	},
}

// proven returns the mechanisms with all that the table says of them.
func proven(t *testing.T) map[string]mechanism {
	t.Helper()
	all := map[string]mechanism{}
	for _, r := range rows(t) {
		if r.page != "reliability" || r.section != "mechanisms" {
			continue
		}
		m, ok := mechanisms[r.tests[0]]
		require.True(t, ok, "no code is taken out for %s", r)
		m.promise, m.file, ok = strings.Cut(r.cells, " | ")
		require.True(t, ok, "%s names no file", r)
		m.file = strings.Trim(m.file, "`")
		all[r.tests[0]] = m
	}
	require.Len(t, all, len(mechanisms), "a mechanism without a row")
	return all
}

// A test must fail when the mechanism that it tests is taken out.
func TestWithoutItsMechanismAPromisesTestFails(t *testing.T) {
	for test, m := range proven(t) {
		t.Run(strings.ReplaceAll(test, "/", ":"), func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(root, m.file))
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(source), m.code), "%s: %q", m.file, m.code)
			out, failed := runTest(t, test, "")
			require.False(t, failed, "the test fails with everything in its place:\n%s", out)
			out, failed = runTest(t, test, m.overlay(t))
			require.True(t, failed, "%s\nthe test passes without %q of %s:\n%s", m.promise, m.code, m.file, out)
			t.Logf("%s: without `%s` it fails: %s", m.promise, m.code, firstFailure(out))
		})
	}
}

// overlay writes an overlay for the go command, in which a file lacks the mechanism, and returns its path.
func (m mechanism) overlay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	original, err := filepath.Abs(filepath.Join(root, m.file))
	require.NoError(t, err)
	source, err := os.ReadFile(original)
	require.NoError(t, err)
	changed := filepath.Join(dir, filepath.Base(m.file))
	require.NoError(t, os.WriteFile(changed, []byte(strings.Replace(string(source), m.code, m.without, 1)), 0o600))
	data, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	require.NoError(t, err)
	overlay := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, data, 0o600))
	return overlay
}

// firstFailure returns the first line of a test's output that reports a failure.
func firstFailure(out string) string {
	for line := range strings.Lines(out) {
		for _, mark := range []string{"Error:", "panic:", "_test.go:"} {
			if strings.Contains(line, mark) {
				return strings.Join(strings.Fields(line), " ")
			}
		}
	}
	return "without a word"
}

// runTest runs a test and the programs it builds, with an overlay unless that is empty. It reports whether the test
// failed.
func runTest(t *testing.T, name, overlay string) (out string, failed bool) {
	t.Helper()
	pkg, test, _ := strings.Cut(name, ".")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	argv := []string{"go", "test", "-vet=off", "-count=1", "-timeout=2m", "-run", "^" + test + "$", "./" + pkg}
	if unshare, err := exec.LookPath("unshare"); err == nil && os.Geteuid() == 0 {
		// Without the mechanism, processes may stay. They end with their namespace.
		argv = append([]string{unshare, "--pid", "--fork", "--kill-child", "--mount-proc"}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = root
	if overlay != "" {
		cmd.Env = append(os.Environ(), fmt.Sprintf("GOFLAGS=%s -overlay=%s", os.Getenv("GOFLAGS"), overlay))
	}
	cmd.WaitDelay = 10 * time.Second
	data, err := cmd.CombinedOutput()
	out = string(data)
	require.NotContains(t, out, "[build failed]")
	require.NotContains(t, out, "no tests to run")
	require.NotContains(t, out, "--- SKIP")
	return out, err != nil
}
