package doctor

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

func instanceOf(t testing.TB, s *sshtest.Server) instance.Instance {
	t.Helper()
	return instance.Instance{
		ID:      "vm-1",
		Addr:    s.Addr,
		Runner:  runnertest.Command(t),
		Options: vmconfig.Options{TempDir: sshtest.SocketDir(t)},
		SSH: mux.Config{
			User:     s.User,
			Auth:     []login.Auth{login.Key("of the test", s.Signer)},
			HostKeys: login.PinnedHostKeys(s.HostKey),
		},
	}
}

func examine(t testing.TB, in instance.Instance) Report {
	t.Helper()
	r := Examine(sshtest.Within(t), provider(t, in), in, Config{Version: "devel"})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the report: %+v", r)
		}
	})
	return r
}

func provider(t testing.TB, all ...instance.Instance) *instance.Provider {
	t.Helper()
	group, err := instance.NewGroup(all...)
	require.NoError(t, err)
	p, err := instance.NewProvider(instance.Config{Group: group})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// requireFinding checks one finding.
func requireFinding(t testing.TB, r Report, check string, status Status, detail string) Finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.Check == check {
			require.Equal(t, status, f.Status, "%+v", f)
			require.Regexp(t, detail, f.Detail)
			require.Equal(t, f.Status == Warn, f.Gain != "", "a warning says what a change gains: %+v", f)
			return f
		}
	}
	require.Fail(t, "no finding", "%s: %+v", check, r.Findings)
	return Finding{}
}

func TestAStockServerIsFine(t *testing.T) {
	t.Parallel()
	s := sshtest.OpenSSH(t)
	in := instanceOf(t, s)
	r := examine(t, in)
	require.True(t, r.Usable)
	require.Len(t, r.Findings, 14)
	requireFinding(t, r, checkLogin, OK, `^\S+s \(connect \S+s, key exchange \S+s, login \S+s\)$`)
	requireFinding(t, r, checkHostKey, OK, "^ssh-ed25519 SHA256:.*, accepted by pinned$")
	requireFinding(t, r, checkKeepalive, OK, "^answered in")
	requireFinding(t, r, checkBinary, OK, "version devel$")
	requireFinding(t, r, checkTemp, OK, "^"+in.TempDir+", [0-9.]+[MG]iB free")
	requireFinding(t, r, checkClock, OK, "^within")
	requireFinding(t, r, checkTools, OK, "^git and bash are installed$")
	requireFinding(t, r, checkRelay, OK, "^runs; the first step runner listened after")
	requireFinding(t, r, checkStreamlocal, OK, "^allowed$")
	requireFinding(t, r, checkIsolation, OK, "^off, as the VM's variable STEPMUX_ISOLATION says$")
	requireFinding(t, r, checkSessions, OK, "^10 at once .*the relay takes one")
	left, err := filepath.Glob(filepath.Join(in.TempDir, "gitlab-runner-steps", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
	for _, f := range r.Findings {
		require.False(t, f.Status == OK && strings.Contains(f.Detail, "not available"), "%+v", f)
	}
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(in.TempDir, "stepmux-doctor*"))
		return err == nil && len(files) == 0
	}, sshtest.Bound, time.Millisecond)
}

func TestALoginWithTooFewKeysIsWarned(t *testing.T) {
	for keys, builds := range map[string]int{"": 1000, "190/200": 10, "0/1000000": 100_000, "x/200": 1000, "1": 2} {
		_, is := judgeKeys(keys, builds)
		require.False(t, is, keys)
	}
	f, is := judgeKeys("16/200", 185)
	require.True(t, is)
	require.Equal(t, Warn, f.Status)
	require.Contains(t, f.Detail, "16 of at most 200 keys")
	require.Equal(t, "sysctl kernel.keys.maxkeys=402", f.Change)
}

func TestAHardenedServerIsUsableAndExplained(t *testing.T) {
	t.Parallel()
	r := examine(t, instanceOf(t, sshtest.OpenSSH(t, "AllowStreamLocalForwarding no", "MaxSessions 2", "PermitTTY no")))
	require.True(t, r.Usable)
	requireFinding(t, r, checkRelay, OK, "^runs")
	f := requireFinding(t, r, checkStreamlocal, Warn, "^not allowed; the relay carries")
	require.Contains(t, f.Change, "AllowStreamLocalForwarding yes")
	requireFinding(t, r, checkSessions, OK, "^2 at once")
}

func TestWithoutARelayTheSessionsCount(t *testing.T) {
	t.Parallel()
	in := instanceOf(t, sshtest.OpenSSH(t, "AllowStreamLocalForwarding no", "MaxSessions 2"))
	in.Capacity = 4
	in.Runner = []string{filepath.Join(t.TempDir(), "runner.sh")}
	require.NoError(t, os.WriteFile(in.Runner[0],
		[]byte("#!/bin/sh\n[ \"$2\" != relay ] || exit 1\nexec "+runnertest.Command(t)[0]+" \"$@\"\n"), 0o700))
	r := examine(t, in)
	require.True(t, r.Usable)
	f := requireFinding(t, r, checkRelay, Warn, "^does not run: ")
	require.Contains(t, f.Change, "let stepmux run --bootstrap upload it, or install stepmux-vm as "+in.Runner[0]+
		" and stepmux-fetch beside it")
	requireFinding(t, r, checkStreamlocal, Warn, "refuses streamlocal forwarding")
	f = requireFinding(t, r, checkSessions, Warn, "^2 at once .*a build takes 2, too few for 4 builds")
	require.Contains(t, f.Change, "MaxSessions 10")
}

func TestAStepRunnerWithoutItsProgramForTheNetworkIsFound(t *testing.T) {
	t.Parallel()
	in := instanceOf(t, sshtest.OpenSSH(t))
	alone := filepath.Join(t.TempDir(), "stepmux-vm")
	runnertest.Copy(t, in.Runner[0], alone)
	in.Runner = []string{alone}
	r := examine(t, in)
	require.True(t, r.Usable)
	f := requireFinding(t, r, checkBinary, Warn, "without its program for the network: .*stepmux-fetch: no such file")
	require.Contains(t, f.Change, "stepmux-fetch beside it")
	runnertest.Copy(t, filepath.Join(filepath.Dir(runnertest.Command(t)[0]), "stepmux-fetch"),
		filepath.Join(filepath.Dir(alone), "stepmux-fetch"))
	requireFinding(t, examine(t, in), checkBinary, OK, "version devel$")
}

func TestAServerThatTakesNoKeysIsExplained(t *testing.T) {
	t.Parallel()
	r := examine(t, instanceOf(t, sshtest.OpenSSH(t, "PubkeyAuthentication no", "PasswordAuthentication yes")))
	require.False(t, r.Usable)
	f := requireFinding(t, r, checkLogin, Fail, "^the server takes no keys")
	require.Contains(t, f.Change, "PubkeyAuthentication yes")
	requireFinding(t, r, checkHostKey, OK, "accepted by")
	requireFinding(t, r, checkSessions, Skip, "not logged in")
	require.Len(t, r.Findings, 14)
}

func TestAKeyThatIsNotAuthorizedIsExplained(t *testing.T) {
	t.Parallel()
	in := instanceOf(t, sshtest.OpenSSH(t))
	in.SSH.Auth = []login.Auth{login.Key("of a stranger", sshtest.OpenSSH(t).Signer)}
	r := examine(t, in)
	require.False(t, r.Usable)
	f := requireFinding(t, r, checkLogin, Fail, "^login: ")
	require.Contains(t, f.Change, "authorized_keys")
}

func TestAWrongHostKeyIsExplained(t *testing.T) {
	t.Parallel()
	in := instanceOf(t, sshtest.OpenSSH(t))
	in.SSH.HostKeys = login.PinnedHostKeys(sshtest.OpenSSH(t).HostKey)
	r := examine(t, in)
	require.False(t, r.Usable)
	f := requireFinding(t, r, checkHostKey, Fail, "^host key: the server shows")
	require.Contains(t, f.Change, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
	requireFinding(t, r, checkLogin, Skip, "not accepted")
	require.Len(t, r.Findings, 14)

	// The file on the console was always that of an Ed25519 key.
	raw, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	own, err := ssh.NewSignerFromKey(raw)
	require.NoError(t, err)
	in.Addr = sshtest.InProcess(t, embeddedvm.Config{HostKeys: []ssh.Signer{own}}).Addr
	f = requireFinding(t, examine(t, in), checkHostKey, Fail, "^host key: the server shows ecdsa-")
	require.Contains(t, f.Change, "ssh-keygen -lf /etc/ssh/ssh_host_ecdsa_key.pub")
}

func TestAMachineThatIsNotThereIsExplained(t *testing.T) {
	t.Parallel()
	s := sshtest.OpenSSH(t)
	s.Stop()
	r := examine(t, instanceOf(t, s))
	require.False(t, r.Usable)
	f := requireFinding(t, r, checkLogin, Fail, "^connect: .*refused")
	require.Contains(t, f.Change, "is sshd running")
	require.Len(t, r.Findings, 14)
}

func TestAMachineBehindABastionIsExaminedByWayOfIt(t *testing.T) {
	t.Parallel()
	bastion := sshtest.OpenSSH(t)
	in := instanceOf(t, sshtest.OpenSSH(t))
	in.Jump = &instance.Instance{ID: "bastion", Addr: bastion.Addr, SSH: mux.Config{
		User: bastion.User, Auth: []login.Auth{login.Key("of the test", bastion.Signer)}, HostKeys: login.InsecureHostKeys(),
	}}
	in.SSH.HostKeys = login.InsecureHostKeys()
	r := examine(t, in)
	require.True(t, r.Usable)
	require.Len(t, r.Findings, 14)
	requireFinding(t, r, checkLogin, OK, "")
	f := requireFinding(t, r, checkHostKey, Warn, "accepted by insecure: any key")
	require.Contains(t, f.Change, "known-hosts")
	requireFinding(t, r, checkSessions, OK, "^10 at once")
	require.Equal(t, 1, bastion.TotalConns(), "both connections go through one")

	wrong := in
	jump := *in.Jump
	wrong.Jump, jump.SSH.HostKeys = &jump, login.PinnedHostKeys(sshtest.OpenSSH(t).HostKey)
	f = requireFinding(t, examine(t, wrong), checkLogin, Fail, "^connect: through jump host bastion: .*host key: ")
	require.Contains(t, f.Change, "at the jump host "+bastion.User+"@"+bastion.Addr+": compare the key")

	bastion.Stop()
	r = examine(t, in)
	require.False(t, r.Usable)
	f = requireFinding(t, r, checkLogin, Fail, "^connect: through jump host bastion: .*refused")
	require.Contains(t, f.Change, "at the jump host "+bastion.User+"@"+bastion.Addr+": nothing listens there")
}

func TestAMissingBinaryIsExplained(t *testing.T) {
	t.Parallel()
	in := instanceOf(t, sshtest.OpenSSH(t))
	in.Runner = []string{"/no/such/stepmux"}
	r := examine(t, in)
	require.False(t, r.Usable)
	f := requireFinding(t, r, checkBinary, Fail, "^/no/such/stepmux cannot be executed: ")
	require.Contains(t, f.Change,
		"as /no/such/stepmux and stepmux-fetch beside it, or name its path with --runner-command")
	requireFinding(t, r, checkRelay, Skip, "no step runner")
	requireFinding(t, r, checkTemp, OK, "")
	require.Len(t, r.Findings, 14)
}

func TestAnotherStepRunnerIsFoundWhereStepmuxIsMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Symlink(runnertest.GitLabRunner(t)[0], filepath.Join(dir, "gitlab-runner")))
	in := instanceOf(t, sshtest.OpenSSH(t, "SetEnv SHLVL=1 PATH="+dir+":/usr/bin:/bin"))
	in.Runner = nil
	r := examine(t, in)
	require.True(t, r.Usable)
	require.Len(t, r.Findings, 14)
	f := requireFinding(t, r, checkBinary, Warn,
		"^stepmux is missing; builds are run by step-runner .*, as .*gitlab-runner$")
	require.Contains(t, f.Change, "stepmux run --bootstrap")
	requireFinding(t, r, checkRelay, Warn, "^does not run: ")
}

func TestAnAccountWithoutCommandsIsExplained(t *testing.T) {
	t.Parallel()
	r := examine(t, instanceOf(t, sshtest.OpenSSH(t, "ForceCommand echo not here >&2; exit 1")))
	require.False(t, r.Usable)
	f := requireFinding(t, r, checkShell, Fail, "not here")
	require.Contains(t, f.Change, "ForceCommand")
	r = examine(t, instanceOf(t, sshtest.OpenSSH(t, "MaxSessions 0")))
	require.False(t, r.Usable)
	require.Len(t, r.Findings, 14)
}

func TestAMissingTemporaryDirectoryIsExplained(t *testing.T) {
	t.Parallel()
	in := instanceOf(t, sshtest.OpenSSH(t))
	in.TempDir = filepath.Join(in.TempDir, "none")
	r := examine(t, in)
	require.False(t, r.Usable)
	f := requireFinding(t, r, checkTemp, Fail, "none does not exist$")
	require.Contains(t, f.Change, "mkdir -m 1777 "+in.TempDir)
}

func TestExamineEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in := instanceOf(t, sshtest.OpenSSH(t))
	r := Examine(ctx, provider(t, in), in, Config{})
	require.False(t, r.Usable)
}

//stepmux:faults vulnerabilities | Servers with known vulnerabilities, such as CVE-2024-6387 | `stepmux doctor` warns of
//stepmux:more them
func TestJudgeServer(t *testing.T) {
	for identification, want := range map[string]string{
		"SSH-2.0-OpenSSH_10.0p2":                         "",
		"SSH-2.0-OpenSSH_9.9p2 Debian-1":                 "",
		"SSH-2.0-OpenSSH_9.9p1":                          "CVE-2025-26466",
		"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3":         "",
		"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2":         "CVE-2024-6387.*unless Debian-2\\+deb12u2 has",
		"SSH-2.0-OpenSSH_9.2p1":                          "CVE-2024-6387.*CVE-2023-48795",
		"SSH-2.0-OpenSSH_8.9p1 Ubuntu-3ubuntu0.10":       "CVE-2024-6387.*unless Ubuntu-3ubuntu0.10 has",
		"SSH-2.0-OpenSSH_6.6.1p1 Ubuntu-2ubuntu2":        "cannot forward to unix sockets",
		"SSH-2.0-dropbear_2022.83":                       "",
		"SSH-2.0-OpenSSH_99999999999999999999.1p1":       "",
		"SSH-2.0-OpenSSH_9.8p1 Debian-2+deb12u999999999": "CVE-2025-26466",
	} {
		f := judgeServer(identification)
		if want == "" {
			require.Equal(t, OK, f.Status, identification)
			continue
		}
		require.Equal(t, Warn, f.Status, identification)
		require.Regexp(t, want, f.Detail)
		require.NotEmpty(t, f.Change)
	}
}

func TestJudgeTemp(t *testing.T) {
	for name, test := range map[string]struct {
		facts  map[string]string
		status Status
		detail string
	}{
		"fine":      {map[string]string{"space": "20971520"}, OK, "/t, 20GiB free"},
		"no df":     {map[string]string{}, OK, "/t"},
		"noexec":    {map[string]string{"space": "20971520", "noexec": ""}, Warn, "noexec"},
		"little":    {map[string]string{"space": "524288"}, Warn, "512MiB free"},
		"none left": {map[string]string{"space": "10"}, Fail, "10KiB free: it is full"},
		"full":      {map[string]string{"space": "20971520", "full": ""}, Fail, "full"},
		"readonly":  {map[string]string{"readonly": ""}, Fail, "cannot be written to: Permission denied"},
		"missing":   {map[string]string{"missing": ""}, Fail, "does not exist"},
	} {
		f := judgeTemp("/t", test.facts, "Permission denied")
		require.Equal(t, test.status, f.Status, name)
		require.Contains(t, f.Detail, test.detail, name)
		require.Equal(t, test.status == OK, f.Change == "", name)
	}
}

// Symptom: the relay had the only session, so that the last check waited for the rest of the time.
func TestLingerIsExaminedWithOneSession(t *testing.T) {
	t.Parallel()
	in := instanceOf(t, sshtest.OpenSSH(t, "MaxSessions 1"))
	in.Linger = time.Minute
	r := examine(t, in)
	requireFinding(t, r, checkRelay, OK, "^runs")
	requireFinding(t, r, checkLinger, OK, "^builds can outlive their connection for 1m0s")
}

func TestLogindThatKillsAtLogoutIsExplained(t *testing.T) {
	for name, test := range map[string]struct {
		facts map[string]string
		want  Status
	}{
		"no logind": {map[string]string{"user": "ci", "KillUserProcesses": ""}, OK},
		"off":       {map[string]string{"user": "ci", "KillUserProcesses": "b false"}, OK},
		"on": {
			map[string]string{
				"user": "ci", "KillUserProcesses": "b true", "KillOnlyUsers": "as 0", "KillExcludeUsers": `as 1 "root"`,
			}, Warn,
		},
		"excluded": {
			map[string]string{"user": "ci", "KillUserProcesses": "b true", "KillExcludeUsers": `as 2 "root" "ci"`}, OK,
		},
		"others only": {
			map[string]string{"user": "ci", "KillUserProcesses": "b true", "KillOnlyUsers": `as 1 "guest"`}, OK,
		},
		"this one only": {
			map[string]string{"user": "ci", "KillUserProcesses": "b true", "KillOnlyUsers": `as 1 "ci"`}, Warn,
		},
	} {
		f := judgeLinger("2m0s", test.facts)
		require.Equal(t, test.want, f.Status, "%s: %+v", name, f)
	}
}

func TestJudgeClock(t *testing.T) {
	here := time.Unix(1_700_000_000, 0)
	at := func(d time.Duration) string {
		return strconv.FormatInt(here.Add(d).Unix(), 10) + ".000000000"
	}
	for name, test := range map[string]struct {
		there  string
		give   time.Duration
		status Status
	}{
		"the same":         {at(0), 0, OK},
		"near":             {at(4 * time.Second), 0, OK},
		"ahead":            {at(time.Minute), time.Second, Warn},
		"behind":           {at(-time.Hour), time.Second, Warn},
		"slow answer":      {at(9 * time.Second), 5 * time.Second, OK},
		"no nanoseconds":   {strconv.FormatInt(here.Unix(), 10) + ".N", 0, OK},
		"no time":          {"", 0, Skip},
		"not a time":       {"now", 0, Skip},
		"beyond any clock": {"99999999999999", 0, Warn},
	} {
		require.Equal(t, test.status, judgeClock(test.there, here, test.give).Status, name)
	}
}

func TestReportsForPeopleHaveNothingATerminalObeys(t *testing.T) {
	r := Report{Instance: "a", Findings: []Finding{
		{Check: checkServer, Status: Fail, Detail: "x\x1b[31m\n\u009by", Change: "c\r", Gain: "\x00"},
	}}
	r.finish(time.Second)
	var text bytes.Buffer
	require.NoError(t, r.WriteText(&text))
	require.NotRegexp(t, "[^\n -~]", text.String())
	require.Contains(t, text.String(), "builds would fail here")
	line, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(line), `"usable":false,"seconds":1,"findings":[{"check":"server","status":"fail"`)
}

// Symptom: doctor examined a VM that was starting before it listened.
func TestExamineTriesAgainWhileTheVMRefuses(t *testing.T) {
	t.Parallel()
	s := sshtest.InProcess(t, embeddedvm.Config{})
	in := instanceOf(t, s)
	addr, open := sshtest.Late(t, s.Addr)
	in.Addr = addr
	var refusals []error
	r := Examine(sshtest.Within(t), provider(t, in), in, Config{Again: func(_ context.Context, err error) bool {
		refusals = append(refusals, err)
		open()
		return true
	}})
	require.True(t, r.Usable, "%+v", r)
	require.Len(t, refusals, 1)
	require.ErrorContains(t, refusals[0], "connection refused")
	require.False(t, instance.MayPass(&mux.DialError{Stage: "login", Err: errors.New("refused")}))
	require.False(t, instance.MayPass(&mux.DialError{Stage: "handshake", Err: errors.New("no common algorithm")}))
}

// Symptom: the first line about a VM that accepted connections and said nothing came after 61 s.
func TestExamineTellsThatTheVMIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := instance.Instance{ID: "vm", Addr: "x:22", SSH: mux.Config{
			User: "ci", Auth: []login.Auth{login.Password("x")}, HostKeys: login.InsecureHostKeys(),
			DialNet: func(ctx context.Context, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
		}}
		start := time.Now()
		var told []time.Duration
		r := Examine(t.Context(), provider(t, in), in, Config{
			Timeout: 20 * time.Second, Silent: func() { told = append(told, time.Since(start)) },
		})
		require.False(t, r.Usable)
		require.Equal(t, []time.Duration{silence}, told)
		require.Equal(t, 20*time.Second, time.Since(start))
	})
}

// Symptom: doctor found a login fine that ran another program in place of each command, and blamed the step runner.
func TestALoginThatRunsNoCommandFailsWithTheAdviceThatFits(t *testing.T) {
	sshtest.RequirePart(t, "bash", "/bin/bash") // and not parallel, because of the next
	before := shellTimeout
	shellTimeout = time.Second
	t.Cleanup(func() { shellTimeout = before })
	const forced, waits = "no ForceCommand in sshd_config", "[ -t 0 ] || return"
	for name, at := range map[string]struct{ force, line, said, change string }{
		"start file that starts a shell": {line: "exec bash --norc", said: "no answer within", change: waits},
		"start file that reads":          {line: "read -r x", said: "no answer within", change: waits},
		"start file that ends":           {line: "echo bye; exit", said: "exit status 0; it said: bye$", change: forced},
		"refusal":                        {force: "echo out; echo err >&2; exit 3", said: "out | err$", change: forced},
		"refusal that quotes":            {force: `echo "$SSH_ORIGINAL_COMMAND"`, said: "it said: printf", change: forced},
		"program that copies":            {force: "cat", said: "no answer within", change: waits},
		"shell that ends at once":        {force: "true", said: "exit status 0$", change: forced},
		"limit of processes": {
			force: "echo sh: 1: Cannot fork >&2; exit 2", said: "Cannot fork$", change: "raise ulimit -u",
		},
		"output for a terminal": {force: `printf '\033[2Jx'`, said: `it said: \[2Jx$`, change: forced},
	} {
		t.Run(name, func(t *testing.T) {
			force := at.force
			if at.line != "" {
				home := t.TempDir()
				require.NoError(t, os.WriteFile(filepath.Join(home, ".bashrc"), []byte(at.line+"\n"), 0o600))
				force = `HOME=` + home + ` SHLVL=0 exec bash -c "$SSH_ORIGINAL_COMMAND"`
			}
			r := examine(t, instanceOf(t, sshtest.OpenSSH(t, "ForceCommand "+force)))
			require.False(t, r.Usable)
			f := requireFinding(t, r, checkShell, Fail,
				"^the login did not run the command printf: .*"+strings.ReplaceAll(at.said, "|", `\|`))
			require.Contains(t, f.Change, at.change)
			requireFinding(t, r, checkBinary, Skip, "no command can be run")
		})
	}
}

// Symptom: doctor did not look for the programs that the documents ask for.
//
//stepmux:faults users | Requirements of the documents that the check of a VM does not look at
func TestMissingToolsAreNamed(t *testing.T) {
	t.Parallel()
	for _, there := range []string{"", "git", "bash"} {
		bin := t.TempDir()
		for _, tool := range []string{"sh", "printf", "date", "df", "awk", "tail", "mktemp", "rm", "chmod", there} {
			if path, err := exec.LookPath(tool); err == nil {
				require.NoError(t, os.Symlink(path, filepath.Join(bin, tool)))
			}
		}
		r := examine(t, instanceOf(t, sshtest.OpenSSH(t, "SetEnv SHLVL=1 PATH="+bin)))
		require.True(t, r.Usable)
		f := requireFinding(t, r, checkTools, Warn, "not found on the PATH")
		require.Contains(t, f.Change, "install ")
		for _, tool := range []string{"git", "bash"} {
			require.Equal(t, tool != there, strings.Contains(f.Change, tool), f.Change)
		}
	}
}
