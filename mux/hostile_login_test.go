package mux_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/faultconn"
	"github.com/stepmux/stepmux/internal/testing/liveheap"
	"github.com/stepmux/stepmux/internal/testing/rawssh"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// authFailure returns the refusal of a way to log in.
func authFailure(partial bool, methods ...string) []byte {
	return ssh.Marshal(struct {
		Methods []string `sshtype:"51"`
		Partial bool
	}{methods, partial})
}

func banner(text string) []byte {
	return ssh.Marshal(struct {
		Text     string `sshtype:"53"`
		Language string
	}{text, ""})
}

// ask returns the questions of an interactive login.
func ask(n uint32, prompts []byte) []byte {
	return ssh.Marshal(struct {
		Name, Instruction, Language string
		N                           uint32
		Rest                        []byte `ssh:"rest"`
	}{"", strings.Repeat("x", 1<<10), "", n, prompts})
}

// endlessly writes message until the client has gone, and reads what it says.
func endlessly(c *rawssh.Conn, message []byte) {
	go func() {
		for {
			if _, err := c.Read(); err != nil {
				return
			}
		}
	}()
	for c.Write(message) == nil {
	}
}

// untilLogin does the steps before the login.
func untilLogin(c *rawssh.Conn) bool {
	return c.Versions("SSH-2.0-rawssh") == nil && c.Exchange() == nil && c.AcceptService() == nil
}

// answerAll answers each attempt to log in.
func answerAll(c *rawssh.Conn, message []byte) {
	if !untilLogin(c) {
		return
	}
	for {
		if _, err := c.Read(); err != nil {
			return
		}
		if c.Write(message) != nil {
			return
		}
	}
}

//stepmux:faults vulnerabilities | Endless logins: banners, questions, partial success | a login is bounded by its
//stepmux:more context, and answers to questions are counted
//stepmux:with mux.TestAConnectionMayEndAtEveryByteOfTheHandshake
func TestHostileLoginsEndInAnErrorThatSaysWhy(t *testing.T) {
	prompt := ssh.Marshal(struct {
		Text string
		Echo bool
	}{"Password: ", false})
	for name, tc := range map[string]struct {
		script  func(*rawssh.Conn)
		want    string
		endless bool // only the caller's patience ends it
	}{
		"many lines before the version": {script: func(c *rawssh.Conn) {
			for c.WriteRaw([]byte(strings.Repeat("Welcome\r\n", 100))) == nil {
			}
		}, want: "an SSH port?"},
		"a line without an end": {script: func(c *rawssh.Conn) {
			for c.WriteRaw(bytes.Repeat([]byte("x"), 100)) == nil {
			}
		}, want: "overflow reading version"},
		"a version of long ago": {
			script: func(c *rawssh.Conn) { _ = c.Versions("SSH-1.5-old"); _ = c.Exchange() },
			want:   "handshake",
		},
		"a malformed version": {
			script: func(c *rawssh.Conn) { _ = c.WriteRaw([]byte("HELO\r\n")) },
			want:   "closed the connection at once",
		},
		"a packet of 4 GiB": {script: func(c *rawssh.Conn) {
			_ = c.Versions("SSH-2.0-x")
			_ = c.WriteRaw(bytes.Repeat([]byte{0xff}, 1<<10))
		}, want: "handshake"},
		"keys without an offer": {script: func(c *rawssh.Conn) {
			_ = c.Versions("SSH-2.0-x")
			_ = c.Write([]byte{rawssh.NewKeys})
		}, want: "handshake"},
		"something to ignore amid a strict exchange": {script: func(c *rawssh.Conn) {
			_ = c.Versions("SSH-2.0-x")
			_ = c.Write(append([]byte{rawssh.Ignore}, 0, 0, 0, 0))
			_ = c.Exchange()
		}, want: "handshake"},
		"banners without end": {script: func(c *rawssh.Conn) {
			if untilLogin(c) {
				endlessly(c, banner(strings.Repeat("x", 10<<10)))
			}
		}, endless: true},
		"partial success without end": {script: func(c *rawssh.Conn) {
			answerAll(c, authFailure(true, "publickey", "password", "keyboard-interactive"))
		}, want: "too many authentication attempts"},
		"no way to log in": {
			script: func(c *rawssh.Conn) { answerAll(c, authFailure(false, "gssapi-with-mic", "hostbased")) },
			want:   "unable to authenticate",
		},
		"methods without end": {script: func(c *rawssh.Conn) {
			answerAll(c, authFailure(false, strings.Split(strings.Repeat("x,", 50_000), ",")...))
		}, want: "unable to authenticate"},
		"a million questions": {
			script: func(c *rawssh.Conn) { interactive(c, ask(1<<20, bytes.Repeat(prompt, 10_000))) },
			want:   "prompt format error",
		},
		"two questions": {
			script: func(c *rawssh.Conn) { interactive(c, ask(2, bytes.Repeat(prompt, 2))) },
			want:   "asks 2 questions",
		},
		"the same again": {
			script: func(c *rawssh.Conn) { interactive(c, ask(1, prompt)) },
			want:   "asks again after the password",
		},
		"nothing asked, for ever": {script: func(c *rawssh.Conn) { interactive(c, ask(0, nil)) }, want: "more than 16 times"},
		"a goodbye with many words": {script: func(c *rawssh.Conn) {
			if untilLogin(c) {
				_ = c.Write(rawssh.Bye(2, "because "+strings.Repeat("x", 100<<10)))
				_, _ = c.Read()
			}
		}, want: "because"},
		"an answer to nothing": {script: func(c *rawssh.Conn) {
			if untilLogin(c) {
				_ = c.Write(rawssh.OnChannel(rawssh.AuthInfoRequest, 0))
				_, _ = c.Read()
			}
		}, want: "unexpected message"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := rawssh.Serve(t, tc.script)
			cfg := rawConfig(t, server)
			cfg.Auth = append(cfg.Auth, login.Password("correct horse"))
			ctx := sshtest.Within(t)
			if tc.endless {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
			}
			before := liveheap.Bytes()
			_, err := mux.Dial(ctx, server.Addr, cfg)
			require.Error(t, err)
			requireClear(t, err)
			dial := (*mux.DialError)(nil)
			require.ErrorAs(t, err, &dial)
			require.NotContains(t, err.Error(), "correct horse")
			if tc.endless {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			} else {
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, tc.want)
			}
			require.Less(t, liveheap.Bytes()-before, int64(hostileMemory))
		})
	}
}

// interactive asks the client that logs in interactively the same, again and again.
func interactive(c *rawssh.Conn, questions []byte) {
	if !untilLogin(c) {
		return
	}
	questions = append([]byte{rawssh.AuthInfoRequest}, questions...)
	for {
		m, err := c.Read()
		if err != nil {
			return
		}
		answer := questions
		if m[0] == rawssh.AuthRequest && !bytes.Contains(m, []byte("keyboard-interactive")) {
			answer = authFailure(false, "keyboard-interactive")
		}
		if c.Write(answer) != nil {
			return
		}
	}
}

func TestAConnectionMayEndAtEveryByteOfTheHandshake(t *testing.T) {
	server := rawssh.Serve(t, func(c *rawssh.Conn) {
		c.Each(func(m []byte) error { _, _, err := c.Answer(m); return err })
	})
	cfg := rawConfig(t, server)
	step := int64(37)
	if hostileCount(t, 0) > 0 {
		step = 1
	}
	made := 0
	for n := int64(1); n < 1200; n += step {
		nc, err := net.Dial("tcp", server.Addr)
		require.NoError(t, err)
		cfg.DialNet = func(context.Context, string) (net.Conn, error) {
			return faultconn.New(nc, faultconn.Config{CutAfterRead: n}), nil
		}
		conn, err := mux.Dial(sshtest.Within(t), server.Addr, cfg)
		if err != nil {
			dial := (*mux.DialError)(nil)
			require.ErrorAs(t, err, &dial)
			continue
		}
		made++
		_, err = conn.Start(sshtest.Within(t), mux.Command{Line: "x"})
		if err == nil {
			_, err = conn.Ping(sshtest.Within(t))
		}
		if err != nil {
			requireLost(t, err)
		}
		requireCloses(t, conn)
	}
	require.Positive(t, made, "the last ones are long enough")
}
