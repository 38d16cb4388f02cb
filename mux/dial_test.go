package mux_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// requireStage checks that err is a DialError of a stage and whether it says that it is permanent.
func requireStage(t testing.TB, err error, stage string, permanent bool) {
	t.Helper()
	dial := (*mux.DialError)(nil)
	require.ErrorAs(t, err, &dial)
	require.Equal(t, stage, dial.Stage, err.Error())
	require.Equal(t, permanent, dial.Permanent())
	require.ErrorContains(t, err, dial.Addr)
}

func TestDialByKeyFileAndKnownHosts(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		key, err := login.KeyFile(s.IdentityFile)
		require.NoError(t, err)
		hosts, err := login.KnownHosts(s.KnownHosts)
		require.NoError(t, err)
		conn := dialWith(t, s, &mux.Config{User: s.User, Auth: []login.Auth{key}, HostKeys: hosts})
		require.NoError(t, start(t, conn, "exit 0", nil).Wait(sshtest.Within(t)))
		require.Contains(t, conn.Stat().ServerVersion, "SSH-2.0-")
	})
}

func TestDialByPassword(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{Password: "correct horse"})
	cfg := config(s)
	cfg.Auth = []login.Auth{login.Password("correct horse")}
	dialWith(t, s, cfg)
	cfg.Auth = []login.Auth{login.Password("battery staple")}
	_, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
	requireStage(t, err, "login", true)
	require.NotContains(t, err.Error(), "battery", "secrets stay out of errors")
}

// The zero value was taken for an empty password, which was offered to the server.
func TestDialRefusesTheZeroAuth(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	cfg := config(s)
	for _, set := range []func(){
		func() { cfg.Auth = append(cfg.Auth, login.Auth{}) },
		func() {
			cfg.Auth = nil
			cfg.Credentials = func(context.Context) ([]login.Auth, error) { return make([]login.Auth, 1), nil }
		},
	} {
		set()
		_, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
		requireStage(t, err, "prepare", false)
		require.ErrorContains(t, err, "zero value")
	}
	require.Zero(t, s.TotalConns())
}

//stepmux:faults executor | Host keys are never verified
//stepmux:with mux/login.TestAThousandMachinesAtOneAddress
//stepmux:reliability promises | No connection is made to a server whose host key cannot be verified
//stepmux:with mux/login.TestAThousandMachinesAtOneAddress
//stepmux:reliability mechanisms | No unverified host key | `mux/login/hostkey.go`
func TestDialRefusesAnUnexpectedHostKey(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		stranger, _ := sshtest.NewKey(t)
		cfg := config(s)
		cfg.HostKeys = login.PinnedHostKeys(stranger.PublicKey())
		_, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
		requireStage(t, err, "host key", true)

		empty := filepath.Join(t.TempDir(), "known_hosts")
		require.NoError(t, os.WriteFile(empty, nil, 0o600))
		cfg.HostKeys, err = login.KnownHosts(empty)
		require.NoError(t, err)
		_, err = mux.Dial(sshtest.Within(t), s.Addr, cfg)
		requireStage(t, err, "host key", true)
		require.ErrorContains(t, err, ssh.FingerprintSHA256(s.HostKey), "what to compare")
		require.ErrorContains(t, err, "add the line")
	})
}

func TestDialRefusedLoginNamesHostUserAndKey(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		stranger, _ := sshtest.NewKey(t)
		cfg := config(s)
		cfg.Auth = []login.Auth{login.Key("/keys/mine", stranger)}
		_, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
		requireStage(t, err, "login", true)
		for _, want := range []string{s.Addr, s.User, "/keys/mine"} {
			require.ErrorContains(t, err, want)
		}
	})
}

func TestDialToAPortThatRefuses(t *testing.T) {
	bound, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) // no other process gets its port
	require.NoError(t, err)
	defer unix.Close(bound)
	require.NoError(t, unix.Bind(bound, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := unix.Getsockname(bound)
	require.NoError(t, err)
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	s := sshtest.InProcess(t, embeddedvm.Config{})
	_, err = mux.Dial(sshtest.Within(t), addr, config(s))
	requireStage(t, err, "connect", false)
	require.ErrorContains(t, err, "is sshd running")
}

func TestDialToAServerThatIsNotSSH(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	for name, greet := range map[string]func(net.Conn){
		"closes at once": func(net.Conn) {},
		"speaks HTTP": func(nc net.Conn) {
			_, _ = nc.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
		},
		"never stops talking": func(nc net.Conn) {
			for buf := make([]byte, 32<<10); ; {
				if _, err := nc.Write(buf); err != nil {
					return
				}
			}
		},
		"breaks off after its name": func(nc net.Conn) { _, _ = nc.Write([]byte("SSH-2.0-broken\r\n")) },
	} {
		t.Run(name, func(t *testing.T) {
			addr := sshtest.Listen(t, "tcp", "127.0.0.1:0", greet)
			_, err := mux.Dial(sshtest.Within(t), addr, config(s))
			requireStage(t, err, "handshake", false)
		})
	}
}

//stepmux:faults vulnerabilities | An unfinished key exchange gathers outgoing packets (CVE-2025-22869) | a login is
//stepmux:more bounded by its context; the library bounds its queue
//stepmux:with internal/embeddedvm.TestClientThatSaysNothingIsHungUpOn
//stepmux:with internal/promises.TestLibrariesAreOfVersionsWithoutKnownVulnerabilities
func TestDialEndsWithItsContextThoughTheServerIsSilent(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	reached := make(chan struct{}, 1)
	addr := sshtest.Listen(t, "tcp", "127.0.0.1:0", func(nc net.Conn) {
		_, _ = nc.Read(make([]byte, 1)) // the client's name: the handshake has begun
		reached <- struct{}{}
		for buf := make([]byte, 4096); ; { // says nothing, until the client goes
			if _, err := nc.Read(buf); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("because")
	done := inBackground(func() error {
		_, err := mux.Dial(ctx, addr, config(s))
		return err
	})
	receive(t, reached)
	cancel(because)
	require.ErrorIs(t, receive(t, done), because)

	_, err := mux.Dial(ctx, addr, config(s))
	require.ErrorIs(t, err, because)

	expired, expire := context.WithCancelCause(t.Context()) // not by a timer, which may fire before the handshake
	done = inBackground(func() error {
		_, err := mux.Dial(expired, addr, config(s))
		return err
	})
	receive(t, reached)
	expire(context.DeadlineExceeded)
	err = receive(t, done)
	requireStage(t, err, "handshake", false)
	require.ErrorContains(t, err, "is this an SSH port")
}

func TestDialChecksItsConfig(t *testing.T) {
	s := sshtest.InProcess(t, embeddedvm.Config{})
	for want, change := range map[string]func(*mux.Config){
		"User is empty":        func(c *mux.Config) { c.User = "" },
		"Auth is empty":        func(c *mux.Config) { c.Auth = nil },
		"HostKeys is not set":  func(c *mux.Config) { c.HostKeys = login.HostKeys{} },
		"SessionLimit":         func(c *mux.Config) { c.SessionLimit = -1 },
		"a dead peer must be ": func(c *mux.Config) { c.KeepaliveTimeout = -1 },
	} {
		cfg := config(s)
		change(cfg)
		_, err := mux.Dial(sshtest.Within(t), s.Addr, cfg)
		require.ErrorContains(t, err, want)
	}
	_, err := mux.Dial(sshtest.Within(t), s.Addr, nil)
	require.Error(t, err)
}

//stepmux:reliability promises | A dead peer is detected within KeepaliveInterval + KeepaliveTimeout
//stepmux:reliability mechanisms | A dead peer is found within its bound | `mux/keepalive.go`
func TestKeepaliveClosesADeadPeerWithinItsBound(t *testing.T) {
	// A frozen machine: the TCP connection stays open and nothing comes. Requests to it block for ever.
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		proxy := sshtest.Proxy(t, s.Addr)
		cfg := config(s)
		cfg.KeepaliveInterval, cfg.KeepaliveTimeout = 50*time.Millisecond, 3*time.Second // a busy peer answers by then
		conn := dialWith(t, s.Via(t, proxy.Addr()), cfg)
		p := start(t, conn, "exec cat", nil)
		eventually(t, func() bool { return conn.Stat().RTT > 0 })
		require.NoError(t, conn.Err(), "a silent peer that answers is alive")
		proxy.Stall()
		started := inBackground(func() error {
			_, err := conn.Start(sshtest.Within(t), mux.Command{Line: "exit 0"})
			return err
		})
		receive(t, conn.Done())
		lost := (*mux.ConnError)(nil)
		require.ErrorAs(t, conn.Err(), &lost)
		require.Equal(t, "keepalive", lost.Op)
		require.ErrorContains(t, conn.Err(), "no sign of life")
		requireLost(t, p.Wait(sshtest.Within(t)))
		requireLost(t, receive(t, started))
		require.NoError(t, conn.Close())
	})
}
