package manager

import (
	"context"
	"net"
	"os"
	"os/user"
	"strconv"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/state"
)

// note keeps an action that has succeeded.
func (m *Manager) note(ctx context.Context, a state.Action) {
	m.cfg.Logger.Info("action of an operator", "who", a.Who, "action", a.Action, "on", a.Subject, "note", a.Note)
	if err := m.store.Note(ctx, a); err != nil {
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
	resp, err := s.m.store.Actions(ctx)
	if err != nil {
		return nil, s.m.failed(ctx, err)
	}
	return resp, nil
}
