package embeddedvm

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// acceptRetry paces the accept loop while the machine is out of file descriptors.
const acceptRetry = 10 * time.Millisecond

// errDenied refuses a login. x/crypto does not send the text to the client.
var errDenied = errors.New("permission denied")

// Server is a running VM. Its methods may be called from any goroutine.
//
// It owns the accept loop, a goroutine for each connection, and those of channels and processes. Close and Shutdown
// wait for all of them.
type Server struct {
	config   Config
	ssh      *ssh.ServerConfig
	listener net.Listener
	hostKey  ssh.PublicKey
	client   ssh.Signer
	groups   groups

	running sync.WaitGroup // every goroutine of the server
	drained chan struct{}  // closed when running is done, after hangUp

	mu     sync.Mutex // guards the following
	closed bool
	conns  map[*conn]struct{}
	total  int // connections ever accepted
}

// Stat is a snapshot of a Server's counters.
type Stat struct {
	Conns      int // TCP connections open now
	TotalConns int // TCP connections ever accepted, whether or not they logged in
}

// Start starts a VM with a new client key. The caller must call Close or Shutdown.
func Start(config Config) (*Server, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("start VM: %w", err)
	}
	if len(config.HostKeys) == 0 {
		host, err := newSigner()
		if err != nil {
			return nil, fmt.Errorf("start VM: make host key: %w", err)
		}
		config.HostKeys = []ssh.Signer{host}
	}
	client, err := newSigner()
	if err != nil {
		return nil, fmt.Errorf("start VM: make client key: %w", err)
	}
	listener, err := net.Listen("tcp", config.Addr)
	if err != nil {
		return nil, fmt.Errorf("start VM: %w", err)
	}
	s := &Server{
		config:   config,
		ssh:      sshConfig(config, client.PublicKey()),
		listener: listener,
		hostKey:  config.HostKeys[0].PublicKey(),
		client:   client,
		drained:  make(chan struct{}),
		conns:    make(map[*conn]struct{}),
	}
	s.running.Go(s.accept)
	go func() {
		s.running.Wait() // not before hangUp: the accept loop is in it
		close(s.drained)
	}()
	return s, nil
}

func newSigner() (ssh.Signer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return ssh.NewSignerFromSigner(key)
}

// sshConfig returns x/crypto's configuration of the server: logins and host keys.
func sshConfig(config Config, client ssh.PublicKey) *ssh.ServerConfig {
	authorized := map[string]bool{string(client.Marshal()): true}
	for _, key := range config.AuthorizedKeys {
		authorized[string(key.Marshal())] = true
	}
	c := &ssh.ServerConfig{
		ServerVersion: "SSH-2.0-stepmux_vm",
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if !authorized[string(key.Marshal())] {
				return nil, errDenied
			}
			return &ssh.Permissions{}, nil
		},
	}
	if want := []byte(config.Password); len(want) > 0 {
		c.PasswordCallback = func(_ ssh.ConnMetadata, got []byte) (*ssh.Permissions, error) {
			if subtle.ConstantTimeCompare(got, want) != 1 {
				return nil, errDenied
			}
			return &ssh.Permissions{}, nil
		}
	}
	c.RekeyThreshold = config.RekeyThreshold
	for _, key := range config.HostKeys {
		c.AddHostKey(key)
	}
	return c
}

// Addr returns the host:port on which the VM listens.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// HostKey returns the first host key of the VM.
func (s *Server) HostKey() ssh.PublicKey { return s.hostKey }

// ClientSigner returns the key that was made for this VM's clients.
func (s *Server) ClientSigner() ssh.Signer { return s.client }

// Stat returns the counters.
func (s *Server) Stat() Stat {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stat{Conns: len(s.conns), TotalConns: s.total}
}

// CutAll breaks every TCP connection at once: the clients get a reset. New connections are still accepted.
func (s *Server) CutAll() {
	s.mu.Lock()
	cut := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		cut = append(cut, c)
	}
	s.mu.Unlock()
	for _, c := range cut {
		c.cut()
	}
}

// Close ends the VM now: it stops listening, closes all connections, kills the process groups of
// all commands, those of commands that have exited included, and waits for everything it started.
// It is idempotent and always returns nil.
func (s *Server) Close() error {
	s.hangUp()
	s.groups.killAll()
	<-s.drained
	return nil
}

// Shutdown ends the VM like Close, but first ends the stdin of all commands and lets them exit by themselves until ctx
// ends. If it had to kill some, it returns ctx's cause.
func (s *Server) Shutdown(ctx context.Context) error {
	s.hangUp()
	var err error
	select {
	case <-s.drained:
	case <-ctx.Done():
		err = fmt.Errorf("shut down VM: %w", context.Cause(ctx))
	}
	_ = s.Close() // always nil
	return err
}

// hangUp stops listening and closes all connections, without waiting.
func (s *Server) hangUp() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	_ = s.listener.Close() // an error means it is closed
	s.CutAll()
}

// accept serves connections until hangUp.
func (s *Server) accept() {
	for {
		nc, err := s.listener.Accept()
		switch {
		case err == nil:
			s.running.Go(func() { s.serve(nc) })
		case errors.Is(err, net.ErrClosed):
			return
		default:
			<-time.NewTimer(acceptRetry).C
		}
	}
}

// serve runs one connection to its end.
func (s *Server) serve(nc net.Conn) {
	c := newConn(s, nc)
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.conns[c] = struct{}{}
		s.total++
	}
	s.mu.Unlock()
	if closed {
		c.cut()
		return
	}
	c.run()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}
