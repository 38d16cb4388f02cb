package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// Event is a message of the stream of events.
type Event struct {
	Kind     string `json:"kind"`
	Instance string `json:"instance,omitempty"`
	Group    string `json:"group,omitempty"`
	Note     string `json:"note,omitempty"`
}

// KeepEvent keeps an event of a VM.
func (s *Store) KeepEvent(ctx context.Context, e Event) error {
	_, err := s.js.Publish(ctx, eventsSubject, natscall.Encode(e))
	return err
}

// Events passes the events that are kept to take, the oldest first. With follow, it then waits for more, until ctx
// ends.
func (s *Store) Events(ctx context.Context, follow bool, take func(*pb.Event) error) error {
	info, err := s.events.Info(ctx)
	if err != nil {
		return fmt.Errorf("read the events of VMs: %w", err)
	}
	last := info.State.LastSeq
	if !follow && info.State.Msgs == 0 {
		return nil
	}
	messages, stop, err := natscall.Read(ctx, s.events, eventsSubject, max(info.State.FirstSeq, 1))
	if err != nil {
		return fmt.Errorf("read the events of VMs: %w", err)
	}
	defer stop()
	for {
		msg, err := messages.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("read the events of VMs: %w", err)
		}
		at, err := msg.Metadata()
		var e Event
		if err == nil {
			err = json.Unmarshal(msg.Data(), &e)
		}
		if err != nil {
			return fmt.Errorf("read the events of VMs: %w", err)
		}
		if err := take(&pb.Event{
			At: timestamppb.New(at.Timestamp), Kind: e.Kind, Instance: e.Instance, Group: e.Group, Note: e.Note,
		}); err != nil {
			return err
		}
		if !follow && at.Sequence.Stream >= last {
			return nil
		}
	}
}
