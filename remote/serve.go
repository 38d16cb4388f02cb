package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/builduser"
	"github.com/stepmux/stepmux/remote/cgroup"
	"github.com/stepmux/stepmux/remote/job/service"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/socketdir"
	"github.com/stepmux/stepmux/remote/stale"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
)

const (
	// defaultGrace is half of the 10 s in which a VM is cleaned up after a build: the rest of the clean-up needs time
	// too.
	defaultGrace = 5 * time.Second
	// secretTimeout bounds the wait for the secret. A manager sends it together with the start of serve.
	secretTimeout = 30 * time.Second
)

// ServeConfig says where and how to serve.
type ServeConfig struct {
	// Socket is the path to listen on. If it has the form <tmp>/gitlab-runner-steps/<build id>/<name>, Serve makes the
	// directory; if another user owns <tmp>/gitlab-runner-steps, Serve takes gitlab-runner-steps-<uid> instead. For any
	// other path the caller has made the directory: private (0700), ours and empty. If it is not, Serve makes another
	// directory, and a notice says why. The ready marker has the final path. SocketOnStdin: the path is the first line
	// of stdio.In.
	Socket string

	// SecretOnStdin says that stdio.In begins with a secret, on its first line or, with SocketOnStdin, on its second:
	// 43 to 128 characters of base64url. Serve waits for it for 30 s before it makes any file, and refuses calls that
	// do not carry it. Without a secret every process that can open the socket can use it; a notice says so.
	SecretOnStdin bool
	// QuietWithoutSecret omits the notice that no secret guards the socket, for a manager that knows no secrets.
	QuietWithoutSecret bool
	// AllowUnauthenticated also accepts calls without the secret; a notice says so.
	AllowUnauthenticated bool

	// Options are the options of the VM. Socket stands in the place of TempDir. Serve becomes BuildUser before it makes
	// any file, and fails at once if Limits are not available. Linger is how long it goes on while no manager is attached.
	// Managers attach by the service Attachment, with the secret. So SecretOnStdin must be set, and Socket must be that of
	// a build. Without Linger stdio.In is the leash.
	vmconfig.Options
	// Detach is the command line, without its first word, by which this program calls Serve with the same configuration
	// but without Detach. With Linger, Serve starts that command in a session of its own, and returns once it listens,
	// or once another serve of the build is found that listens already. If nil, Serve itself lingers.
	Detach []string

	// Grace is the time between SIGTERM and SIGKILL for the processes of jobs that run when serving ends. If zero, 5 s.
	// If negative, none: SIGKILL at once.
	Grace time.Duration

	// CacheDir keeps the fetched steps, for all builds of our user on this VM. It is made when the first step is
	// fetched. If empty, it is stepmux-steps in the user's cache directory.
	CacheDir string
	// Policy has settings that replace those of all jobs.
	Policy engine.Policy
	// Actions says how GitHub Actions run.
	Actions action.Config
	// Version is the version of this program, for the traces of jobs.
	Version string
	// Ready is called once the ready marker of a build is printed. Optional.
	Ready func()

	// Reuse says that a relay has started this process and that descriptor 3 is a socket to it (pipe.ControlPair). After
	// a build that has left nothing Serve then waits for another one, whose files it puts in the place of stdio, and
	// serves it. Needs SocketOnStdin.
	Reuse bool
	reuse *reuse
}

// Serve runs the step service of one build. It makes the build's private directory, or takes the one that its caller
// made, listens on the socket in it, prints the ready marker on stdio.Err (nothing is printed before it) and serves
// until
//
//   - stdio.In ends, if it is a pipe or a socket: then it is the leash that the manager holds. With Linger there is no
//     leash: Serve ends when no manager was attached for that time, or when its manager says so;
//   - ctx ends; the caller lets SIGTERM, SIGINT and SIGHUP end it;
//   - the server fails; this is the only end after the marker that is an error by itself.
//
// At the end it accepts no more calls, stops the jobs (SIGTERM to their process groups, Grace, SIGKILL), gives callers
// a second to take the final states, and removes the directory with all state of the jobs except for fetched steps. It
// waits for all of that, which is bounded, and returns an error for each part that could not be stopped or removed.
// While Serve runs the process does not die of SIGPIPE, so stdio.Err may be closed. From its call on other processes of
// the user cannot look into this one (PR_SET_DUMPABLE, prctl(2)).
//
// An error before the marker names the missing file, or the file that stands in the place of the directory. The
// directory must not be in use by a living serve. Once it is ready, Serve ends the processes of dead serves and removes
// their directories (package stale). In a directory that the caller made, Serve removes only the files that it made
// itself.
func Serve(ctx context.Context, stdio Stdio, cfg ServeConfig) error {
	if err := pipe.Conceal(); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	if _, err := os.Lstat("/proc/self"); err != nil { // neither jobs nor the clean-up work without it
		return fmt.Errorf("serve: is /proc mounted on this machine? %w", err)
	}
	jobs, err := cfg.jobs()
	if err == nil {
		err = cfg.checkOptions()
	}
	if err == nil && cfg.Limits != (vmconfig.Limits{}) {
		err = cgroup.Check(cfg.Limits)
	}
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	if cfg.Linger > 0 && cfg.Detach != nil {
		return cfg.detach(ctx, stdio)
	}
	if cfg.Reuse {
		if cfg.reuse, err = newReuse(&cfg); err != nil {
			return fmt.Errorf("serve: %w", err)
		}
		defer cfg.reuse.close()
	}
	for {
		//nolint:contextcheck // the jobs are closed even if ctx has ended
		err := serve(ctx, stdio, cfg, func(init *proc.Init, dir string, options ...grpc.ServerOption) (*jobRunner, error) {
			return openJobs(jobs, init, dir, cfg, options...)
		})
		if err != nil || !cfg.reuse.next(ctx) {
			return err
		}
	}
}

// jobRunner serves the calls that arrive on the socket.
type jobRunner struct {
	server *grpc.Server
	// warm does the work that can wait until after the ready marker.
	warm func()
	// stop ends all jobs: SIGTERM, after the grace SIGKILL. It waits for their end, which is bounded. Callers can still
	// ask for their final states.
	stop func(ctx context.Context, grace time.Duration) error
	// close closes the job store and the cache of steps.
	close func() error
	// clean reports, after close, whether all jobs have ended by themselves and were isolated.
	clean func() bool
}

// openRunner opens the job runner of a build, which then owns init. dir is the build's directory, which is locked;
// options are for the server.
type openRunner func(init *proc.Init, dir string, options ...grpc.ServerOption) (*jobRunner, error)

// serve is Serve with its job runner.
func serve(ctx context.Context, stdio Stdio, cfg ServeConfig, open openRunner) (err error) {
	defer pipe.WithstandSIGPIPE()()
	openDir := socketdir.Open // for a manager of ours
	if cfg.Socket != SocketOnStdin && !socketdir.IsBuild(cfg.Socket) {
		openDir = socketdir.OpenGiven
	}
	options, err := cfg.takeLines(ctx, stdio.In)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	if cfg.Socket == "" {
		return nil
	}
	if cfg.Linger > 0 {
		if err := cfg.checkOptions(); err != nil {
			return fmt.Errorf("serve: %w", err)
		}
		if cfg.OtherUser() && cfg.findServed(ctx, stdio.Err) { // a second serve would get another user
			return nil
		}
	}
	hold, err := cfg.hold(ctx, stdio)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer hold.release()
	ctx = hold.life //nolint:contextcheck // made of ctx
	user, init, err := become(cfg.Options)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer user.Close()
	defer func() { _ = init.Close() }() // for returns before the Close below, whose error is returned
	dir, err := openDir(ctx, cfg.Socket)
	if err != nil && cfg.Linger > 0 && cfg.findServed(ctx, stdio.Err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	alive := context.WithoutCancel(ctx) // for the clean-up
	defer func() {
		if removeErr := dir.Remove(alive); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("serve: %w", removeErr))
		}
	}()
	if err := user.UseHome(dir.Path()); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	jobs, err := open(init, dir.Path(), append(options, hold.options()...)...)
	if err != nil {
		return fmt.Errorf("serve: %w", oserr.Hint(err, dir.Path()))
	}
	hold.register(jobs.server)
	log := pipe.NewNotices(hold.notices)
	listener, err := socketdir.Listen(dir.Socket(), func(err error) { log.Printf("refused a connection: %v", err) })
	if err != nil {
		return errors.Join(fmt.Errorf("serve: %w", err), end(alive, jobs, nil, cfg.Grace))
	}
	cfg.announce(stdio.Err, dir, log)
	ln := service.Track(listener)
	var wg sync.WaitGroup // the sweep and the server
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(jobs.warm)
	if !stale.StartedByRelay() { // else each of n builds would look at the directories of all
		wg.Go(func() { sweep(ctx, dir, log) })
	}
	failed := make(chan error, 1)
	wg.Go(func() { failed <- jobs.server.Serve(ln) })
	select {
	case <-ctx.Done():
	case err := <-failed:
		err = fmt.Errorf("serve: accept on %s: %w", dir.Socket(), err)
		return errors.Join(err, end(alive, jobs, ln, cfg.Grace))
	}
	began := time.Now()
	err = end(alive, jobs, ln, cfg.Grace)
	cfg.reuse.ended(hold.life, began, jobs, !ln.Forced())
	return err
}

// announce says that the socket accepts calls, and warns of a state of it that the caller may not expect.
func (cfg *ServeConfig) announce(out io.Writer, dir *socketdir.Dir, log *pipe.Notices) {
	_, _ = io.WriteString(out, wire.ReadyLine(dir.Socket()))
	if cfg.Ready != nil {
		cfg.Ready()
	}
	if why := dir.Moved(); why != nil {
		log.Printf("cannot use the directory of the socket, made %s instead: %v", dir.Path(), why)
	}
	if cfg.AllowUnauthenticated || !cfg.SecretOnStdin && !cfg.QuietWithoutSecret {
		log.Printf("no secret guards this socket: every process of user %d can read, run and cancel jobs by it "+
			"(--secret-stdin)", os.Geteuid())
	}
}

// sweep ends the processes of dead serves beside dir, and removes their directories.
func sweep(ctx context.Context, dir *socketdir.Dir, log *pipe.Notices) {
	err := stale.EndProcesses(ctx, filepath.Dir(filepath.Dir(dir.Path())))
	if err = errors.Join(err, dir.Sweep(ctx)); err != nil {
		log.Printf("%v", err)
	}
}

// become turns this process into the build user of o, if that names one. It returns the user, and the init of its
// processes with the limits of o. The caller closes both, the init first.
func become(o vmconfig.Options) (user *builduser.User, init *proc.Init, err error) {
	init = &proc.Init{Limits: o.Limits}
	if user, err = builduser.Take(o.BuildUser); user == nil {
		return nil, init, err
	}
	init.Keep = user.Lock()
	if err = user.EndOthers(); err == nil {
		err = init.Fork(o.Isolation, user.Credential())
	}
	if err == nil {
		err = user.Become()
	}
	if err != nil {
		_ = init.Close() // the caller needs err
		user.Close()
		return nil, nil, err
	}
	return user, init, nil
}

// takeLines reads the lines of stdin that cfg asks for, and returns the server's options for the secret. It sets
// Socket, or clears it if stdin ends first: then the manager does not need this prestarted serve.
func (cfg *ServeConfig) takeLines(ctx context.Context, in *os.File) ([]grpc.ServerOption, error) {
	if cfg.Socket != SocketOnStdin && !cfg.SecretOnStdin {
		return nil, nil
	}
	lines, err := pipe.OpenLines(ctx, in)
	if err != nil {
		return nil, err
	}
	defer lines.Close()
	if cfg.Socket == SocketOnStdin {
		if cfg.Socket, err = lines.Socket(ctx); err != nil || cfg.Socket == "" {
			return nil, err
		}
	}
	if !cfg.SecretOnStdin {
		return nil, nil
	}
	secret, err := lines.Secret(ctx, secretTimeout)
	if err != nil || cfg.AllowUnauthenticated {
		return nil, err
	}
	return []grpc.ServerOption{service.RequireSecret(secret)}, nil
}

// end stops the jobs and then the server. ln is nil if the server does not serve yet.
func end(ctx context.Context, jobs *jobRunner, ln *service.Listener, grace time.Duration) error {
	err := service.Stop(jobs.server, ln, func() error { return jobs.stop(ctx, max(cmp.Or(grace, defaultGrace), 0)) })
	if err = errors.Join(err, jobs.close()); err != nil {
		return fmt.Errorf("serve: stop jobs: %w", err)
	}
	return nil
}
