package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/termtext"
)

// followLog shows the log of a build, with follow up to its end, and then returns the build. While the manager
// restarts, it waits.
func followLog(
	ctx context.Context, m pb.ManagerClient, id string, follow bool, to, messages io.Writer,
) (*pb.Build, error) {
	shown := &lines{to: to, plain: isTerminal(to)}
	waiting := tellWait(ctx, m, id, messages)
	defer waiting()
	var offset int64
	var away time.Time // when the manager was lost; zero while it answers
	for {
		began := time.Now()
		b, err := followOnce(ctx, m, &pb.FollowRequest{Id: id, Offset: offset, Follow: follow},
			func(msg *pb.FollowResponse) error {
				waiting()
				away = time.Time{}
				if msg.GetMissing() > 0 {
					fmt.Fprintf(messages, "stepmux: not kept any more of the log: %s\n",
						plural.Count(msg.GetMissing(), "byte"))
				}
				offset = msg.GetOffset() + int64(len(msg.GetText()))
				return shown.write(msg.GetText())
			})
		if err == nil {
			return b, shown.end()
		}
		if code := status.Code(err); code != codes.Unavailable || ctx.Err() != nil {
			return nil, err
		}
		if away.IsZero() || time.Since(began) > answerTime { // it was back in between
			away = time.Now()
		} else if time.Since(away) > awayLimit {
			return nil, err
		}
		if err := pause.For(ctx, awayPause); err != nil {
			return nil, err
		}
	}
}

// waitTime is how long a log that is followed may be empty before the reason is told.
const waitTime = 5 * time.Second

// tellWait says once why a build waits, if it does so for waitTime. The caller calls stop, any number of times, and
// then nothing more is said.
func tellWait(ctx context.Context, m pb.ManagerClient, id string, to io.Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		if pause.For(ctx, waitTime) != nil {
			return
		}
		b, err := m.Get(ctx, &pb.GetRequest{Id: id})
		if err != nil || b.GetPhase() != pb.Build_queued {
			return
		}
		fmt.Fprintf(to, "stepmux: build %s waits for a slot on a VM\n", id)
		s, err := control.Ask(ctx, m)
		if err != nil {
			return
		}
		for _, vm := range s.Instances[:min(len(s.Instances), mostTold)] {
			if vm.Reason != "" {
				fmt.Fprintf(to, "stepmux: %s is %s: %s\n", termtext.Line(vm.ID), termtext.Line(vm.State),
					termtext.Line(vm.Reason))
			}
		}
	}()
	return func() {
		cancel()
		<-told
	}
}

// mostTold bounds the VMs about which tellWait says something.
const mostTold = 10

// followOnce passes the messages of one call to take.
func followOnce(
	ctx context.Context, m pb.ManagerClient, req *pb.FollowRequest, take func(*pb.FollowResponse) error,
) (*pb.Build, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := m.Follow(ctx, req)
	if err != nil {
		return nil, err
	}
	for {
		msg, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && !req.GetFollow():
			return nil, nil
		case errors.Is(err, io.EOF):
			return nil, status.Error(codes.Unavailable, "the manager did not say how the build ended")
		case err != nil:
			return nil, err
		}
		if err := take(msg); err != nil {
			return nil, err
		}
		if msg.GetBuild() != nil {
			return msg.GetBuild(), nil
		}
	}
}

// lines shows a log. On a terminal, control characters other than colours are made visible instead of being obeyed.
type lines struct {
	to    io.Writer
	plain bool
	part  []byte // an unfinished line
}

func (l *lines) write(text []byte) error {
	if !l.plain {
		_, err := l.to.Write(text)
		return err
	}
	var shown []byte
	for _, c := range text {
		if c != '\n' && len(l.part) < maxLine {
			l.part = append(l.part, c)
			continue
		}
		shown = append(termtext.LogLine(shown, l.part), '\n')
		l.part = l.part[:0]
		if c != '\n' {
			l.part = append(l.part, c)
		}
	}
	_, err := l.to.Write(shown)
	return err
}

func (l *lines) end() error {
	if len(l.part) == 0 {
		return nil
	}
	return l.write([]byte{'\n'})
}

func newLogsCommand() *cobra.Command {
	var f managerFlag
	cmd := &cobra.Command{
		Use:   "logs [-f] ID",
		Short: "Show the log of a manager's build",
		Long: `Show the log of a build of a stepmux manager, as far as it is written. With -f the log is followed until the
build ends. If the build failed, standard error has the reason. ID may be PIPELINE/JOB, the latest build of a job of a
pipeline; with -f the command waits for it.

` + managerExitHelp,
		Args: arguments("ID"),
	}
	f.register(cmd.Flags())
	cmd.ValidArgsFunction = first(f.completeBuilds(func(*pb.Build) bool { return true }), cobra.NoFileCompletions)
	follow := cmd.Flags().BoolP("follow", "f", false, "follow the log until the build ends")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
			id, err := buildNamed(ctx, m, args[0], *follow)
			if err != nil {
				return err
			}
			b, err := followLog(ctx, m, id, *follow, cmd.OutOrStdout(), cmd.ErrOrStderr())
			if err == nil && b == nil {
				b, err = m.Get(ctx, &pb.GetRequest{Id: id})
			}
			if err == nil {
				_ = managedOutcome(b, cmd.ErrOrStderr()) // the exit code is not the build's
			}
			return err
		})
	}
	return cmd
}
