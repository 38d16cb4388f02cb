package bench

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// openSSHClient is OpenSSH's own client, with a master connection that its others share.
type openSSHClient struct {
	options []string
	control string // the master's socket
	target  string
}

// newOpenSSHClient starts a master. It returns an error if the machine has no OpenSSH client.
func newOpenSSHClient(b *testing.B, v *vm) (*openSSHClient, error) {
	b.Helper()
	if _, err := exec.LookPath("ssh"); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(v.Addr)
	require.NoError(b, err)
	c := &openSSHClient{
		options: []string{
			"ssh", "-F", "none", "-p", port, "-i", v.IdentityFile, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
			"-o", "UserKnownHostsFile=" + v.KnownHosts, "-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR",
		},
		control: filepath.Join(sshtest.SocketDir(b), "master"),
		target:  v.User + "@" + host,
	}
	ctx, stop := context.WithCancel(context.Background()) //nolint:usetesting // ends in the cleanup
	master := exec.CommandContext(ctx, c.options[0], append(c.options[1:], "-M", "-N", "-S", c.control, c.target)...)
	require.NoError(b, master.Start())
	b.Cleanup(func() {
		stop()
		_ = master.Wait() // killed
	})
	require.Eventually(b, func() bool {
		check := append(c.options[1:len(c.options):len(c.options)], "-S", c.control, "-O", "check", c.target)
		return exec.CommandContext(b.Context(), c.options[0], check...).Run() == nil
	}, sshtest.Bound, 20*time.Millisecond, "the master does not answer")
	return c, nil
}

// shared returns the command line that runs argv over the master.
func (c *openSSHClient) shared(argv []string) []string {
	return c.line([]string{"-S", c.control}, argv)
}

// alone returns the command line that runs argv over a connection of its own.
func (c *openSSHClient) alone(argv []string) []string {
	return c.line([]string{"-S", "none"}, argv)
}

func (c *openSSHClient) line(control, argv []string) []string {
	line := append(c.options[:len(c.options):len(c.options)], control...)
	return append(append(line, c.target), argv...)
}

// another returns functions that wrap the command line of a new connection's master, and the command lines that
// share that connection.
func (c *openSSHClient) another(b *testing.B) (master, shared func(argv []string) []string) {
	control := filepath.Join(sshtest.SocketDir(b), "master")
	return func(argv []string) []string { return c.line([]string{"-M", "-S", control}, argv) },
		func(argv []string) []string { return c.line([]string{"-S", control}, argv) }
}
