package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/manager/access"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/standalone/githubpipeline"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

const (
	// awayLimit is how long a command waits for a manager that does not answer, for example while it restarts.
	awayLimit = time.Minute
	// answerTime is longer than a call takes that fails because the manager does not listen, or because its NATS cluster
	// does not answer, which takes 5 to 10 s.
	answerTime = 15 * time.Second
	// awayPause is the time between two attempts to reach the manager.
	awayPause = 200 * time.Millisecond
	// stuckLimit is how long a command that was ended by a signal waits for the reader of its output.
	stuckLimit = time.Second
)

const managerExitHelp = `Exit codes:
  0        done
  2        wrong usage
  3        no manager was found, it did not answer, or it has no such build
  129 130 143  ended by a signal: hang-up, Ctrl-C (SIGINT), SIGTERM; builds go on`

// managerFlag holds the flags that name the manager.
type managerFlag struct {
	path   string
	run    string // if set, the socket of a run, which is asked in place of a manager
	target access.Target
}

const (
	// tokenVar, caVar and fingerprintVar are the environment variables for a manager that is reached over TCP.
	tokenVar, caVar, fingerprintVar = "STEPMUX_TOKEN_FILE", "STEPMUX_MANAGER_CA", "STEPMUX_MANAGER_FINGERPRINT"
	// reachTimeout bounds the first connection to such a manager.
	reachTimeout = 15 * time.Second
)

// probeTimeout bounds the wait for the first bytes of a server on a unix socket.
const probeTimeout = 10 * time.Second

func (f *managerFlag) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.path, "manager", "", "socket of the manager, or https://HOST:PORT (default $"+managerVar+
		", else this user's manager, else "+systemSocket+")")
	fl.StringVar(&f.target.TokenFile, "token-file", "",
		"with https: file with the manager's token (default $"+tokenVar+")")
	fl.StringVar(&f.target.Fingerprint, "manager-fingerprint", "",
		"with https: `sha256:HEX`, the fingerprint of the manager's certificate, from its log with -v (default $"+
			fingerprintVar+")")
	fl.StringVar(&f.target.CAFile, "manager-ca", "",
		"with https: PEM file with the certificate authority of the manager (default $"+caVar+", else the system's)")
	grouped(fl, managerGroup)
}

// socket returns the socket of the manager, or its URL. The default is this user's socket if it exists, otherwise
// systemSocket.
func (f *managerFlag) socket() string {
	own := cmp.Or(f.path, ownSocket())
	if f.path != "" || os.Getenv(managerVar) != "" {
		return own
	}
	if _, err := os.Lstat(own); err != nil {
		if _, err := os.Lstat(systemSocket); err == nil {
			return systemSocket
		}
	}
	return own
}

// dial connects to the manager. The caller closes the connection.
func (f *managerFlag) dial(ctx context.Context, path string) (*grpc.ClientConn, error) {
	t := f.target
	if access.IsURL(path) && f.run == "" {
		t.URL = path
		t.TokenFile = cmp.Or(t.TokenFile, os.Getenv(tokenVar))
		if t.Fingerprint == "" && t.CAFile == "" {
			t.Fingerprint, t.CAFile = os.Getenv(fingerprintVar), os.Getenv(caVar)
		}
		ctx, cancel := context.WithTimeout(ctx, reachTimeout)
		defer cancel()
		conn, err := t.Dial(ctx)
		if errors.Is(err, access.ErrAway) {
			return nil, systemError(err)
		}
		return conn, err
	}
	if t != (access.Target{}) {
		return nil, errors.New("--token-file, --manager-fingerprint and --manager-ca are for a --manager https://HOST:PORT")
	}
	if dir := filepath.Dir(path); dir == control.Dir() { // another user may have made it, and listen there
		if err := control.CheckDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, systemError(err)
		}
	}
	probe, err := net.Dial("unix", path)
	if err != nil {
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			err = errno
		}
		if f.run != "" {
			return nil, systemError(f.noRun(path, err))
		}
		return nil, noManager(path, err)
	}
	defer probe.Close() // not needed any more
	switch said := greeted(ctx, probe); {
	case said == "HTTP/1.":
		return nil, systemError(fmt.Errorf("ask stepmux at %s: the process there speaks HTTP/1.1, as a stepmux run of an "+
			"older version does: ask it with the stepmux that started it", path))
	case said == "" && !errors.Is(ctx.Err(), context.Canceled):
		who := "the manager"
		if f.run != "" {
			who = "the stepmux run"
		}
		return nil, systemError(fmt.Errorf("%s at %s does not answer within %v: is its process stopped (SIGSTOP), or its "+
			"machine overloaded?", who, path, probeTimeout))
	}
	conn, err := pb.Dial(path)
	return conn, systemError(err)
}

// greeted returns the beginning of the answer to the greeting of a gRPC client: empty if nothing comes in time, HTTP/1.
// if the other end speaks HTTP/1.1. gRPC does not always see that answer: its next write may fail before, as the other
// end has closed the connection.
func greeted(ctx context.Context, conn net.Conn) string {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // it is open

	said := make([]byte, len("HTTP/1."))
	_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") // an error means that there is no answer
	n, err := io.ReadFull(conn, said)
	if n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
		return "ended" // the call will say why
	}
	return string(said[:n])
}

// noManager returns the error of a socket that cannot be connected to, because of err.
func noManager(path string, err error) error {
	_, _, notHostPort := net.SplitHostPort(path)
	switch {
	case strings.Contains(path, "://") || notHostPort == nil && !strings.Contains(path, "/"): // it may have a secret
		return errors.New("the address of a manager is https://HOST:PORT, or the path of its socket")
	case errors.Is(err, fs.ErrPermission):
		return systemError(fmt.Errorf("this user may not use the manager's socket %s (%w); start the manager with a "+
			"--socket-group of the user, or name another socket with --manager", path, err))
	default:
		return systemError(fmt.Errorf("no manager listens at %s (%w); start one with stepmux manager, or name its socket "+
			"with --manager", path, err))
	}
}

// noRun is noManager for the socket of a run.
func (f *managerFlag) noRun(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no stepmux run has its control socket at %s", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no process listens at %s: the stepmux run has died, or this is not a control socket", path)
	default:
		return f.unanswered(path, err)
	}
}

// unanswered returns the error of a call that a run or a manager did not answer, because of err.
func (f *managerFlag) unanswered(path string, err error) error {
	if f.run == "" {
		return fmt.Errorf("ask the manager at %s: %w", path, err)
	}
	return fmt.Errorf("ask stepmux run at %s: %w (only the user that started it, and root, may)", path, err)
}

// use calls do with a client of the manager. After a signal it waits at most stuckLimit for do to return.
func (f *managerFlag) use(cmd *cobra.Command, do func(context.Context, pb.ManagerClient) error) error {
	ctx, stop := endsignal.Until(cmd.Context())
	defer stop()
	path := cmp.Or(f.run, f.socket())
	conn, err := f.dial(ctx, path)
	if err != nil {
		return err
	}
	defer conn.Close()
	done := make(chan error, 1)
	go func() { done <- do(ctx, pb.NewManagerClient(conn)) }() // a blocked write ends with the process
	select {
	case err = <-done:
	case <-ctx.Done():
		timer := time.NewTimer(stuckLimit)
		defer timer.Stop()
		select {
		case err = <-done:
		case <-timer.C:
		}
	}
	if code := endsignal.Code(ctx); code != 0 {
		return withCode(code, nil)
	}
	if told, ok := status.FromError(err); ok && err != nil {
		if told.Code() == codes.InvalidArgument {
			return errors.New(told.Message())
		}
		err = errors.New(told.Message())
		if told.Code() == codes.Unavailable || told.Code() == codes.DeadlineExceeded {
			err = f.unanswered(path, err)
		}
	}
	if coded := (*exitError)(nil); errors.As(err, &coded) {
		return err
	}
	return systemError(err)
}

type submitFlags struct {
	managerFlag
	projectFlags
	sourceFlags
	runFiles
	labels    map[string]string
	retry     string
	wait      bool
	keepTrace bool
	inImage   bool
	whole     wholeFlags
}

func newSubmitCommand() *cobra.Command {
	var f submitFlags
	cmd := &cobra.Command{
		Use:   "submit [flags] FILE",
		Short: "Queue a build of a job's steps, or a pipeline, at a stepmux manager",
		Long: `Queue a build of the steps in FILE at a stepmux manager. FILE is a YAML document with a run: list, a shell
script, a .gitlab-ci.yml, a GitHub workflow (--format github), or - for standard input. A run: list with the keys image
and services runs in a container or a pod, as with 'stepmux run'. The build's ID is printed once the manager has stored
the request. With --wait, the command shows the log and exits with the build's exit code, as run does. If you interrupt
it, the build continues.

A .gitlab-ci.yml or a workflow is queued as a whole pipeline, unless --job-name chooses a job. Each job becomes a build
as soon as its needs have ended, with the files of --project (default: the current directory) and the artifacts that the
file gives it. A pipeline with a blocking manual job that --manual does not name is blocked there, until 'stepmux play'
starts the job. 'stepmux pipelines ID' shows its jobs, 'stepmux logs ID/JOB' their logs.

The manager keeps the files of --artifacts with the log: 'stepmux artifacts ID DIR' downloads them. With --trace it also
keeps the trace: 'stepmux trace get ID FILE' downloads it. With --wait, --output-file and --provenance do so at the end.

` + exitHelp,
		Example: `  stepmux submit --wait examples/hello.yml
  stepmux submit --project . --job-name test .gitlab-ci.yml
  stepmux submit --wait .gitlab-ci.yml
  stepmux submit --project . --artifacts dist --wait build.sh`,
		Args: arguments("FILE"),
		RunE: f.run,
	}
	fl := cmd.Flags()
	f.managerFlag.register(fl)
	f.registerProject(fl)
	f.registerSource(fl)
	grouped(fl, jobGroup)
	f.whole.registerSubmit(fl)
	fl.BoolVar(&f.inImage, "in-image", false, "run the jobs of a whole pipeline in containers of their own images")
	fl.BoolVar(&f.keepTrace, "trace", false, "let the manager keep the trace of the build")
	wordsFlag(fl, &f.passphrase, "passphrase-command",
		"`command` that prints the passphrase of --sign-key, the file %f; words are split at spaces")
	f.runFiles.register(fl)
	f.labels = map[string]string{}
	fl.Func("label",
		"run only on a VM that has the label `LABEL=VALUE` in the inventory; repeatable, the VM must have all",
		func(text string) error { return assignLabel(f.labels, text) })
	f.retry = "never"
	choiceFlag(fl, &f.retry, "retry", "when to run the build again: never, or lost (up to twice, if the VM or the "+
		"connection to it fails during the build)", "never", "lost")
	fl.BoolVar(&f.wait, "wait", false,
		"show the log on standard output and the ID on standard error, and exit with the build's exit code")
	f.registerBuild(fl)
	f.completeJobs(cmd, &f.project)
	return cmd
}

func (f *submitFlags) run(cmd *cobra.Command, args []string) error {
	reader, err := f.reader(cmd, f.project)
	if err != nil {
		return err
	}
	if err := f.checkProject(); err != nil {
		return err
	}
	if isWhole, err := f.isWhole(cmd, args[0]); err != nil {
		return err
	} else if isWhole {
		return f.runWhole(cmd, reader, args[0])
	}
	if f.traces+f.provenances != "" && !f.wait {
		return errors.New("--output-file and --provenance need --wait, as they are written when the build has ended; else " +
			"use --trace, and 'stepmux trace get' later")
	}
	remove, err := f.prepare(cmd.Context(), args, 1, f.passphrase)
	if err != nil {
		return err
	}
	defer remove()
	jobs, err := reader.files(args, false)
	if err != nil {
		return err
	}
	if len(jobs) > 1 {
		return fmt.Errorf("%s: the job has %d parallel builds, and submit queues one build: name one, such as "+
			"--job-name %q, or use stepmux run", args[0], len(jobs), jobs[0].ciJob)
	}
	dir, _ := filepath.Split(strings.ToValidUTF8(args[0], "?"))
	req := f.request(jobs[0], strings.TrimPrefix(jobs[0].name, dir))
	if usesActions(jobs[0].Steps) {
		src := reader.checkout()
		req.Services = &pb.BuildServices{
			Project: repositoryOf(cmd.Context(), src), Scopes: githubpipeline.CacheScopes(src),
		}
	}
	if _, err := proto.Marshal(req); err != nil { // as of text that is not UTF-8: gRPC would call that its own failure
		return fmt.Errorf("%s: it cannot be sent to the manager: %w", args[0], err)
	}
	return f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
		project, err := f.pack(ctx, checkout.Copy{}, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		defer project.Close()
		id, err := queueJob(ctx, m, project, req)
		if err != nil {
			return err
		}
		if !f.wait {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
			return err
		}
		return f.await(ctx, cmd, m, id)
	})
}

// await shows the log of a build, writes its files, and returns its exit code as an error.
func (f *submitFlags) await(ctx context.Context, cmd *cobra.Command, m pb.ManagerClient, id string) error {
	fmt.Fprintln(cmd.ErrOrStderr(), id)
	b, err := followLog(ctx, m, id, true, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		if ctx.Err() != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "stepmux: the build goes on; its log: stepmux logs -f %s\n", id)
		}
		return err
	}
	traced := f.traced(connector.Job{}, id, func(text string) { //nolint:contextcheck // it writes files only
		fmt.Fprintf(cmd.ErrOrStderr(), "stepmux: %s\n", termtext.Line(text))
	})
	if traced.Trace != nil {
		traced.OnTrace(getFile(ctx, m, &pb.ArtifactsRequest{Id: id, Trace: true}, traced.Trace))
	}
	return f.unlessLost(managedOutcome(b, cmd.ErrOrStderr()))
}

// request returns the request to the manager. Its job has the text of the steps with the keys of their container,
// which the manager reads.
func (f *submitFlags) request(of runJob, file string) *pb.SubmitRequest {
	return &pb.SubmitRequest{
		Job: of.Job.With(f.options()).With(&stepmuxv1.Job{Steps: []byte(of.whole), StepsFile: file}), Artifacts: f.artifacts,
		Labels: f.labels, RetryLost: f.retry == "lost", Trace: f.keepTrace || f.traces != "",
	}
}

// queueJob queues a build with its project, if it has one, and returns its ID. If an answer is lost, as when the
// manager restarts, it asks again. The request has a key, by which the manager knows it for two minutes.
func queueJob(ctx context.Context, m pb.ManagerClient, project *packed, req *pb.SubmitRequest) (string, error) {
	req.Key = rand.Text()
	if project != nil {
		req.Project, req.ProjectBytes = project.Digest, project.Size
	}
	var id string
	err := sendAgain(ctx, m, project, "the build may be queued: stepmux builds lists it then", func() error {
		resp, err := m.Submit(ctx, req)
		id = resp.GetId()
		return err
	})
	return id, err
}

// sendAgain sends a project, if there is one, and then a request, until the manager has answered. hint is for an answer
// that was lost.
func sendAgain(ctx context.Context, m pb.ManagerClient, project *packed, hint string, send func() error) error {
	var sent, lost time.Time // when the request was first sent, and when the manager was first lost
	for {
		err := keepProject(ctx, m, project)
		if err == nil {
			sent = cmp.Or(sent, time.Now())
			err = send()
		}
		if status.Code(err) != codes.Unavailable {
			return err
		}
		lost = cmp.Or(lost, time.Now())
		if time.Since(cmp.Or(sent, lost)) > awayLimit {
			if !sent.IsZero() {
				err = status.Errorf(codes.Unavailable, "%s; %s", status.Convert(err).Message(), hint)
			}
			return err
		}
		if err := pause.For(ctx, awayPause); err != nil {
			return err
		}
	}
}

// managedOutcome shows why a build failed, and returns its exit code as an error.
func managedOutcome(b *pb.Build, messages io.Writer) error {
	r := b.GetResult()
	if len(r.GetLeft()) > 0 {
		showError(messages, errors.New("may be left "+strings.Join(r.GetLeft(), "; ")))
	}
	if r.GetReason() == "" {
		return nil
	}
	failed := &instance.BuildError{
		Reason: instance.FailureReason(r.GetReason()), ExitCode: int(r.GetExitCode()), Err: errors.New(r.GetMessage()),
	}
	showError(messages, failed)
	code, _ := exitCode(failed)
	return withCode(code, nil)
}
