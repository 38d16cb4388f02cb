package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// buildID returns the ID of the build whose request has this place in the queue and this key: it is found by its ID,
// and unique even if the state directory was replaced.
func buildID(seq uint64, key string) string {
	sum := sha256.Sum256([]byte(key))
	return strconv.FormatUint(seq, 10) + "-" + hex.EncodeToString(sum[:4])
}

// placeOf returns the place in the queue that a build's ID names, or 0.
func placeOf(id string) uint64 {
	number, _, _ := strings.Cut(id, "-")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0
	}
	return seq
}

// Request is a build in the queue.
type Request struct {
	ID        string // of the build
	Seq       uint64 // its place in the queue
	Submitted time.Time
	// Fresh says that the request was queued since the manager started, and is delivered for the first time. So there is
	// no record or log of the build yet. If there is one, because the build was canceled for example, the first write of
	// it fails. The manager sets Fresh.
	Fresh bool

	key     string
	project string // the archives that the build needs, with spaces between; may be empty
	sealed  []byte // with the key
}

// projectHeader is the header of a request with the project that its build needs.
const projectHeader = "Stepmux-Project"

// Push queues a request. When it returns, that is on disk.
func (s *Store) Push(ctx context.Context, key, project string, text []byte) (id string, err error) {
	msg := nats.NewMsg(queueSubject)
	if project != "" {
		msg.Header.Set(projectHeader, project)
	}
	msg.Data = s.key.Seal(key, text)
	ack, err := s.js.PublishMsg(ctx, msg, jetstream.WithMsgID(key))
	if err != nil {
		return "", fmt.Errorf("queue the build: %w", err)
	}
	for last := s.pushed.Load(); last < ack.Sequence && !s.pushed.CompareAndSwap(last, ack.Sequence); {
		last = s.pushed.Load()
	}
	return buildID(ack.Sequence, key), nil
}

// IsNew reports whether a request was queued since the store was opened.
func (s *Store) IsNew(r *Request) bool { return r.Seq > s.before }

// requestOf returns the request that a message of the queue has.
func requestOf(seq uint64, h nats.Header, sealed []byte, submitted time.Time) *Request {
	key := h.Get(nats.MsgIdHdr)
	id := buildID(seq, key)
	if own := h.Get(buildHeader); own != "" {
		id = own
	}
	return &Request{
		ID: id, Seq: seq, key: key, project: h.Get(projectHeader), sealed: sealed, Submitted: submitted,
	}
}

// Queued returns the first request at or after a place in the queue, or nil.
func (s *Store) Queued(ctx context.Context, seq uint64) (*Request, error) {
	msg, err := s.queue.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(queueSubject))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the queue: %w", err)
	}
	return requestOf(msg.Sequence, msg.Header, msg.Data, msg.Time), nil
}

// IsPipelines reports whether the build is one of a pipeline.
func (r *Request) IsPipelines() bool { return PipelineOf(r.ID) != "" }

// queuedProjects returns the projects of all pipelines, and of all requests in the queue, that have not ended, and the
// artifacts of such pipelines.
func (s *Store) queuedProjects(ctx context.Context) (map[string]bool, error) {
	needed := map[string]bool{}
	pipelines, err := s.AllPipelines(ctx)
	if err != nil {
		return nil, err
	}
	open := map[string]bool{}
	for _, p := range pipelines {
		if open[p.ID] = p.Phase != PipelineEnded; open[p.ID] && p.Project != "" {
			needed[p.Project] = true
		}
	}
	if err := s.neededArtifacts(ctx, open, needed); err != nil {
		return nil, err
	}
	for seq := uint64(1); ; {
		r, err := s.Queued(ctx, seq)
		if r == nil {
			return needed, err
		}
		if !s.hasEnded(r.Seq) {
			for _, digest := range strings.Fields(r.project) {
				needed[digest] = true
			}
		}
		seq = r.Seq + 1
	}
}

// Find returns the request of a build, nil if it is not in the queue.
func (s *Store) Find(ctx context.Context, id string) (*Request, error) {
	seq := placeOf(id)
	if seq == 0 {
		return nil, nil
	}
	r, err := s.Queued(ctx, seq)
	if r != nil && r.ID != id {
		r = nil
	}
	return r, err
}

// Read opens the request of a build. The version before kept the job and the build's options in one message. Its fields
// have the same numbers in the two messages of today.
func (s *Store) Read(r *Request) (*pb.SubmitRequest, error) {
	text, err := s.key.Open(r.key, r.sealed)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be opened with the key: %w", err)
	}
	asked := &pb.SubmitRequest{}
	err = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, asked)
	if err == nil && asked.GetJob() == nil {
		asked.Job = &stepmuxv1.Job{}
		err = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, asked.GetJob())
	}
	if err != nil {
		return nil, fmt.Errorf("the request cannot be read: %w", err)
	}
	return asked, nil
}
