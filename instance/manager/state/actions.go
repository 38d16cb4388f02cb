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

const (
	auditStream, auditSubject   = "STEPMUX_AUDIT", "stepmux.audit"
	eventsStream, eventsSubject = "STEPMUX_EVENTS", "stepmux.events"
	// maxAudit and maxEvents bound the actions and the events that are kept.
	maxAudit, maxEvents = 1000, 10_000
)

// Action is a message of the stream of actions.
type Action struct {
	Who     string `json:"who"`
	Action  string `json:"action"`
	Subject string `json:"subject"`
	Note    string `json:"note,omitempty"`
}

func (s *Store) openAudit(ctx context.Context) (err error) {
	s.audit, err = s.stream(ctx, jetstream.StreamConfig{
		Name: auditStream, Subjects: []string{auditSubject}, MaxMsgs: maxAudit,
	})
	if err == nil {
		s.events, err = s.stream(ctx, jetstream.StreamConfig{
			Name: eventsStream, Subjects: []string{eventsSubject}, MaxMsgs: maxEvents,
		})
	}
	if err != nil {
		return fmt.Errorf("open the actions of operators and the events of VMs: %w", err)
	}
	return nil
}

// Note keeps an action.
func (s *Store) Note(ctx context.Context, a Action) error {
	_, err := s.js.Publish(ctx, auditSubject, natscall.Encode(a))
	return err
}

// Actions returns the actions that are kept, the latest first.
func (s *Store) Actions(ctx context.Context) (*pb.AuditResponse, error) {
	info, err := s.audit.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the actions of operators: %w", err)
	}
	resp := &pb.AuditResponse{}
	for seq := info.State.LastSeq; seq >= info.State.FirstSeq && seq > 0; seq-- {
		msg, err := s.audit.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		var a Action
		if err == nil {
			err = json.Unmarshal(msg.Data, &a)
		}
		if err != nil {
			return nil, fmt.Errorf("read the actions of operators: %w", err)
		}
		resp.Entries = append(resp.Entries, &pb.AuditResponse_Entry{
			At: timestamppb.New(msg.Time), Who: a.Who, Action: a.Action, Subject: a.Subject, Note: a.Note,
		})
	}
	return resp, nil
}
