package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/internal/plural"
)

const (
	// maxChecked bounds the messages of a stream that are read at the start, so that the start stays short.
	maxChecked = 100_000
	// checkStall is how long the next message may take before it counts as one that cannot be read.
	checkStall = 2 * time.Second
	// checks is how often messages are read while others end.
	checks = 5
)

// checkDamage looks for damage by the disk: the store leaves out messages whose checksum is wrong, and does not tell. A
// damaged record could let a build run twice, so it is an error. Damaged requests are logged, and their builds end.
func (h *embedded) checkDamage(ctx context.Context) error {
	s := h.s
	var open []*Record            // of builds that have not ended
	recorded := map[uint64]bool{} // places in the queue
	lost, err := s.unreadable(ctx, s.history, func(text []byte) {
		r := &Record{}
		if json.Unmarshal(text, r) != nil || r.ID == "" {
			return // a lease, or a mark
		}
		recorded[placeOf(r.ID)] = true
		if r.Phase != PhaseEnded && r.Pipeline == "" { // a pipeline queues its builds again
			open = append(open, r)
		}
	})
	if err != nil {
		return fmt.Errorf("check the builds: %w", err)
	}
	if lost > 0 {
		return fmt.Errorf("%s damaged on the disk, so builds could run twice: copy the state back "+
			"from before, or start with another state directory", plural.Count(lost, "build record"))
	}
	err = s.queue.DeleteConsumer(ctx, consumerName) // of the manager before; it is made again
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("check the queue: %w", err)
	}
	err = s.calls.DeleteConsumer(ctx, consumerName)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("check the pipelines: %w", err)
	}
	if lost, err = s.unreadable(ctx, s.queue, nil); err != nil {
		return fmt.Errorf("check the queue: %w", err)
	}
	if lost > 0 {
		s.logger.to.Error("requests in the queue are damaged on the disk: their builds are lost", "requests", lost)
	}
	if err := s.checkQueueEnd(ctx, recorded); err != nil {
		return fmt.Errorf("check the queue: %w", err)
	}
	for _, r := range open {
		if err := s.endWithoutRequest(ctx, r.ID); err != nil {
			return fmt.Errorf("check the builds: %w", err)
		}
	}
	return nil
}

// queueEndKey is the key of the last place in the queue that was given, as noteQueue keeps it. It shows that requests
// were cut off at the end of the queue's file: the store does not tell. Its value is that place and the age of records
// at the time, as in "12 168h0m0s".
const queueEndKey = "queue-end"

func (s *Store) putQueueEnd(ctx context.Context, last uint64) error {
	_, err := s.Fleet.Put(ctx, queueEndKey, fmt.Appendf(nil, "%d %v", last, s.cfg.Keep))
	return err
}

// noteQueue keeps the last place in the queue, if there was a submit since the last call.
func (h *embedded) noteQueue(ctx context.Context) {
	s := h.s
	last := s.pushed.Load()
	if last <= h.noted || s.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	if err := s.putQueueEnd(ctx, last); err == nil { // else the next call does it
		h.noted = last
	}
}

// checkQueueEnd logs, once, how many requests were cut off at the end of the queue's file. Those are the last places
// that were given, as far as they are neither in the queue nor have a record.
func (s *Store) checkQueueEnd(ctx context.Context, recorded map[uint64]bool) error {
	entry, err := s.Fleet.Get(ctx, queueEndKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	place, age, dated := strings.Cut(string(entry.Value()), " ")
	last, err := strconv.ParseUint(place, 10, 64)
	keep := s.cfg.Keep
	if err == nil && dated {
		keep, err = time.ParseDuration(age)
	}
	if err != nil {
		return fmt.Errorf("read its end: %w", err)
	}
	records, err := s.history.Info(ctx)
	keep = min(keep, s.cfg.Keep) - 2*SettlePause // the place is kept later than it is given
	if err != nil || records.State.Msgs > maxChecked || time.Since(entry.Created()) > keep {
		return err // not all records were read, or that of the last build may not be kept any more
	}
	lost := uint64(0)
	for ; last > 0 && !recorded[last] && lost < maxChecked; last, lost = last-1, lost+1 {
		_, err := s.queue.GetMsg(ctx, last)
		if err == nil {
			break
		}
		if !errors.Is(err, jetstream.ErrMsgNotFound) {
			return err
		}
	}
	if lost == 0 {
		return nil
	}
	s.logger.to.Error("the end of the queue was cut off on the disk: the builds there are lost", "requests", lost)
	return s.putQueueEnd(ctx, last)
}

// endWithoutRequest ends a build that has a record but no request any more: no manager would resume it.
func (s *Store) endWithoutRequest(ctx context.Context, id string) error {
	r, err := s.Find(ctx, id)
	if err != nil || r != nil {
		return err
	}
	rec, err := s.Record(ctx, id)
	if err != nil || rec == nil || rec.Phase == PhaseEnded {
		return err
	}
	rec.Phase, rec.Ended = PhaseEnded, time.Now()
	rec.Result = &Result{
		Reason:  string(instance.RunnerSystemFailure),
		Message: "the build is lost: its request was damaged in the state directory",
	}
	s.logger.to.Error("the build is lost", "build", id, "because", rec.Result.Message)
	return s.Put(ctx, rec)
}

// unreadable passes the messages of a stream to take, if that is not nil, and returns how many cannot be read. If a
// stream has very many messages, it skips the check. A work queue must have no other consumer.
//
// A message whose time ends while the others are read is missing, too. Then it reads them again, and take gets them
// again; if messages end all the time, it takes the missing ones for those.
func (s *Store) unreadable(ctx context.Context, stream jetstream.Stream, take func([]byte)) (lost uint64, err error) {
	for range checks {
		before, err := stream.Info(ctx)
		if err != nil {
			return 0, err
		}
		if lost, err = s.missing(ctx, stream, before.State, take); err != nil || lost == 0 {
			return 0, err
		}
		after, err := stream.Info(ctx)
		if err != nil {
			return 0, err
		}
		ended := removed(after.State) - removed(before.State)
		if ended == 0 {
			return lost, nil
		}
		lost -= min(lost, ended)
	}
	return lost, nil
}

// removed returns how many messages a stream has had and has no more.
func removed(state jetstream.StreamState) uint64 { return state.LastSeq - state.Msgs }

// missing is one reading of unreadable, of a stream in that state.
func (s *Store) missing(
	ctx context.Context, stream jetstream.Stream, state jetstream.StreamState, take func([]byte),
) (uint64, error) {
	if state.Msgs == 0 || state.Msgs > maxChecked {
		return 0, nil
	}
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: startTimeout, MaxAckPending: -1, HeadersOnly: take == nil,
		InactiveThreshold: natscall.ReaderIdle, MemoryStorage: true,
	})
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = stream.DeleteConsumer(context.WithoutCancel(ctx), consumer.CachedInfo().Name) // else it ends by itself
	}()
	messages, err := consumer.Messages()
	if err != nil {
		return 0, err
	}
	defer messages.Stop()
	for read := uint64(0); read < state.Msgs; read++ {
		next, cancel := context.WithTimeout(ctx, checkStall)
		msg, err := messages.Next(jetstream.NextContext(next))
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return state.Msgs - read, nil
		}
		if err != nil {
			return 0, err
		}
		at, err := msg.Metadata()
		if err != nil {
			return 0, err
		}
		if take != nil {
			take(msg.Data())
		}
		if at.Sequence.Stream >= state.LastSeq {
			return state.Msgs - read - 1, nil
		}
	}
	return 0, nil
}
