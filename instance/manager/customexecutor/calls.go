package customexecutor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/pause"
)

const (
	// maxResponse bounds the file with the job, in bytes.
	maxResponse = 64 << 20
	// defaultTimeout is for a job whose file has no timeout, and leaseMargin how much longer its lease may last.
	defaultTimeout, leaseMargin = time.Hour, 10 * time.Minute
	// waitLines is the time between two lines about the wait for a slot.
	waitLines = 10 * time.Second
	// inputPiece is the largest piece of a script in a message.
	inputPiece = 64 << 10
)

func newLease() string { return "lease-" + strings.ToLower(rand.Text()) }

// job is the part of the file with the job that the driver reads. The variables of the environment can lie.
type job struct {
	ID     int64 `json:"id"`
	Runner struct {
		Timeout int64 `json:"timeout"` // in seconds
	} `json:"runner_info"`
}

// readJob reads the file with the job.
func readJob(name string) (job, error) {
	if name == "" {
		return job{}, errors.New("the variable JOB_RESPONSE_FILE is not set: this command is for GitLab Runner 16 or later")
	}
	file, err := os.Open(name)
	if err != nil {
		return job{}, fmt.Errorf("the file of JOB_RESPONSE_FILE: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxResponse+1))
	if err == nil && len(text) > maxResponse {
		err = fmt.Errorf("the job response has more than %d bytes", maxResponse)
	}
	var j job
	if err == nil {
		err = json.Unmarshal(text, &j)
	}
	if err != nil {
		return job{}, fmt.Errorf("the file of JOB_RESPONSE_FILE: %w", err)
	}
	return j, nil
}

// limit returns how long the job's lease may last.
func (j job) limit() time.Duration {
	timeout := defaultTimeout
	if j.Runner.Timeout > 0 && j.Runner.Timeout < int64(time.Duration(1<<62)/time.Second) {
		timeout = time.Duration(j.Runner.Timeout) * time.Second
	}
	return timeout + leaseMargin
}

// prepare waits for a slot, and tells how long the queue is.
func (d *driver) prepare(ctx context.Context) (int, error) {
	if d.lease == "" {
		return 0, fmt.Errorf("the variable %s is not set: config_exec must be stepmux, too", leaseVar)
	}
	j, err := readJob(d.Env("JOB_RESPONSE_FILE"))
	if err != nil {
		return 0, err
	}
	req := &pb.ReserveRequest{
		Lease: d.lease, Labels: map[string]string{}, Limit: durationpb.New(j.limit()), WithParent: true,
	}
	for _, label := range d.labels {
		name, value, ok := strings.Cut(label, "=")
		if !ok || name == "" {
			return 0, fmt.Errorf("--label %q: write NAME=VALUE", label)
		}
		req.Labels[name] = value
	}
	began, told := time.Now(), false
	for {
		resp, err := d.reserve(ctx, req)
		switch code := status.Code(err); {
		case err == nil:
			fmt.Fprintf(d.Stdout, "Job %d has a slot on %s", j.ID, resp.GetInstance())
			if waited := time.Since(began).Round(time.Second); waited > 0 {
				fmt.Fprintf(d.Stdout, " after %v", waited)
			}
			fmt.Fprintln(d.Stdout)
			if resp.GetMissing() != "" {
				fmt.Fprintf(d.Stdout, "WARNING: jobs with run:, artifacts or caches need stepmux on the VM: %s\n",
					resp.GetMissing())
			}
			return 0, nil
		case ctx.Err() != nil:
			return 0, fmt.Errorf("stopped while the job waited for a slot: %w", context.Cause(ctx))
		case code == codes.FailedPrecondition: // the job's labels are wrong, or the runner's
			return d.failed, errors.New(status.Convert(err).Message())
		case code == codes.Unavailable, code == codes.AlreadyExists: // it is restarted; or it has not noticed our end
			if code == codes.Unavailable && !told {
				fmt.Fprintln(d.Stdout, "The manager is being restarted, the job goes on waiting")
				told = true
			}
			if err := pause.For(ctx, awayPause); err != nil {
				return 0, err
			}
		default:
			return 0, errors.New(status.Convert(err).Message())
		}
	}
}

// reserve makes one call. It returns the last message.
func (d *driver) reserve(ctx context.Context, req *pb.ReserveRequest) (*pb.ReserveResponse, error) {
	manager, conn, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := manager.Reserve(ctx, req)
	if err != nil {
		return nil, err
	}
	said, at := int64(-1), time.Time{}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if resp.GetLease() != "" {
			return resp, nil
		}
		if resp.GetAhead() != said && time.Since(at) >= waitLines {
			said, at = resp.GetAhead(), time.Now()
			fmt.Fprintf(d.Stdout, "Waiting for a slot, %d ahead\n", said)
		}
	}
}

// run runs the script of a stage in a shell on the VM.
func (d *driver) run(ctx context.Context, script, stage string) (int, error) {
	if err := d.keepCode(0); err != nil { // that of an earlier stage
		return 0, err
	}
	if d.lease == "" {
		return 0, fmt.Errorf("the variable %s is not set: config_exec must be stepmux, too", leaseVar)
	}
	text, err := os.Open(script)
	if err != nil {
		return 0, fmt.Errorf("the script of the stage %s: %w", stage, err)
	}
	defer text.Close()
	manager, conn, err := d.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	exit, err := d.exec(ctx, manager, text)
	switch {
	case status.Code(err) == codes.Unavailable:
		return 0, fmt.Errorf("the manager ended while the script of the stage %s ran: the script is lost (%s)", stage,
			status.Convert(err).Message())
	case err != nil:
		return 0, fmt.Errorf("the stage %s: %s", stage, status.Convert(err).Message())
	case exit.GetError() != "":
		return 0, fmt.Errorf("the stage %s: %s", stage, exit.GetError())
	case exit.GetCode() == 0:
		return 0, nil
	}
	if err := d.keepCode(int(exit.GetCode())); err != nil {
		return 0, err
	}
	return d.failed, nil
}

// exec runs a shell with a script as its input. When ctx ends, the shell's process group gets SIGTERM and, after the
// grace, SIGKILL. Its output is shown to its end.
func (d *driver) exec(ctx context.Context, manager pb.ManagerClient, script io.Reader) (*pb.ExecResponse_Exit, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stream, err := manager.Exec(life)
	if err != nil {
		cancel()
		return nil, err
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	var mu sync.Mutex // held to send
	send := func(msg *pb.ExecRequest) bool {
		mu.Lock()
		defer mu.Unlock()
		return stream.Send(msg) == nil // Recv returns the error
	}
	send(&pb.ExecRequest{What: &pb.ExecRequest_Start_{
		Start: &pb.ExecRequest_Start{Lease: d.lease, Command: "bash", Tools: true},
	}})
	sending.Go(func() {
		buf := make([]byte, inputPiece)
		for {
			n, err := script.Read(buf)
			if n > 0 && !send(&pb.ExecRequest{What: &pb.ExecRequest_Input{Input: buf[:n]}}) {
				return
			}
			if err != nil && !errors.Is(err, io.EOF) { // bash must not take a part for the whole
				cancel()
				return
			}
			if err != nil {
				send(&pb.ExecRequest{What: &pb.ExecRequest_EndInput{EndInput: true}})
				return
			}
		}
	})
	sending.Go(func() {
		select {
		case <-ctx.Done():
		case <-life.Done():
			return
		}
		send(&pb.ExecRequest{What: &pb.ExecRequest_Signal{Signal: "TERM"}})
		if pause.For(life, d.grace) == nil {
			send(&pb.ExecRequest{What: &pb.ExecRequest_Signal{Signal: "KILL"}})
		}
	})
	for {
		msg, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = status.Error(codes.Unavailable, "the manager did not say how the script ended")
			}
			return nil, err
		}
		switch what := msg.GetWhat().(type) {
		case *pb.ExecResponse_Stdout:
			_, err = d.Stdout.Write(what.Stdout)
		case *pb.ExecResponse_Stderr:
			_, err = d.Stderr.Write(what.Stderr)
		case *pb.ExecResponse_Exit_:
			return what.Exit, nil
		}
		if err != nil {
			return nil, fmt.Errorf("write the job's log: %w", err)
		}
	}
}

// cleanup gives the slot back, to the next manager if this one ends first. Errors are not shown to the job's
// author, and not obeyed by GitLab Runner.
func (d *driver) cleanup(ctx context.Context) error {
	if d.lease == "" {
		return nil // config failed
	}
	for {
		resp, err := d.release(ctx)
		if status.Code(err) == codes.Unavailable {
			if err := pause.For(ctx, awayPause); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return errors.New(status.Convert(err).Message())
		}
		if len(resp.GetLeft()) > 0 {
			fmt.Fprintf(d.Stderr, "stepmux: may be left: %q\n", resp.GetLeft())
		}
		return nil
	}
}

// release makes one call.
func (d *driver) release(ctx context.Context) (*pb.ReleaseResponse, error) {
	manager, conn, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return manager.Release(ctx, &pb.ReleaseRequest{Lease: d.lease})
}
