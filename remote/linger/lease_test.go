package linger

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/internal/wire"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// call is a call of Attach.
type call struct {
	grpc.ServerStream
	ctx   context.Context // as gRPC has it
	got   chan *pb.AttachResponse
	ended chan error
}

func (c *call) Context() context.Context { return c.ctx }

func (c *call) Send(m *pb.AttachResponse) error {
	c.got <- m
	return nil
}

// attach calls Attach as a manager, from an offset of the notices, and returns once it is attached.
func attach(t *testing.T, l *Lease, manager string, offset int64) (c *call, leave context.CancelFunc) {
	t.Helper()
	ctx, leave := context.WithCancel(metadata.NewIncomingContext(t.Context(), metadata.Pairs(wire.ManagerKey, manager)))
	c = &call{ctx: ctx, got: make(chan *pb.AttachResponse, 100), ended: make(chan error, 1)}
	go func() { c.ended <- l.Attach(&pb.AttachRequest{Offset: offset}, c) }()
	synctest.Wait()
	return c, leave
}

func TestLeaseEndsOnlyWhenNoManagerWasAttachedForItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(t.Context(), time.Minute)
		defer l.Close()
		time.Sleep(59 * time.Second) //nolint:forbidigo // of the bubble
		for range 3 {
			_, leave := attach(t, l, "m1", 0)
			time.Sleep(time.Hour) //nolint:forbidigo // as above
			leave()
			synctest.Wait()
			time.Sleep(59 * time.Second) //nolint:forbidigo // as above
			require.NoError(t, l.Context().Err())
		}
		time.Sleep(time.Second) //nolint:forbidigo // as above
		synctest.Wait()
		require.ErrorIs(t, context.Cause(l.Context()), ErrUnattended)
	})
}

func TestLaterCallOfTheSameManagerTakesThePlaceOfTheEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(t.Context(), time.Minute)
		defer l.Close()
		first, leave := attach(t, l, "m1", 0)
		defer leave()
		second, leaveSecond := attach(t, l, "m1", 0)
		require.Equal(t, codes.Canceled, status.Code(<-first.ended))
		time.Sleep(time.Hour) //nolint:forbidigo // the end of the first does not count as the manager's
		require.NoError(t, l.Context().Err())
		leaveSecond()
		<-second.ended
		time.Sleep(time.Minute) //nolint:forbidigo // as above
		synctest.Wait()
		require.Error(t, l.Context().Err())
	})
}

// It attaches only to builds that last.
func TestTheManagerThatStartedServeIsReplacedBeforeItAttaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(t.Context(), time.Minute)
		defer l.Close()
		starter := metadata.NewIncomingContext(t.Context(), metadata.Pairs(wire.ManagerKey, wire.Starter))
		require.NoError(t, l.check(starter))
		second, leave := attach(t, l, "m2", 0)
		defer leave()
		require.Equal(t, codes.Aborted, status.Code(l.check(starter)))
		late, leaveLate := attach(t, l, wire.Starter, 0)
		defer leaveLate()
		require.Equal(t, codes.Aborted, status.Code(<-late.ended))
		require.Empty(t, second.ended)
	})
}

func TestManagersNeedAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(t.Context(), time.Minute)
		defer l.Close()
		for _, name := range []string{"", "a b", "\x00", string(bytes.Repeat([]byte("a"), 65))} {
			c, leave := attach(t, l, name, 0)
			require.Equal(t, codes.InvalidArgument, status.Code(<-c.ended), "%q", name)
			leave()
		}
	})
}

func TestNoticesAreKeptForTheNextManagerUpToABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(t.Context(), time.Minute)
		defer l.Close()
		_, _ = l.Write([]byte("one\n"))
		c, leave := attach(t, l, "m1", 0)
		first := <-c.got
		require.Equal(t, "one\n", string(first.GetNotices()))
		_, _ = l.Write([]byte("two\n"))
		second := <-c.got
		require.Equal(t, "two\n", string(second.GetNotices()))
		require.EqualValues(t, 4, second.GetOffset())
		leave()
		<-c.ended
		_, _ = l.Write(bytes.Repeat([]byte("x"), maxNotices))
		for _, offset := range []int64{8, -1, 0, 1 << 40} { // those that are not kept are skipped
			c, leave := attach(t, l, "m1", offset)
			got := <-c.got
			leave()
			<-c.ended
			if offset == 1<<40 {
				require.Empty(t, got.GetNotices())
				continue
			}
			require.EqualValues(t, 8, got.GetOffset())
			require.Len(t, got.GetNotices(), maxNotices)
		}
	})
}

func TestEndOfTheLeaseEndsTheCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(t.Context(), time.Minute)
		defer l.Close()
		c, leave := attach(t, l, "m1", 0)
		defer leave()
		_, _ = l.Write([]byte("one\ntwo\n"))
		last, err := l.End(c.ctx, &pb.EndRequest{Offset: 4})
		require.NoError(t, err)
		require.Equal(t, "two\n", string(last.GetNotices()))
		require.EqualValues(t, 4, last.GetOffset())
		require.Equal(t, codes.Unavailable, status.Code(<-c.ended))
		require.ErrorIs(t, context.Cause(l.Context()), ErrEnded)
	})
}
