package embeddedvm_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestClientSignerMayLogIn(t *testing.T) {
	vm, err := embeddedvm.Start(embeddedvm.Config{})
	require.NoError(t, err)
	defer vm.Close()
	client, err := ssh.Dial("tcp", vm.Addr(), &ssh.ClientConfig{
		User:            "anybody",
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(vm.ClientSigner())},
		HostKeyCallback: ssh.FixedHostKey(vm.HostKey()),
	})
	require.NoError(t, err)
	require.NoError(t, client.Close())
}

func TestWrongKeyAndPasswordAreRefused(t *testing.T) {
	other := sshtest.InProcess(t, embeddedvm.Config{})
	s := sshtest.InProcess(t, embeddedvm.Config{Password: "right"})
	for _, tt := range []struct {
		name string
		auth ssh.AuthMethod
		ok   bool
	}{
		{"key of another VM", ssh.PublicKeys(other.Signer), false},
		{"wrong password", ssh.Password("wrong"), false},
		{"longer password", ssh.Password("right."), false},
		{"right password", ssh.Password("right"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := s.ClientConfig()
			config.Auth = []ssh.AuthMethod{tt.auth}
			client, err := ssh.Dial("tcp", s.Addr, config)
			if !tt.ok {
				require.ErrorContains(t, err, "unable to authenticate")
				return
			}
			require.NoError(t, err)
			require.NoError(t, client.Close())
		})
	}
}

func TestEmptyPasswordIsRefused(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	config := s.ClientConfig()
	config.Auth = []ssh.AuthMethod{ssh.Password("")}
	_, err := ssh.Dial("tcp", s.Addr, config)
	require.ErrorContains(t, err, "unable to authenticate")
}

func TestClientThatSaysNothingIsHungUpOn(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{HandshakeTimeout: time.Millisecond})
	nc, err := net.Dial("tcp", s.Addr)
	require.NoError(t, err)
	defer nc.Close()
	_, _ = io.Copy(io.Discard, nc) // ends when the server hangs up
	eventually(t, func() bool { return s.VM.Stat().Conns == 0 }, "the connection is forgotten")
}

func TestPtyShellSubsystemAndOddRequestsAreRefused(t *testing.T) {
	client := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	session, err := client.NewSession()
	require.NoError(t, err)
	defer session.Close()
	for _, name := range []string{
		"pty-req", "shell", "subsystem", "env", "window-change", "x11-req",
		"auth-agent-req@openssh.com", "signal", "exec", "",
	} {
		for _, payload := range [][]byte{nil, {0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 9, 'x'}, make([]byte, 1<<10)} {
			ok, err := session.SendRequest(name, true, payload)
			require.NoError(t, err)
			require.False(t, ok, "%s %q", name, payload)
		}
	}
	require.NoError(t, session.Run("true"), "the session is as good as new")
}

func TestMalformedChannelsAreRefused(t *testing.T) {
	client := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	type unix struct {
		Path, Reserved string
		Port           uint32
	}
	type tcp struct {
		Host string
		Port uint32
		From string
		At   uint32
	}
	for _, tt := range []struct {
		name, kind string
		data       []byte
	}{
		{"no path", "direct-streamlocal@openssh.com", nil},
		{"truncated", "direct-streamlocal@openssh.com", []byte{0, 0, 0, 9, '/'}},
		{"trailing bytes", "direct-streamlocal@openssh.com", append(ssh.Marshal(unix{Path: "/x"}), 0)},
		{"empty path", "direct-streamlocal@openssh.com", ssh.Marshal(unix{})},
		{"relative path", "direct-streamlocal@openssh.com", ssh.Marshal(unix{Path: "x"})},
		{"abstract socket", "direct-streamlocal@openssh.com", ssh.Marshal(unix{Path: "@x"})},
		{"NUL", "direct-streamlocal@openssh.com", ssh.Marshal(unix{Path: "/\x00"})},
		{"no address", "direct-tcpip", nil},
		{"port 0", "direct-tcpip", ssh.Marshal(tcp{Host: "127.0.0.1"})},
		{"port 65536", "direct-tcpip", ssh.Marshal(tcp{Host: "127.0.0.1", Port: 65536})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := client.OpenChannel(tt.kind, tt.data)
			requireReason(t, err, ssh.ConnectionFailed)
		})
	}
	require.Equal(t, "alive\n", output(t, client, "echo alive"))
}

func TestSignalReachesTheProcessGroup(t *testing.T) {
	client := dial(t, sshtest.InProcess(t, embeddedvm.Config{}))
	// A read of a fifo may miss a signal that comes just before it.
	r := start(t, client, "trap : TERM; (trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.01; done) & "+
		"wait; wait; echo parent")
	require.Equal(t, "ready", r.line(t))
	ok, err := r.SendRequest("signal", true, ssh.Marshal(struct{ Name string }{"TERM"}))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "child", r.line(t))
	require.Equal(t, "parent", r.line(t))
	require.NoError(t, r.Wait())
}

func TestCommandsRunAsConfigured(t *testing.T) {
	dir := t.TempDir()
	shell := filepath.Join(t.TempDir(), "shell")
	require.NoError(t, os.WriteFile(shell, []byte("#!/bin/sh\necho greeting\nexec /bin/sh \"$@\"\n"), 0o700))
	client := dial(
		t, sshtest.InProcess(t, embeddedvm.Config{Dir: dir, Shell: shell, Env: []string{"NAME=value", "PATH=/bin"}}),
	)
	require.Equal(t, "greeting\n"+dir+" "+dir+" value /bin "+shell+"\n",
		output(t, client, `echo "$PWD $HOME $NAME $PATH $SHELL"`))
}

func TestStartRefusesBadConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, config := range map[string]embeddedvm.Config{
		"relative shell": {Shell: "sh"},
		"absent home":    {Dir: filepath.Join(file, "none")},
		"file as home":   {Dir: file},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := embeddedvm.Start(config)
			require.ErrorContains(t, err, "start VM: check ")
		})
	}
}

func TestShellThatCannotBeStartedRefusesTheCommand(t *testing.T) {
	client := dial(t, sshtest.InProcess(t, embeddedvm.Config{Shell: "/no/such/shell"}))
	session, err := client.NewSession()
	require.NoError(t, err)
	defer session.Close()
	require.Error(t, session.Start("true"))
}

func TestNegativeMaxSessionsAllowsNoSession(t *testing.T) {
	requireRefused(t, dial(t, sshtest.InProcess(t, embeddedvm.Config{MaxSessions: -1})))
}

func TestStatCounts(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	dial(t, s)
	second := dial(t, s)
	require.Equal(t, embeddedvm.Stat{Conns: 2, TotalConns: 2}, s.VM.Stat())
	require.NoError(t, second.Close())
	eventually(t, func() bool { return s.VM.Stat() == embeddedvm.Stat{Conns: 1, TotalConns: 2} },
		"what has ended is no longer counted")
}

func TestCutAllBreaksConnectionsAndNotTheServer(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	client := dial(t, s)
	s.VM.CutAll()
	require.Error(t, client.Wait())
	require.Equal(t, "alive\n", output(t, dial(t, s), "echo alive"))
	require.Equal(t, 2, s.VM.Stat().TotalConns)
}

func TestCloseKillsCommandsAndTheirBackgroundProcesses(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	client := dial(t, s)
	dir := t.TempDir()
	running, left := filepath.Join(dir, "running"), filepath.Join(dir, "left")
	r := start(t, client, "trap '' HUP TERM; echo $$ > "+running+"; echo ready; while :; do read x < "+fifo(t)+"; done")
	require.Equal(t, "ready", r.line(t))
	output(t, client, "(read x < "+fifo(t)+") >/dev/null 2>&1 & echo $! > "+left)
	require.True(t, alive(t, running))
	require.True(t, alive(t, left))

	require.NoError(t, s.VM.Close())
	require.False(t, alive(t, running))
	eventually(t, func() bool { return !alive(t, left) }, "the background process ends")
	require.NoError(t, s.VM.Close(), "again")
	_, err := net.Dial("tcp", s.Addr)
	require.Error(t, err)
}

func TestShutdownLetsCommandsEndByThemselves(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	done := filepath.Join(t.TempDir(), "done")
	r := start(t, dial(t, s), "echo ready; cat >/dev/null; echo x > "+done)
	require.Equal(t, "ready", r.line(t))
	require.NoError(t, s.VM.Shutdown(t.Context()))
	require.FileExists(t, done)
}

func TestShutdownKillsCommandsWhenItsContextEnds(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	pid := filepath.Join(t.TempDir(), "pid")
	r := start(t, dial(t, s), "echo $$ > "+pid+"; echo ready; read x < "+fifo(t))
	require.Equal(t, "ready", r.line(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.VM.Shutdown(ctx), context.Canceled)
	require.False(t, alive(t, pid))
}
