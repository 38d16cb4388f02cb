package connector

import (
	"context"
	"fmt"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/mux"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// giveUp ends a build that has been detached for too long.
func (l *lingering) giveUp() {
	l.mu.Lock()
	last := l.last
	l.mu.Unlock()
	err := fmt.Errorf("the build is lost: the step runner could not be reached for %v", l.c.cfg.Linger)
	if last != nil {
		err = fmt.Errorf("%w; last attempt: %w", err, last)
	}
	l.lost(err)
}

// stop ends the step runner and waits for its end, bounded by ctx, over another link if necessary. It does nothing if
// another manager has the build, or is to take it over.
func (l *lingering) stop(ctx context.Context) error {
	cfg := &l.c.cfg
	begin := time.Now()
	l.ending.Store(true)
	if l.replaced.Load() || l.c.leaves.Load() {
		return nil
	}
	cfg.Trace.ServeStop(cfg.BuildID)
	err := l.endServe(ctx)
	cfg.Trace.ServeGone(cfg.BuildID, time.Since(begin), err)
	return err
}

func (l *lingering) endServe(ctx context.Context) error {
	calls, cancel := context.WithTimeout(ctx, l.c.cfg.StopTimeout/2)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)() //nolint:contextcheck // when it ends, so do the calls
	b, _ := l.c.current()
	if err := l.connect(b); err != nil { // the start was given up before there was a client
		return err
	}
	rpc := pb.NewAttachmentClient(l.rpc)
	own := b.serve.process // the step runner's, unless it was started in another way, or over another link
	watched := own != nil && !pause.Done(own.Exited())
	var last *pb.EndResponse
	err := retryFor(calls, l.c.cfg.StopTimeout, func() (_ bool, err error) {
		last, err = rpc.End(calls, &pb.EndRequest{Offset: l.c.log.State().Notices})
		return false, err
	})
	if text := last.GetNotices(); len(text) > 0 && !l.noted.Swap(true) {
		l.c.cfg.Logger.Info("notices of the step runner", "text", string(text)) // the log may have its end already
		notices := l.c.log.Notices(l.c.closing)
		_, _ = notices.WriteAt(text, last.GetOffset()) // never fails
		notices.Flush()
	}
	switch b, _ := l.c.current(); {
	case status.Code(err) == codes.Aborted: // another manager has the build
	case err != nil && !l.gone.Load():
		// Another manager may have attached, so do not end anything by force.
		l.c.leave(fmt.Sprintf("unknown: the step runner could not be reached; it ends by itself once no manager has been "+
			"attached for %v", l.c.cfg.Linger))
	default:
		why := "this link cannot see its end: it was started over another one"
		if watched {
			why = l.endsWell(ctx, own)
		}
		switch {
		case why == "":
		case b.relay != nil && b.relay.Err() == nil:
			b.endByCommand(ctx, b.relay, why)
		default:
			b.endByCommand(ctx, b.conn, why)
		}
	}
	return nil
}

// endsWell waits for a step runner that was asked to end. It returns the empty text if the step runner left nothing
// behind, and otherwise the reason why that is not known.
func (l *lingering) endsWell(ctx context.Context, p *mux.Process) (why string) {
	most := l.c.cfg.StopTimeout / 3
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-p.Exited():
		if err := p.Err(); err != nil {
			return fmt.Sprintf("the step runner ended with %v", err)
		}
		return ""
	case <-timer.C:
	case <-ctx.Done():
	}
	return l.c.late(most)
}

// close frees everything that is left, as the last part of Close. It waits for a link that is being made, because its
// lease would have no owner otherwise. The end of the life bounds that wait.
func (l *lingering) close() {
	l.end(ErrClosed)
	l.turn <- struct{}{} // for good
	if l.rpc != nil {
		_ = l.rpc.Close() // fails only if it was closed before
	}
	if b, _ := l.c.current(); b != nil {
		b.drop()
		if b.serve != nil && b.serve.process != nil {
			b.serve.process.Close() // the relay keeps the step runner running
		}
	}
}
