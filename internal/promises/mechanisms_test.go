package promises

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mechanism is a piece of code that keeps a promise, and the test that fails without it.
type mechanism struct {
	promise string // the text in docs/reliability.md
	file    string
	code    string // stands in file exactly once
	without string // replaces code when the mechanism is taken out
	test    string // package.TestName
}

var mechanisms = []mechanism{
	{
		promise: "No false success: an exit status that a lost connection cut off from its output is a loss",
		file:    "mux/sshchannel.go",
		code:    "ch.lost = c.ended(op) != nil",
		without: "ch.lost = false",
		test:    "mux.TestLossAfterTheExitStatusIsStillALoss",
	},
	{
		promise: "No false success: what ends without telling its end is the machine's failure",
		file:    "connector/script/execution.go",
		code:    "case p.native && code >= 0:",
		without: "case code >= 0:",
		test:    "connector/script.TestWhatRunsTheScriptIsKilled",
	},
	{
		promise: "No silent loss: output goes on where it was cut off",
		file:    "connector/execution.go",
		code:    "stdout += int64(len(msg.GetStream()))",
		without: "_ = stdout",
		test:    "instance.TestBridgeThatBreaksIsOpenedAnewAndTheLogGoesOn",
	},
	{
		promise: "No silent loss: an output beyond the limit ends with a line that says so",
		file:    "remote/job/joblog/write.go",
		code:    "p[:room], l.marker()",
		without: "p[:room], nil",
		test:    "remote/job/joblog.TestLimitKeepsSoMuchSaysSoOnceAndCountsTheRest",
	},
	{
		promise: "A dead peer is found within its bound",
		file:    "mux/keepalive.go",
		code:    `c.fail("keepalive", err)`,
		without: "_ = err",
		test:    "mux.TestKeepaliveClosesADeadPeerWithinItsBound",
	},
	{
		promise: "Close returns within its bound",
		file:    "connector/connector.go",
		code:    "ctx, cancel := context.WithTimeout(ctx, c.cfg.StopTimeout)",
		without: "ctx, cancel := context.WithCancel(ctx)",
		test:    "connector.TestCloseGivesUpOnAServeThatDoesNotEnd",
	},
	{
		promise: "Recycling never ends a build",
		file:    "pool/pooled.go",
		code:    "c.e.current = nil // c was current, or c has just arrived and there is no current\n\tif c.leases == 0 {",
		without: "c.e.current = nil // c was current, or c has just arrived and there is no current\n\tif c.leases >= 0 {",
		test:    "pool.TestRetireDrainsTheKeysConnection",
	},
	{
		promise: "One connection for each VM",
		file:    "pool/dial.go",
		code:    "if e.dial == nil {",
		without: "if e.dial == nil || true {",
		test:    "pool.TestAcquireJoinsTheDialUnderWay",
	},
	{
		promise: "No unverified host key",
		file:    "mux/login/hostkey.go",
		code:    `return errors.New(strings.Join(reasons, "; "))`,
		without: "return nil",
		test:    "mux.TestDialRefusesAnUnexpectedHostKey",
	},
	{
		promise: "No host key changes while a connection lives",
		file:    "mux/login/hostkey.go",
		code:    "if sameKey(v.key, key) {",
		without: "if true || sameKey(v.key, key) {",
		test:    "mux/login.TestServerThatShowsAnotherKeyLaterIsLeft",
	},
	{
		promise: "Nothing is left of a build whose manager is gone",
		file:    "remote/pipe/leash.go",
		code:    "cancel(ErrLeash)",
		without: "_ = cancel",
		test:    "remote.TestServeEndsItsJobsInEveryWayItCanEnd",
	},
	{
		promise: "Nothing is left of a build whose step runner was killed",
		file:    "remote/proc/initmain.go",
		code:    "left := k.KillAll()",
		without: "left := 0",
		test:    "remote/proc.TestServerThatIsKilledLeavesNothing",
	},
	{
		promise: "Nothing is left of a job that moved its processes to other sessions",
		file:    "remote/proc/initmain.go",
		code:    "unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0),",
		without: "",
		test:    "remote/proc.TestCloseLeavesNoProcess",
	},
	{
		promise: "A process goes with the init that holds it",
		file:    "remote/proc/initmain.go",
		code:    "Pdeathsig: syscall.SIGKILL",
		without: "Pdeathsig: 0",
		test:    "remote/proc.TestCommandDiesWithItsInitWhenTheServerCannotHelp",
	},
	{
		promise: "Builds that take several sessions never wait for each other",
		file:    "mux/reserve.go",
		code:    "others := c.sessions.refuse() - len(opened)\n\t\tcloseSessions(opened)",
		without: "others := c.sessions.refuse() - len(opened)",
		test:    "mux.TestReserveIsAllOrNoneSoThatPairsNeverDeadlock",
	},
	{
		promise: "No build reaches the step runner of another",
		file:    "remote/job/service/auth.go",
		code:    "if !v.Admits(call.Header.Get(wire.AuthorizationKey)) {",
		without: "if false && !v.Admits(call.Header.Get(wire.AuthorizationKey)) {",
		test:    "instance.TestAJobCannotTouchTheServerOfAnotherBuild",
	},
	{
		promise: "No other user reaches a step runner",
		file:    "remote/socketdir/peer.go",
		code:    "int64(cred.Uid) != int64(us) && cred.Uid != 0",
		without: "false && int64(cred.Uid) != int64(us) && cred.Uid != 0",
		test:    "remote.TestProxyRefusesASocketOfAnotherUser",
	},
	{
		promise: "No secret is in a log",
		file:    "remote/step/engine/mask.go",
		code:    "return r.cfg.Secrets.NewWriter(w)",
		without: "return (&mask.Set{}).NewWriter(w)",
		test:    "remote/step/engine.TestSecretsAreMaskedEverywhere",
	},
	{
		promise: "No step that was changed is run",
		file:    "remote/step/fetch/verify.go",
		code:    "if err := compare(ctx, dir, nodes); err != nil {",
		without: "if err := compare(ctx, dir, nodes); err != nil && false {",
		test:    "remote/step/fetch.TestComponentThatWasChangedIsFetchedAgain",
	},
	{
		promise: "No archive writes outside its place",
		file:    "remote/step/fetch/tree.go",
		code:    `case part == "..":`,
		without: `case part == ".." && false:`,
		test:    "remote/step/fetch.TestEntriesThatMeanHarmAreRefused",
	},
	{
		promise: "The memory that a build's log takes is bounded",
		file:    "connector/buildlog/log.go",
		code:    "len(l.queue)+n > room && len(l.queue) > 0 {",
		without: "false {",
		test:    "connector/buildlog.TestALogThatTakesNothingFailsAfterItsTime",
	},
}

func TestMechanismsAreWhereTheirProofsTakeThemOut(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "reliability.md"))
	require.NoError(t, err)
	for _, m := range mechanisms {
		source, err := os.ReadFile(filepath.Join(root, m.file))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(source), m.code), "%s: %q", m.file, m.code)
		pkg, test, _ := strings.Cut(m.test, ".")
		require.True(t, testsOf(t, pkg)[test], "%s does not exist", m.test)
		require.Contains(t, string(page), fmt.Sprintf("| %s | `%s` | `%s` |", m.promise, m.file, m.test))
	}
}
