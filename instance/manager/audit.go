package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

const (
	auditStream, auditSubject = "STEPMUX_AUDIT", "stepmux.audit"
	// maxAudit bounds the actions that are kept.
	maxAudit = 1000
)

// action is a message of the stream of actions.
type action struct {
	Who     string `json:"who"`
	Action  string `json:"action"`
	Subject string `json:"subject"`
	Note    string `json:"note,omitempty"`
}

func (s *store) openAudit(ctx context.Context) (err error) {
	s.audit, err = s.stream(ctx, jetstream.StreamConfig{
		Name: auditStream, Subjects: []string{auditSubject}, MaxMsgs: maxAudit,
	})
	if err != nil {
		return fmt.Errorf("open the actions of operators: %w", err)
	}
	return nil
}

// note keeps an action that has succeeded.
func (m *Manager) note(ctx context.Context, a action) {
	m.cfg.Logger.Info("action of an operator", "who", a.Who, "action", a.Action, "on", a.Subject, "note", a.Note)
	if _, err := m.store.js.Publish(ctx, auditSubject, encode(a)); err != nil {
		m.cfg.Logger.Error("cannot keep an action of an operator", "error", err)
	}
}

// whoVar is the metadata key by which this process names the person for whom it calls its own service.
const whoVar = "stepmux-who"

// ContextFor returns a context for calls of this process to its own service on behalf of a person. The name who is
// stored with that person's actions.
func ContextFor(ctx context.Context, who string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, whoVar, who)
}

// callerOf returns a text about the client of a call.
func callerOf(ctx context.Context) string {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return "unknown"
	}
	switch info := from.AuthInfo.(type) {
	case control.Peer:
		if who := metadata.ValueFromIncomingContext(ctx, whoVar); info.PID == os.Getpid() && len(who) == 1 {
			return who[0]
		}
		uid := strconv.FormatUint(uint64(info.UID), 10)
		if u, err := user.LookupId(uid); err == nil {
			return "uid " + uid + " (" + u.Username + ")"
		}
		return "uid " + uid
	case tcpInfo:
		host, _, _ := net.SplitHostPort(from.Addr.String())
		return "token, " + host
	}
	return "unknown"
}

// Audit returns the actions of operators.
func (s *service) Audit(ctx context.Context, _ *pb.AuditRequest) (*pb.AuditResponse, error) {
	resp, err := s.m.store.actions(ctx)
	if err != nil {
		return nil, s.m.failed(ctx, err)
	}
	return resp, nil
}

// actions returns the actions that are kept, the latest first.
func (s *store) actions(ctx context.Context) (*pb.AuditResponse, error) {
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
		var a action
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
