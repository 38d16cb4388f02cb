package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/job/service"
)

const (
	// defaultGrace is short enough that, together with all else, the VM is clean 10 s after the end.
	defaultGrace = 5 * time.Second
	// followersTimeout bounds the wait, after the last job, for callers to take the final states.
	followersTimeout = time.Second
)

// ServeConfig says where and how to serve.
type ServeConfig struct {
	// Socket is where to listen: <tmp>/gitlab-runner-steps/<build id>/<name>. If another user has
	// <tmp>/gitlab-runner-steps, gitlab-runner-steps-<uid> takes its place; the ready marker tells.
	// SocketOnStdin: the first line of stdio.In says it.
	Socket string

	// SecretOnStdin says that a line of stdio.In, the first or, after that of SocketOnStdin, the second, is a
	// secret: 43 to 128 characters of base64url. It is awaited for 30 s before anything is made. Calls that do
	// not carry it are refused. Without it whoever gets to the socket can use it, which is noted.
	SecretOnStdin bool
	// AllowUnauthenticated takes calls that do not carry the secret too, which is noted.
	AllowUnauthenticated bool

	// Grace is the time between SIGTERM and SIGKILL for the processes of jobs that run when serving
	// ends. If zero, 5 s. If negative, none: SIGKILL at once.
	Grace time.Duration

	// CacheDir is where steps that were fetched are kept, for all builds of our user on this VM. It is made
	// when the first is fetched. If empty, stepmux-steps in the user's cache directory.
	CacheDir string
	// Version is that of this program, for the traces of jobs.
	Version string
}

// Serve runs the step service of one build. It makes the build's private directory, listens on the
// socket in it, prints the ready marker on stdio.Err (nothing is printed before it) and serves until
//
//   - stdio.In ends, if it is a pipe or a socket: then it is the leash the manager holds;
//   - ctx ends; the caller lets SIGTERM, SIGINT and SIGHUP end it;
//   - the server fails, which is the only end after the marker that is an error by itself.
//
// At the end it accepts no more, stops the jobs (SIGTERM to their process groups, Grace, SIGKILL), gives
// callers a second to take the final states, and removes the directory, in which all state of the jobs
// is but for the steps that were fetched for them. It waits for all of that, which is bounded, and returns what
// could not be stopped or removed. That stdio.Err may have been closed meanwhile changes nothing: while Serve runs the process does not
// die of SIGPIPE. From its call on other processes of the user cannot look into this one (PR_SET_DUMPABLE,
// prctl(2)).
//
// Errors before the marker name what was found where the directory should be, or what is missing. The
// directory must not be in use by a living serve. Those of dead ones, beside it, are swept once this one
// is ready.
func Serve(ctx context.Context, stdio Stdio, cfg ServeConfig) error {
	if err := conceal(); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	//nolint:contextcheck // what it opens is closed whatever became of ctx
	return serve(ctx, stdio, cfg, func(dir string, options ...grpc.ServerOption) (*jobRunner, error) {
		return openJobs(dir, cfg.CacheDir, cfg.Version, options...)
	})
}

// jobRunner is what serves the calls that arrive on the socket.
type jobRunner struct {
	server *grpc.Server
	// stop ends all jobs: SIGTERM, after the grace SIGKILL. It waits for their end, which is bounded. How
	// they ended can still be asked.
	stop func(ctx context.Context, grace time.Duration) error
	// close gives up the rest.
	close func() error
}

// openRunner opens the job runner of a build. dir is the build's directory, which is locked; options are for
// the server.
type openRunner func(dir string, options ...grpc.ServerOption) (*jobRunner, error)

// serve is Serve with its job runner.
func serve(ctx context.Context, stdio Stdio, cfg ServeConfig, open openRunner) (err error) {
	defer withstandSIGPIPE()()
	options, err := cfg.takeLines(ctx, stdio.In)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	if cfg.Socket == "" {
		return nil
	}
	ctx, stopLeash, err := leash(ctx, stdio.In)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer stopLeash()
	dir, err := openSockDir(ctx, cfg.Socket)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	alive := context.WithoutCancel(ctx) // for what has to be done at the end
	defer func() {
		if removeErr := dir.remove(alive); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("serve: %w", removeErr))
		}
	}()
	jobs, err := open(dir.path(), options...)
	if err != nil {
		return fmt.Errorf("serve: %w", hint(err, dir.path()))
	}
	log := &notices{w: stdio.Err}
	ln, err := listen(dir.socket, log)
	if err != nil {
		return errors.Join(fmt.Errorf("serve: %w", err), end(alive, jobs, nil, cfg.Grace))
	}
	_, _ = io.WriteString(stdio.Err, wire.ReadyLine(dir.socket))
	if !cfg.SecretOnStdin || cfg.AllowUnauthenticated {
		log.printf("no secret guards this socket: every process of user %d can read, run and cancel jobs by it (--secret-stdin)", os.Geteuid())
	}

	var wg sync.WaitGroup // the sweep and the server
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wg.Go(func() {
		if err := dir.base.sweep(ctx); err != nil {
			log.printf("%v", err)
		}
	})
	wg.Go(func() {
		if err := jobs.server.Serve(ln); err != nil {
			cancel(&serverError{err})
		}
	})
	<-ctx.Done()
	var failed *serverError
	if errors.As(context.Cause(ctx), &failed) {
		err = fmt.Errorf("serve: accept on %s: %w", dir.socket, failed)
	}
	return errors.Join(err, end(alive, jobs, ln, cfg.Grace))
}

// takeLines reads the lines of stdin that cfg wants: it sets Socket, to none if nobody wants this serve, and
// returns what the secret means to the server.
func (cfg *ServeConfig) takeLines(ctx context.Context, in *os.File) ([]grpc.ServerOption, error) {
	if cfg.Socket != SocketOnStdin && !cfg.SecretOnStdin {
		return nil, nil
	}
	lines, err := openStdinLines(ctx, in)
	if err != nil {
		return nil, err
	}
	defer lines.close()
	if cfg.Socket == SocketOnStdin {
		if cfg.Socket, err = lines.socket(ctx); err != nil || cfg.Socket == "" {
			return nil, err
		}
	}
	if !cfg.SecretOnStdin {
		return nil, nil
	}
	secret, err := lines.secret(ctx, secretTimeout)
	if err != nil || cfg.AllowUnauthenticated {
		return nil, err
	}
	return []grpc.ServerOption{service.RequireSecret(secret)}, nil
}

// withstandSIGPIPE makes a write to a closed stdout or stderr an error and no more, until restore is
// called. Ignoring the signal instead would be inherited by every process that is started.
func withstandSIGPIPE() (restore func()) {
	sigpipe := make(chan os.Signal, 1) // a receiver will do, even one that is not listened to
	signal.Notify(sigpipe, unix.SIGPIPE)
	return func() { signal.Stop(sigpipe) }
}

// graceOf returns the time between SIGTERM and SIGKILL that a config asks for, or otherwise.
func graceOf(configured, otherwise time.Duration) time.Duration {
	if configured == 0 {
		return otherwise
	}
	return max(configured, 0)
}

// serverError is the cause of a context that ended because the server did.
type serverError struct{ err error }

func (e *serverError) Error() string { return e.err.Error() }
func (e *serverError) Unwrap() error { return e.err }

// end stops the jobs while the server goes on for those who follow them, then the server. ln is nil if
// it does not serve yet.
func end(ctx context.Context, jobs *jobRunner, ln *peerListener, grace time.Duration) error {
	var wg sync.WaitGroup
	drained := make(chan struct{})
	wg.Go(func() {
		defer close(drained)
		jobs.server.GracefulStop() // no new calls from here on; returns when those at work have ended
	})
	err := jobs.stop(ctx, graceOf(grace, defaultGrace))
	timer := time.NewTimer(followersTimeout)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
		// GracefulStop and Stop both wait for connections on which nothing was said yet.
		if ln != nil {
			ln.closeConns()
		}
		jobs.server.Stop()
	}
	wg.Wait()
	if err = errors.Join(err, jobs.close()); err != nil {
		return fmt.Errorf("serve: stop jobs: %w", err)
	}
	return nil
}
