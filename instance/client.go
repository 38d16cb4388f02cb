package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/script"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/pool"
)

// Client gives a runner that drives its builds itself access to the build's instance. It has the methods of GitLab
// Runner's executors.Client, and replaces a client with a connection of its own: all clients of an instance share one
// connection.
//
// Every error is a [*BuildError], except errors of the connections that it returns. It is safe for concurrent use.
// [Executor.Client] makes one; Close ends it.
type Client struct {
	lease   *pool.Lease[*mux.Conn]
	owner   *Executor
	slot    *slot
	life    context.Context // ends with Close
	end     context.CancelCauseFunc
	running sync.WaitGroup // calls of Run, and starts of commands

	mu    sync.Mutex // guards the following, and the end of life
	conns map[io.Closer]struct{}

	closing sync.Mutex // held by Close
}

// RunOptions describes a command for Run. It has the fields of GitLab Runner's type of the same name, and can be
// converted from that.
type RunOptions struct {
	// Command is a command line for the login's shell.
	Command string
	// Stdin, if not nil, is its standard input. Run does not wait for a Read that is under way when the command ends.
	Stdin io.Reader
	// Stdout and Stderr receive its output as it arrives, each from one goroutine, or both from one if they are the same
	// Writer. If nil, the output is discarded. If a Write fails, the command is stopped.
	Stdout, Stderr io.Writer
}

// errClientClosed is the cause of the errors of a closed Client.
var errClientClosed = fmt.Errorf("the build's client is closed: %w", net.ErrClosed)

// Client returns a client for the instance that Prepare has chosen. ctx bounds the wait for its connection. The
// caller calls Close; Cleanup closes it too.
func (e *Executor) Client(ctx context.Context) (_ *Client, err error) {
	ctx, finish := bind(ctx, e.life, ErrCleanedUp)
	defer finish(&err)
	e.mu.Lock()
	s, prepared := e.slot, e.lease != nil || e.resumed && e.slot != nil && e.slot.placement.Cluster == nil
	e.mu.Unlock()
	if !prepared {
		return nil, errors.New("instance: Client before Prepare, or in a pod")
	}
	// A lease of its own: Prepare's connection may have died since.
	lease, err := e.leaseToStart(ctx, s, stay)
	if err != nil {
		return nil, err
	}
	c := &Client{lease: lease, owner: e, slot: s, conns: make(map[io.Closer]struct{})}
	c.life, c.end = context.WithCancelCause(context.Background())
	if !e.keep(func() { e.clients, e.stays = append(e.clients, c), true }) {
		return nil, errors.Join(ErrCleanedUp, c.Close())
	}
	return c, nil
}

// Equip finds the stepmux of the instance, uploads it if Config.Bootstrap has it, and starts its relay, as Connect
// does. Commands of a Client then start through the relay, which gives them the variable STEPMUX_TOOLS: a directory
// with programs named gitlab-runner and step-runner. Calls for one connection share the work. missing is the reason
// why there is no stepmux; commands then use sessions.
func (e *Executor) Equip(ctx context.Context) (missing string, err error) {
	ctx, finish := bind(ctx, e.life, ErrCleanedUp)
	defer finish(&err)
	e.mu.Lock()
	s := e.slot
	e.mu.Unlock()
	if s == nil || s.placement.Cluster != nil {
		return "", errors.New("instance: Equip before Prepare, or in a pod")
	}
	if err := s.placement.linux(); err != nil {
		return "", err
	}
	lease, err := e.leaseToStart(ctx, s, stay)
	if err != nil {
		return "", err
	}
	defer lease.Release()
	cfg := e.provider.cfg
	return connector.Equip(ctx, connector.Config{
		Lease: sharedConn{lease}, VM: s.placement.vm, Runner: s.placement.Runner, Options: s.placement.Options,
		Route: cfg.Route, Bootstrap: cfg.Bootstrap, Version: cfg.Version, ReadyTimeout: cfg.ReadyTimeout,
		Logger: cfg.Logger.With("instance", s.placement.ID),
	})
}

// do calls call with a context that ends with ctx and at Close, which waits for call. It turns the error into a
// BuildError.
func (c *Client) do(ctx context.Context, call func(ctx context.Context) error) (err error) {
	c.mu.Lock()
	if c.life.Err() != nil {
		c.mu.Unlock()
		return &BuildError{Reason: RunnerSystemFailure, Err: errClientClosed}
	}
	c.running.Add(1)
	c.mu.Unlock()
	defer c.running.Done()
	ctx, finish := bind(ctx, c.life, errClientClosed)
	defer finish(&err)
	return call(ctx)
}

// Run runs a command and waits for its end. It returns nil for exit code 0. For another code it returns a
// [*BuildError] with that code and the reason ScriptFailure. When ctx ends, or the Client is closed, the command's
// process group on the instance gets SIGTERM and, after Config.Grace, SIGKILL; Run waits for that.
//
// In a build that lingers, the command survives a lost connection, like the script of [Executor.Run]. It starts once
// its standard input, at most 8 MiB, has been read to the end.
func (c *Client) Run(ctx context.Context, opts RunOptions) error {
	return c.do(ctx, func(ctx context.Context) error {
		if c.owner.linger(c.slot) > 0 {
			stdin, err := readInput(ctx, opts.Stdin)
			if err != nil {
				return err
			}
			return c.owner.runLingering(ctx, lingeringScript{
				line: opts.Command, stdin: stdin, stdout: opts.Stdout, stderr: opts.Stderr,
			})
		}
		starter, err := c.owner.starter(ctx, c.slot, c.lease)
		if err != nil {
			return err
		}
		cfg := &c.owner.provider.cfg
		command := script.Command{
			Line: opts.Command, Grace: cfg.Grace, ReadyTimeout: cfg.ReadyTimeout, Stderr: opts.Stderr,
		}
		return exitError(script.RunCommand(ctx, starter, command, opts.Stdin, opts.Stdout))
	})
}

// DialRun starts a command and returns a connection to its standard input and output, a [*CommandConn]. Its standard
// error goes to the build's log. ctx bounds the start only. The command ends with the connection, or by itself.
func (c *Client) DialRun(ctx context.Context, command string) (net.Conn, error) {
	conn, err := c.DialCommand(ctx, command, c.owner.log)
	if err != nil {
		return nil, err // not a nil *CommandConn
	}
	return conn, nil
}

// DialCommand is DialRun, but stderr receives the standard error. One goroutine writes to stderr, as output arrives.
func (c *Client) DialCommand(ctx context.Context, command string, stderr io.Writer) (conn *CommandConn, err error) {
	return c.start(ctx, script.Command{Line: command, Stderr: stderr})
}

// Start is DialCommand for a command that can be sent signals, and whose standard input can end (CloseWrite) while it
// runs on. The bytes of both directions are not changed.
func (c *Client) Start(ctx context.Context, command string, stderr io.Writer) (conn *CommandConn, err error) {
	return c.start(ctx, script.Command{Line: command, Stderr: stderr, HalfClose: true})
}

func (c *Client) start(ctx context.Context, command script.Command) (conn *CommandConn, err error) {
	command.Grace, command.ReadyTimeout = c.owner.provider.cfg.Grace, c.owner.provider.cfg.ReadyTimeout
	err = c.do(ctx, func(ctx context.Context) error {
		starter, err := c.owner.starter(ctx, c.slot, c.lease)
		if err != nil {
			return err
		}
		started, err := script.StartCommand(ctx, starter, command)
		if err != nil {
			return err
		}
		conn = &CommandConn{started, clientConn{c, clientAddr{"exec", command.Line}}}
		return c.adopt(conn)
	})
	return conn, err
}

// Dial connects to addr as seen from the instance, by the forwarding of its sshd: network is "tcp", "tcp4" or "tcp6",
// with addr host:port, or "unix", with addr a path. The connection also has CloseWrite. DialTimeout bounds Dial.
func (c *Client) Dial(network, addr string) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.owner.provider.cfg.DialTimeout)
	defer cancel()
	err = c.do(ctx, func(ctx context.Context) error {
		stream, err := c.lease.Conn().Dial(ctx, network, addr)
		if err != nil {
			return dialHint(network, err)
		}
		conn = &dialedConn{stream, clientConn{c, clientAddr{network, addr}}}
		return c.adopt(conn)
	})
	return conn, err
}

// dialHint adds a hint to the server's refusal.
func dialHint(network string, err error) error {
	refusal := (*ssh.OpenChannelError)(nil)
	switch {
	case !errors.As(err, &refusal):
	case network == "unix":
		err = fmt.Errorf("%w (does a process listen there? "+
			"Does the instance's sshd_config have AllowStreamLocalForwarding yes?)", err)
	case errors.Is(err, mux.ErrForbidden):
		err = fmt.Errorf("%w (the instance's sshd_config needs AllowTcpForwarding yes, "+
			"and PermitOpen must allow the address)", err)
	}
	return err
}

// adopt registers conn, so that Close ends it. If the Client is closed already, adopt closes conn.
func (c *Client) adopt(conn io.Closer) error {
	c.mu.Lock()
	if c.life.Err() == nil {
		c.conns[conn] = struct{}{}
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	_ = conn.Close() // always nil
	return errClientClosed
}

// Close ends the commands and connections that the Client has started, waits for their end, but no longer than
// Config.Grace and a second, and releases its share of the instance's connection. Calls under way return an error.
// Idempotent: later calls wait for the first. It returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	c.end(errClientClosed)
	conns := slices.Collect(maps.Keys(c.conns))
	c.mu.Unlock()
	c.closing.Lock()
	defer c.closing.Unlock()
	var ending sync.WaitGroup
	for _, conn := range conns {
		ending.Go(func() { _ = conn.Close() }) // always nil
	}
	ending.Wait()
	c.running.Wait()
	c.lease.Release()
	c.owner.forget(c)
	return nil
}

// forget removes a closed client from the executor's list: a build may make many, one after the other.
func (e *Executor) forget(c *Client) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := slices.Index(e.clients, c); i >= 0 {
		e.clients = slices.Delete(slices.Clone(e.clients), i, i+1) // Cleanup may be using the slice
	}
}

// closeClients closes clients concurrently and returns a channel that is closed when all are closed.
func closeClients(clients []*Client) <-chan struct{} {
	var closing sync.WaitGroup
	for _, c := range clients {
		closing.Go(func() { _ = c.Close() }) // always nil
	}
	closed := make(chan struct{})
	go func() { // ends when they do, which is bounded
		defer close(closed)
		closing.Wait()
	}()
	return closed
}
