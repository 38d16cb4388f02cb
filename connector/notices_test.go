package connector

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/internal/sshtest"
	"github.com/stepmux/stepmux/mux"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// noticing is a step runner that lingers and has one notice.
type noticing struct {
	pb.UnimplementedAttachmentServer
	late  bool // Attach comes when the step runner ends
	ended chan struct{}
}

func (s *noticing) Attach(_ *pb.AttachRequest, stream grpc.ServerStreamingServer[pb.AttachResponse]) error {
	if !s.late {
		if err := stream.Send(&pb.AttachResponse{Notices: []byte("notice\n")}); err != nil {
			return err
		}
	}
	<-s.ended
	return status.Error(codes.Unavailable, "the step runner ends")
}

func (s *noticing) End(context.Context, *pb.EndRequest) (*pb.EndResponse, error) {
	close(s.ended)
	return &pb.EndResponse{Notices: []byte("notice\n")}, nil
}

// noProcess starts no process.
type noProcess struct{ noConn }

func (noProcess) Start(context.Context, mux.Command) (*mux.Process, error) {
	return nil, errors.New("there are no processes")
}

// Symptom: the notices of a build that ended while its manager attached to it were lost.
func TestNoticesOfABuildThatLingersAreInItsLogOnce(t *testing.T) {
	for name, test := range map[string]struct {
		late bool
		age  time.Duration // at its end
	}{
		"before it is attached to": {false, attachAfter / 2},
		"while it is attached to":  {true, attachAfter},
		"after that":               {false, attachAfter},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := connectTo(t, &noticing{late: test.late, ended: make(chan struct{})})
				out := &sshtest.Log{}
				c.log = buildlog.New(out, 0)
				c.cfg.Linger = time.Hour
				c.cfg.Reconnect = func(context.Context) (Lease, error) { return nil, errors.New("there is one link") }
				l := newLingering(c)
				c.linger, l.begun = l, time.Now()
				b := c.build
				b.conn, b.serve.detached = noProcess{}, true
				require.NoError(t, l.begin(b, time.Now().Add(c.cfg.Linger)))
				c.wg.Go(l.keep)
				time.Sleep(test.age) //nolint:forbidigo // of the bubble
				synctest.Wait()
				require.NoError(t, l.stop(t.Context()))
				l.end(ErrClosed)
				c.wg.Wait()
				require.NoError(t, l.rpc.Close())
				c.log.Close(t.Context())
				require.Equal(t, "step runner: notice\n", out.String())
			})
		})
	}
}
