package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/wire"
)

const (
	// maxHeldInput bounds the input of a command that its caller has sent and that it has not read. A caller that sends
	// more waits, and its signals with it.
	maxHeldInput = 8 << 20
	// maxSSHInput is the same for a command of an SSH client, whose signals do not wait. SSH's own window holds 2 MiB
	// more.
	maxSSHInput = 128 << 10
	// execPiece is the largest piece of output in a message.
	execPiece = 64 << 10
	// maxCommand bounds a command line, in bytes.
	maxCommand = 128 << 10
)

// command is a command on the VM of a lease.
type command struct {
	line  string
	tools bool
}

// toolsLine runs a command line with the tools of the VM's stepmux first in the PATH. It is for any login shell.
// GitLab's ssh executor runs its scripts by "bash -l", whose profile sets a new PATH: BASH_ENV, a file that bash reads
// after that, adds the tools again.
const toolsLine = `case $1 in "bash -l"|"bash --login") f=$STEPMUX_TOOLS/profile; ` +
	`[ ! -d "$STEPMUX_TOOLS" ] || [ -e "$f" ] || ` +
	`{ echo "case :\$PATH: in *:$STEPMUX_TOOLS:*) ;; *) PATH=$STEPMUX_TOOLS:\$PATH;; esac" >"$f.$$" && ` +
	`mv "$f.$$" "$f"; }; ` +
	`[ ! -e "$f" ] || export BASH_ENV="$f";; esac; ` +
	`PATH=${STEPMUX_TOOLS:+$STEPMUX_TOOLS:}$PATH; export PATH; unset STEPMUX_TOOLS; exec "${SHELL:-/bin/sh}" -c "$1"`

// text returns the command line for the login's shell.
func (c command) text() (string, error) {
	if c.line == "" || len(c.line) > maxCommand {
		return "", fmt.Errorf("a command line has 1 to %d bytes, not %d", maxCommand, len(c.line))
	}
	if !c.tools {
		return c.line, nil
	}
	line, err := wire.LoginLine("sh", "-c", toolsLine, "sh", c.line)
	return "exec " + line, err
}

// startCommand starts a command on the VM of a lease. The caller closes the connection and the client.
func (l *lease) startCommand(ctx context.Context, c command, stderr io.Writer) (
	conn *instance.CommandConn, client *instance.Client, err error,
) {
	text, err := c.text()
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	bare := l.bare
	l.mu.Unlock()
	if !bare { // the connection may be another by now
		missing, err := l.executor.Equip(ctx)
		if err != nil {
			return nil, nil, err
		}
		l.mu.Lock()
		l.bare = missing != ""
		l.mu.Unlock()
	}
	if client, err = l.executor.Client(ctx); err != nil {
		return nil, nil, err
	}
	if conn, err = client.Start(ctx, text, stderr); err != nil {
		_ = client.Close() // always nil
		return nil, nil, err
	}
	return conn, client, nil
}

// runCommand runs a command on the VM of a lease and waits for its end. When ctx ends, the command is ended. It returns
// its exit code, or why that is not known. The error is a *instance.BuildError.
func (l *lease) runCommand(
	ctx context.Context, c command, in *inputs, stdout, stderr io.Writer,
) (code int, err error) {
	conn, client, err := l.startCommand(ctx, c, stderr)
	if err != nil {
		return 0, err
	}
	defer func() { _, _ = conn.Close(), client.Close() }() // always nil
	var feeding sync.WaitGroup
	defer feeding.Wait()
	defer in.stop()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	feeding.Go(func() { in.feed(conn) })
	feeding.Go(func() { in.send(conn) })
	buf := make([]byte, execPiece)
	var failed error
	for {
		n, err := conn.Read(buf)
		if n > 0 && failed == nil {
			if _, failed = stdout.Write(buf[:n]); failed != nil {
				_ = conn.Close() // always nil
			}
		}
		if err != nil {
			break // Wait tells why
		}
	}
	err = conn.Wait(ctx)
	built, _ := errors.AsType[*instance.BuildError](err)
	switch {
	case failed != nil:
		return 0, failed
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case built != nil && built.Reason == instance.ScriptFailure:
		return built.ExitCode, nil
	default:
		return 0, err
	}
}

// inputs are the input and the signals of a command. Its methods may be called by any goroutine.
type inputs struct {
	most int // bytes that are held

	mu      sync.Mutex // guards the following
	changed *sync.Cond // of mu
	held    []byte
	ended   bool // no more input comes
	signals []string
	stopped bool // the command has ended
}

func newInputs(most int) *inputs {
	in := &inputs{most: most}
	in.changed = sync.NewCond(&in.mu)
	return in
}

// Write takes input. It waits while too much is held.
func (in *inputs) Write(p []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.held) > 0 && len(in.held)+len(p) > in.most && !in.stopped {
		in.changed.Wait()
	}
	if in.stopped || in.ended {
		return 0, io.ErrClosedPipe
	}
	in.held = append(in.held, p...)
	in.changed.Broadcast()
	return len(p), nil
}

// end says that no more input comes.
func (in *inputs) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = true
	in.changed.Broadcast()
}

// maxSignals bounds the signals that a command has not got yet. Later ones are dropped.
const maxSignals = 16

// signal takes a signal, by its name without SIG.
func (in *inputs) signal(name string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.signals) < maxSignals {
		in.signals = append(in.signals, name)
		in.changed.Broadcast()
	}
}

// stop ends feed and send, and all waits.
func (in *inputs) stop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stopped = true
	in.changed.Broadcast()
}

// feed passes the input on to a command, until stop is called.
func (in *inputs) feed(to *instance.CommandConn) {
	for {
		in.mu.Lock()
		for len(in.held) == 0 && !in.ended && !in.stopped {
			in.changed.Wait()
		}
		piece, ended, stopped := in.held, in.ended, in.stopped
		if len(piece) > execPiece {
			piece, ended = piece[:execPiece], false
		}
		in.mu.Unlock()
		if stopped {
			return
		}
		_, err := to.Write(piece) // fails only if the command is gone, or reads no more; then input is dropped
		in.mu.Lock()
		if in.held = in.held[len(piece):]; len(in.held) == 0 || err != nil {
			in.held = nil
		}
		ended = ended && len(in.held) == 0
		in.changed.Broadcast()
		in.mu.Unlock()
		if ended {
			_ = to.CloseWrite() // as above
			return
		}
	}
}

// send passes the signals on to a command, until stop is called.
func (in *inputs) send(to *instance.CommandConn) {
	for {
		in.mu.Lock()
		for len(in.signals) == 0 && !in.stopped {
			in.changed.Wait()
		}
		if in.stopped {
			in.mu.Unlock()
			return
		}
		name := in.signals[0]
		in.signals = in.signals[1:]
		in.mu.Unlock()
		_ = to.Signal(name) // it may have ended
	}
}

// Reserve gives a slot.
func (s *service) Reserve(req *pb.ReserveRequest, stream grpc.ServerStreamingServer[pb.ReserveResponse]) error {
	r := leaseRequest{
		name: req.GetLease(), labels: req.GetLabels(), instance: req.GetInstance(), limit: req.GetLimit().AsDuration(),
	}
	ctx := stream.Context()
	if req.GetWithParent() {
		var err error
		if r.holder, err = parentOf(ctx); err != nil {
			s.m.cfg.Logger.Warn("a lease cannot end with the process that holds it", "lease", r.name, "error", err)
		}
	}
	l, fresh, missing, err := s.m.reserve(ctx, r, func(ahead int) error {
		return stream.Send(&pb.ReserveResponse{Ahead: int64(ahead)})
	})
	if err != nil {
		return s.m.refused(ctx, err)
	}
	err = stream.Send(&pb.ReserveResponse{Lease: l.name, Instance: l.executor.Instance(), Missing: missing})
	if err != nil && fresh {
		_ = s.m.release(ctx, l, endReleased) // the caller does not know it; it ends by itself
	}
	return err
}

// refused returns the answer for an error about a lease.
func (m *Manager) refused(ctx context.Context, err error) error {
	failed, built := errors.AsType[*instance.BuildError](err)
	switch {
	case errors.Is(err, errLeaseName):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, errLeaseWaits):
		return status.Error(codes.AlreadyExists, err.Error())
	case errors.Is(err, errLeases), errors.Is(err, errLeaseElsewhere):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, instance.ErrUnknown):
		return status.Error(codes.FailedPrecondition, err.Error())
	case built && ctx.Err() == nil && m.takes.Err() == nil:
		return status.Error(codes.Internal, failed.Err.Error())
	}
	return m.failed(ctx, err)
}

// Release ends a lease.
func (s *service) Release(ctx context.Context, req *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	l := s.m.leaseOf(req.GetLease())
	if l == nil {
		if err := context.Cause(s.m.takes); err != nil { //nolint:contextcheck // the manager's end, not ctx's
			return nil, s.m.failed(ctx, err) // its record may stay, for the next manager
		}
		return &pb.ReleaseResponse{}, nil
	}
	if err := s.m.release(ctx, l, endReleased); err != nil {
		return nil, s.m.failed(ctx, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept {
		return nil, s.m.failed(ctx, fmt.Errorf("the record of the lease %s stays", l.name))
	}
	return &pb.ReleaseResponse{Left: l.left}, nil
}

// Exec runs a command.
func (s *service) Exec(stream grpc.BidiStreamingServer[pb.ExecRequest, pb.ExecResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return status.Error(codes.InvalidArgument, "the first message of Exec has no start")
	}
	l := s.m.findLease(start.GetLease())
	if l == nil {
		return status.Error(codes.NotFound, s.m.noLease(start.GetLease()))
	}
	c := command{start.GetCommand(), start.GetTools()}
	if _, err := c.text(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	in := newInputs(maxHeldInput)
	defer in.stop()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() { // it ends with the call
		for {
			msg, err := stream.Recv()
			switch what := msg.GetWhat().(type) {
			case *pb.ExecRequest_Input:
				_, _ = in.Write(what.Input) // the command may have ended
			case *pb.ExecRequest_EndInput:
				in.end()
			case *pb.ExecRequest_Signal:
				in.signal(what.Signal)
			}
			if errors.Is(err, io.EOF) {
				in.end()
			}
			if err != nil {
				return
			}
		}
	}()
	out := &execOutputs{stream: stream}
	code, err := l.runCommand(ctx, c, in, out.writer(false), out.writer(true))
	if s.m.takes.Err() != nil && err != nil {
		return status.Error(codes.Unavailable, "the manager ends")
	}
	if stream.Context().Err() != nil {
		return status.FromContextError(stream.Context().Err()).Err()
	}
	exit := &pb.ExecResponse_Exit{Code: int32(code)} // an exit code
	// The end of a lease kills its commands.
	if why := l.end(); why != "" && (err != nil || code != 0) {
		err = fmt.Errorf("the lease %s has ended: %s", l.name, why)
	}
	if err != nil {
		exit.Error = err.Error()
	}
	return stream.Send(&pb.ExecResponse{What: &pb.ExecResponse_Exit_{Exit: exit}})
}

// execOutputs sends the output of a command.
type execOutputs struct {
	mu     sync.Mutex // held to send
	stream grpc.BidiStreamingServer[pb.ExecRequest, pb.ExecResponse]
}

type execWriter struct {
	to     *execOutputs
	stderr bool
}

func (o *execOutputs) writer(stderr bool) io.Writer { return execWriter{o, stderr} }

// Write implements io.Writer.
func (w execWriter) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		piece := p[sent:min(sent+execPiece, len(p))]
		msg := &pb.ExecResponse{What: &pb.ExecResponse_Stdout{Stdout: piece}}
		if w.stderr {
			msg.What = &pb.ExecResponse_Stderr{Stderr: piece}
		}
		w.to.mu.Lock()
		err := w.to.stream.Send(msg)
		w.to.mu.Unlock()
		if err != nil {
			return sent, err
		}
		sent += len(piece)
	}
	return len(p), nil
}
