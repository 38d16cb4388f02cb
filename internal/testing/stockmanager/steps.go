package stockmanager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// cancelTimeout bounds the call Cancel, and the call Close.
const cancelTimeout = 5 * time.Second

var exitStatus = regexp.MustCompile(`exit status (\d+)$`)

// run sends the job, follows its log and returns its status.
func (m *Manager) run(ctx context.Context, client *ssh.Client, s *serving, job Job, log io.Writer) (Result, error) {
	conn, err := grpc.NewClient("passthrough:step-runner",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return m.dialProxy(client, s, log) }))
	if err != nil {
		return Result{}, err
	}
	defer conn.Close()
	service := runnerproto.NewStepRunnerClient(conn)
	if _, err := service.Run(ctx, &runnerproto.RunRequest{
		Id: job.ID, WorkDir: job.BuildDir, Env: map[string]string{}, Steps: "{}\n---\nrun: " + job.Run + "\n",
		Job: &runnerproto.Job{BuildDir: job.BuildDir, Variables: job.Variables},
	}); err != nil {
		return Result{}, fmt.Errorf("run: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer cancel()
		_, _ = service.Close(ctx, &runnerproto.CloseRequest{Id: job.ID}, grpc.WaitForReady(false))
	}()
	followed, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		select {
		case <-job.Cancel:
			ctx, cancel := context.WithTimeout(followed, cancelTimeout)
			defer cancel()
			_, _ = service.Cancel(ctx, &runnerproto.CancelRequest{Id: job.ID})
		case <-followed.Done():
		}
	})
	if err := follow(ctx, service, job.ID, log); err != nil {
		return Result{}, fmt.Errorf("follow: %w", err)
	}
	resp, err := service.Status(ctx, &runnerproto.StatusRequest{Id: job.ID})
	if err != nil || len(resp.GetJobs()) != 1 {
		return Result{}, errors.Join(errors.New("the job has no status"), err)
	}
	status := resp.GetJobs()[0]
	result := Result{State: status.GetStatus(), Message: status.GetMessage()}
	if match := exitStatus.FindStringSubmatch(result.Message); match != nil {
		result.ExitCode, err = strconv.Atoi(match[1])
	}
	return result, err
}

// follow copies the job's log from its beginning to its end.
func follow(ctx context.Context, service runnerproto.StepRunnerClient, id string, log io.Writer) error {
	stream, err := service.FollowLogs(ctx, &runnerproto.FollowLogsRequest{Id: id})
	if err != nil {
		return err
	}
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := log.Write(piece.GetData()); err != nil {
			return err
		}
	}
}
