package sshdoor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance/manager/command"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/privatefile"
)

// loginTimeout bounds the time of a client until it has logged in. A test changes it.
var loginTimeout = 30 * time.Second

const (
	// maxStrangers bounds the clients that have not logged in, and maxLogins those that have.
	maxStrangers, maxLogins = 1000, 2000
	// maxChannels bounds the channels of a login.
	maxChannels = 128
	// maxInput bounds the input of a command that it has not read. Signals do not wait for it. SSH's own window holds
	// 2 MiB more.
	maxInput = 128 << 10
	// maxKeysFile bounds the file with the authorized keys, in bytes.
	maxKeysFile = 4 << 20
	// ping is the time between two questions for a sign of life, and dead how long a client may take to answer.
	ping, dead = 15 * time.Second, 45 * time.Second
	// acceptPause paces a listener that fails, as it does while there are no descriptors.
	acceptPause = 50 * time.Millisecond
)

// anyVM is the name of the SSH user that any VM will do for.
const anyVM = "any"

// Config is the configuration of the SSH server of a manager.
type Config struct {
	// KeysFile has the public keys that may log in, as authorized_keys of OpenSSH has them. It is read again when it has
	// changed. Options of keys are not supported: with a file that has some, all logins fail.
	// Required.
	KeysFile string
	// HostKeyFile is the private host key. It is made if it is missing, and only this user may read it. If empty, the file
	// ssh_host_ed25519_key in the manager's directory.
	HostKeyFile string
	// Forward lets clients connect to TCP addresses and unix sockets from their VM.
	Forward bool
}

// Host is the manager behind the door. All fields are required.
type Host struct {
	Dir    string // of the manager's state
	Logger *slog.Logger
	// Reserve waits for a slot. It calls waits with the number of those that wait before, from time to time, and returns
	// the error of waits. ctx bounds the wait alone.
	Reserve func(ctx context.Context, r Request, waits func(ahead int) error) (*Slot, error)
}

// Request says which VM will do: the one with the ID Instance, or any with the labels if that is empty.
type Request struct {
	Instance string
	Labels   map[string]string
}

// Slot is the slot of a login.
type Slot struct {
	Commands *command.Runner
	Release  func() // gives it back, and ends what runs there
}

// Serve serves SSH on a listener, which it closes, until ctx ends. Then it ends all connections and their commands.
// Each login has a slot of its own, from its first command on: its user name is "any", the ID of a VM, or labels, as in
// os=linux,size=large. It returns nil, or why it cannot begin or the listener's error.
func Serve(ctx context.Context, listener net.Listener, cfg Config, host Host) error {
	defer listener.Close()
	keys := &authorizedKeys{file: cfg.KeysFile, warn: func(text string) { host.Logger.Warn(text) }}
	if err := keys.read(); err != nil {
		return err
	}
	file := cfg.hostKeyFile(host.Dir)
	text, err := privatefile.Open(file, maxHostKey, newHostKey)
	key, err := hostKey(file, text, err)
	if err != nil {
		return err
	}
	s := &door{
		host: host, cfg: cfg, keys: keys, life: ctx,
		strangers: make(chan struct{}, maxStrangers), logins: make(chan struct{}, maxLogins),
	}
	s.ssh = &ssh.ServerConfig{ServerVersion: "SSH-2.0-stepmux", PublicKeyCallback: s.authorize}
	s.ssh.AddHostKey(key)
	host.Logger.Info("SSH listens", "address", listener.Addr(), "host_key", ssh.FingerprintSHA256(key.PublicKey()))
	return s.serve(listener) //nolint:contextcheck // its life is ctx
}

// hostKeyFile returns the file of the host key of a manager with a state directory.
func (cfg Config) hostKeyFile(dir string) string {
	return cmp.Or(cfg.HostKeyFile, filepath.Join(dir, "ssh_host_ed25519_key"))
}

// Check returns why Serve for a manager with this directory would not begin, and makes nothing.
func (cfg Config) Check(dir string) error {
	keys := &authorizedKeys{file: cfg.KeysFile}
	if err := keys.read(); err != nil {
		return err
	}
	file := cfg.hostKeyFile(dir)
	text, err := privatefile.Preview(file, dir, maxHostKey, newHostKey)
	_, err = hostKey(file, text, err)
	return err
}

// door serves SSH. It owns a goroutine for each connection, and serve waits for all of them.
type door struct {
	host Host
	cfg  Config
	keys *authorizedKeys
	ssh  *ssh.ServerConfig
	life context.Context // of Serve's call

	strangers chan struct{} // has an element for each connection that has not logged in
	logins    chan struct{} // and for each that has
}

// serve accepts connections until life ends.
func (s *door) serve(listener net.Listener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	stop := context.AfterFunc(s.life, func() { _ = listener.Close() })
	defer stop()
	for {
		nc, err := listener.Accept()
		if s.life.Err() != nil {
			if err == nil {
				_ = nc.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			s.host.Logger.Warn("ssh: cannot accept a connection", "error", err)
			_ = pause.For(s.life, acceptPause) // if life has ended, the listener is closed
			continue
		}
		select {
		case s.strangers <- struct{}{}:
			conns.Go(func() { s.connection(nc) })
		default:
			_ = nc.Close() // there are too many
		}
	}
}

// authorize checks a client's key. The client then proves that it has it.
func (s *door) authorize(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	if !s.keys.has(key) {
		return nil, errors.New("the key is not authorized")
	}
	return &ssh.Permissions{Extensions: map[string]string{"key": ssh.FingerprintSHA256(key)}}, nil
}

// connection serves the connection of a stranger to its end.
func (s *door) connection(nc net.Conn) {
	defer nc.Close()
	defer context.AfterFunc(s.life, func() { _ = nc.Close() })()
	known := sync.OnceFunc(func() { <-s.strangers })
	defer known()
	_ = nc.SetDeadline(time.Now().Add(loginTimeout)) // fails only if it is closed
	conn, channels, requests, err := ssh.NewServerConn(nc, s.ssh)
	if err != nil {
		s.host.Logger.Debug("ssh: no login", "from", nc.RemoteAddr(), "error", err)
		return
	}
	defer conn.Close()
	select {
	case s.logins <- struct{}{}:
		defer func() { <-s.logins }()
		known()
	default:
		s.host.Logger.Warn("ssh: a login is refused, there are too many", "logins", maxLogins)
		return
	}
	_ = nc.SetDeadline(time.Time{})
	l := newLogin(s, conn)
	s.host.Logger.Info("ssh: login", "user", conn.User(), "key", conn.Permissions.Extensions["key"],
		"from", nc.RemoteAddr())
	l.serve(channels, requests)
}

// authorizedKeys are the keys in a file.
type authorizedKeys struct {
	file string
	warn func(text string)

	mu   sync.Mutex // guards the following
	info fs.FileInfo
	keys map[string]bool
}

// has reports whether a key is in the file.
func (k *authorizedKeys) has(key ssh.PublicKey) bool {
	if err := k.read(); err != nil {
		k.warn("ssh: all logins fail: " + err.Error())
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[string(key.Marshal())]
}

// read reads the file if it has changed.
func (k *authorizedKeys) read() error {
	file, err := os.Open(k.file)
	if err != nil {
		return fmt.Errorf("authorized keys: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("authorized keys: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if was := k.info; was != nil && os.SameFile(was, info) && was.ModTime().Equal(info.ModTime()) &&
		was.Size() == info.Size() {
		return nil
	}
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("authorized keys: %s is no regular file", k.file)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("authorized keys: others can write %s (mode %04o)", k.file, info.Mode().Perm())
	case info.Size() > maxKeysFile:
		return fmt.Errorf("authorized keys: %s has more than %d bytes", k.file, maxKeysFile)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxKeysFile))
	if err != nil {
		return fmt.Errorf("authorized keys: %w", err)
	}
	keys := map[string]bool{}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, _, options, _, err := ssh.ParseAuthorizedKey(line)
		switch {
		case err != nil:
			return fmt.Errorf("authorized keys: %s:%d: %w", k.file, number, err)
		case len(options) > 0:
			return fmt.Errorf("authorized keys: %s:%d: the options %.80q are not supported", k.file, number,
				strings.Join(options, ","))
		}
		keys[string(key.Marshal())] = true
	}
	k.keys, k.info = keys, info
	return nil
}

// hostKey returns the private key in the text of a file, which was read with err.
func hostKey(file string, text []byte, err error) (ssh.Signer, error) {
	if err != nil {
		return nil, fmt.Errorf("host key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("host key: %s: %w", file, err)
	}
	return signer, nil
}

// maxHostKey bounds the file of the host key, in bytes.
const maxHostKey = 64 << 10

func newHostKey() ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "stepmux manager")
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(block), nil
}
