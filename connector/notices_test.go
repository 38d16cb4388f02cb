package connector

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// noticing is a step runner that lingers and has one notice.
type noticing struct {
	pb.UnimplementedAttachmentServer
	late     bool // Attach comes when the step runner ends
	attached atomic.Int32
	cut      chan struct{} // ends a call of Attach, as a lost link does; may be nil
	ended    chan struct{}
}

func (s *noticing) Attach(_ *pb.AttachRequest, stream grpc.ServerStreamingServer[pb.AttachResponse]) error {
	s.attached.Add(1)
	if !s.late {
		if err := stream.Send(&pb.AttachResponse{Notices: []byte("notice\n")}); err != nil {
			return err
		}
	}
	select {
	case <-s.ended:
	case <-s.cut:
	}
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

// lingeringOn returns the Connector of a build that lingers on s and has output to out, once it keeps attached. age is
// that of the build.
func lingeringOn(t *testing.T, s *noticing, out io.Writer, linger, age time.Duration) *lingering {
	c := connectTo(t, s)
	c.log = buildlog.New(out, 0)
	c.cfg.Linger = linger
	c.cfg.Reconnect = func(context.Context) (Lease, error) { return nil, errors.New("there is one link") }
	l := newLingering(c)
	c.linger = l
	c.build.conn, c.build.serve.detached = noProcess{}, true
	require.NoError(t, l.begin(c.build, time.Now().Add(c.cfg.Linger-age)))
	c.wg.Go(l.keep)
	return l
}

// finish ends the build and waits for all of it.
func (l *lingering) finish(t *testing.T) {
	require.NoError(t, l.stop(t.Context()))
	l.end(ErrClosed)
	l.c.wg.Wait()
	require.NoError(t, l.rpc.Close())
	l.c.log.Close(t.Context())
}

// Symptom: a manager whose first link needed most of the linger attached a second after that, when the step runner had
// ended.
func TestABuildThatIsReachedLateIsAttachedToAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		age  time.Duration // when it is reached
		want int32
	}{"young": {attachAfter - 1, 0}, "late": {attachAfter, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &noticing{ended: make(chan struct{})}
				l := lingeringOn(t, s, io.Discard, time.Hour, test.age)
				synctest.Wait() // no time passes
				require.Equal(t, test.want, s.attached.Load())
				l.finish(t)
			})
		})
	}
}

// Symptom: a build with a linger below a second was given up, because the manager waited for that second although the
// link was back.
func TestABuildOfAShortLingerIsAttachedToAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &noticing{ended: make(chan struct{}), cut: make(chan struct{})}
		l := lingeringOn(t, s, io.Discard, attachAfter/2, 0)
		synctest.Wait()
		require.EqualValues(t, 1, s.attached.Load())
		s.cut <- struct{}{}
		time.Sleep(attachAfter / 4) //nolint:forbidigo // of the bubble
		synctest.Wait()
		require.EqualValues(t, 2, s.attached.Load())
		l.finish(t)
	})
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
				out := &sshtest.Log{}
				l := lingeringOn(t, &noticing{late: test.late, ended: make(chan struct{})}, out, time.Hour, 0)
				time.Sleep(test.age) //nolint:forbidigo // of the bubble
				synctest.Wait()
				l.finish(t)
				require.Equal(t, "step runner: notice\n", out.String())
			})
		})
	}
}
