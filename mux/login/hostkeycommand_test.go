package login_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skeema/knownhosts"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// script writes an executable shell script.
func script(t testing.TB, text string) string {
	t.Helper()
	path := write(t, "command", "#!/bin/sh\n"+text+"\n")
	require.NoError(t, os.Chmod(path, 0o700))
	return path
}

func command(t testing.TB, text string, args ...string) login.HostKeys {
	t.Helper()
	keys, err := login.HostKeyCommand(append([]string{script(t, text)}, args...)...)
	require.NoError(t, err)
	return keys
}

// The contract of OpenSSH's KnownHostsCommand: see ssh_config(5), TOKENS.
func TestHostKeyCommandGetsTheServerInTokens(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	told := filepath.Join(t.TempDir(), "told")
	keys := command(
		t, `echo "$@" >>`+told+"; cat "+s.KnownHosts, "%I", "%H", "%h:%p", "%k", "%r", "%t", "%f", "%K", "100%%",
	)
	require.NoError(t, dialError(t, s, keys))
	text, err := os.ReadFile(told)
	require.NoError(t, err)
	host, port, _ := strings.Cut(s.Addr, ":")
	about := knownhosts.Normalize(s.Addr) + " " + host + ":" + port + " " + host + " " + s.User
	line := strings.Fields(string(ssh.MarshalAuthorizedKey(s.HostKey)))
	require.Equal(t, "ORDER "+about+" NONE NONE NONE 100%\n"+
		"HOSTNAME "+about+" "+line[0]+" "+ssh.FingerprintSHA256(s.HostKey)+" "+line[1]+" 100%\n", string(text))
}

func TestAnswersOfAHostKeyCommand(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	stranger, _ := sshtest.NewKey(t)
	other := write(t, "other", hostLine("", "*", stranger.PublicKey()))
	revoked := write(t, "revoked", hostLine("@revoked", "*", s.HostKey))
	for name, c := range map[string]struct {
		text      string
		want      string
		stage     string
		permanent bool
	}{
		"another key":   {"cat " + other, "HOST KEY CHANGED", "host key", true},
		"a revoked key": {"cat " + revoked + " " + s.KnownHosts, "revoked", "host key", true},
		"nothing":       {":", "add the line", "host key", true},
		"it fails": {
			"echo no connection to the registry >&2; exit 3",
			"exit status 3; it said: \"no connection to the registry\"", "prepare", false,
		},
		"garbage":         {"echo hello", "does not print known_hosts lines", "prepare", false},
		"too much":        {"cat /dev/zero", "prints too much", "prepare", false},
		"it fails later":  {`[ "$1" = ORDER ] || exit 3`, "exit status 3", "host key", false},
		"garbage, later":  {`[ "$1" = ORDER ] || echo hello`, "does not print", "host key", false},
		"too much, later": {`[ "$1" = ORDER ] || cat /dev/zero`, "prints too much", "host key", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := dialError(t, s, command(t, c.text, "%I"))
			requireStage(t, err, c.stage, c.permanent)
			require.ErrorContains(t, err, c.want)
		})
	}
	require.NoError(
		t, dialError(t, s, login.FirstOf(command(t, ":"), login.PinnedHostKeys(s.HostKey))),
		"no output passes the key to the next rule",
	)
}

func TestHostKeyCommandThatHangsIsBounded(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	keys := command(t, "exec tail -f /dev/null")

	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("because")
	cfg := config(s)
	cfg.HostKeys = keys
	done := inBackground(func() error {
		_, err := mux.Dial(ctx, s.Addr, cfg)
		return err
	})
	cancel(because)
	require.ErrorIs(t, receive(t, done), because)

	login.SetHostKeyCommandTime(t, 100*time.Millisecond)
	err := dialError(t, s, keys)
	requireStage(t, err, "prepare", false)
	require.ErrorContains(t, err, "the program has not ended after 100ms")
	login.SetHostKeyCommandTime(t, time.Second)
	err = dialError(t, s, command(t, `[ "$1" = ORDER ] || exec tail -f /dev/null`, "%I"))
	require.ErrorContains(t, err, "the program has not ended after 1s")
	failed := (*mux.DialError)(nil)
	require.ErrorAs(t, err, &failed)
	require.False(t, failed.Permanent())
}

func TestHostKeyCommandThatCannotWorkIsAnErrorAtOnce(t *testing.T) {
	_, err := login.HostKeyCommand()
	require.ErrorContains(t, err, "empty")
	_, err = login.HostKeyCommand("/no/such/command")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = login.HostKeyCommand("/bin/sh", "%z")
	require.ErrorContains(t, err, "there is no %z")
}
