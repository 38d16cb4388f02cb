package embeddedvm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	// defaultMaxSessions is sshd_config's MaxSessions. defaultHandshakeTimeout is shorter than its LoginGraceTime, for
	// loopback.
	defaultMaxSessions      = 10
	defaultHandshakeTimeout = 30 * time.Second

	// defaultPath is sshd's PATH without configuration.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Config describes a VM. The zero value is a VM with sshd's stock limits in which only [Server.ClientSigner] can log
// in.
type Config struct {
	// Addr is the host:port to listen on. If empty, a free port of 127.0.0.1.
	Addr string

	// HostKeys are its host keys; the first of each type counts. If empty, a new one.
	HostKeys []ssh.Signer

	// RekeyThreshold is the number of bytes in one direction after which it exchanges keys again. If zero, the SSH
	// library's.
	RekeyThreshold uint64

	// MaxSessions limits the session channels of one connection, like MaxSessions in sshd_config. If zero, 10. If
	// negative, no session is allowed.
	MaxSessions int

	// Shell runs the commands, as `Shell -c COMMAND`. It must be an absolute path. If empty, /bin/sh.
	Shell string

	// Dir is the home directory: HOME, and the working directory of commands. It must exist. If empty, the home directory
	// of this process's user.
	Dir string

	// Env is added to the environment of commands, as NAME=value; a later entry wins. Without it
	// they get PATH, HOME, USER, LOGNAME, SHELL, SSH_CLIENT, SSH_CONNECTION, and TMPDIR if this
	// process has one; nothing else of this process's environment reaches them.
	Env []string

	// AuthorizedKeys may log in besides [Server.ClientSigner].
	AuthorizedKeys []ssh.PublicKey

	// Password, if not empty, may be used to log in.
	Password string

	// HandshakeTimeout bounds key exchange and login of a connection. If zero, 30s.
	HandshakeTimeout time.Duration
}

// withDefaults returns a checked copy of c with every default filled in.
func (c Config) withDefaults() (Config, error) {
	c.MaxSessions = cmp.Or(c.MaxSessions, defaultMaxSessions)
	c.Addr = cmp.Or(c.Addr, "127.0.0.1:0")
	c.Shell = cmp.Or(c.Shell, "/bin/sh")
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, defaultHandshakeTimeout)
	c.AuthorizedKeys = slices.Clone(c.AuthorizedKeys)
	c.HostKeys = slices.Clone(c.HostKeys)

	if !filepath.IsAbs(c.Shell) {
		return c, fmt.Errorf("check shell %q: not an absolute path", c.Shell)
	}
	self, err := user.Current()
	if err != nil {
		return c, fmt.Errorf("look up the current user: %w", err)
	}
	if c.Dir == "" {
		c.Dir = existingDir(self.HomeDir)
	}
	info, err := os.Stat(c.Dir)
	if err != nil {
		return c, fmt.Errorf("check home directory: %w", err)
	}
	if !info.IsDir() {
		return c, fmt.Errorf("check home directory %s: %w", c.Dir, errors.New("not a directory"))
	}
	c.Env = append(baseEnv(c, self.Username), c.Env...)
	return c, nil
}

// existingDir returns dir. If it does not exist it returns the root directory, as sshd does.
func existingDir(dir string) string {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "/"
	}
	return dir
}

// baseEnv returns the environment of the VM's commands. Each connection adds its addresses.
func baseEnv(c Config, username string) []string {
	env := []string{
		"PATH=" + defaultPath,
		"HOME=" + c.Dir,
		"USER=" + username,
		"LOGNAME=" + username,
		"SHELL=" + c.Shell,
	}
	for _, name := range []string{"TMPDIR", vmconfig.LevelVar} {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}
