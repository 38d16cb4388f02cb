package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// The phases of a build's record. A build without a record is queued.
const (
	PhaseWaiting = ""        // it was lost, and is to run again; or it is of a pipeline, and has not begun
	PhaseRunning = "running" // its job may have been delivered
	PhaseEnded   = "ended"
)

// Result is the outcome of a build.
type Result struct {
	Reason   string   `json:"reason,omitempty"` // empty for success
	ExitCode int      `json:"exit_code,omitempty"`
	Message  string   `json:"message,omitempty"`
	Left     []string `json:"left,omitempty"`
	// Artifacts is the length of the archive that was kept.
	Artifacts int64 `json:"artifacts,omitempty"`
	Trace     int64 `json:"trace,omitempty"`   // so of the trace
	Remarks   int64 `json:"remarks,omitempty"` // and of the annotations and the summary
}

// Record is the stored state of a build, in the bucket.
type Record struct {
	ID        string    `json:"id"`
	Phase     string    `json:"phase"`
	Instance  string    `json:"instance,omitempty"`
	Socket    string    `json:"socket,omitempty"`
	StepsFile string    `json:"steps_file,omitempty"`
	Submitted time.Time `json:"submitted"`
	Started   time.Time `json:"started,omitzero"`
	Ended     time.Time `json:"ended,omitzero"`
	// Connect and FirstOutput are the times from Started to a step runner that listens, and to the job's first output.
	Connect     time.Duration `json:"connect_ns,omitempty"`
	FirstOutput time.Duration `json:"first_output_ns,omitempty"`
	LogBytes    int64         `json:"log_bytes,omitempty"` // the length of the log, once the build has ended
	Canceled    bool          `json:"canceled,omitempty"`
	Attempt     int           `json:"attempt,omitempty"` // counts how often it was lost and ran again
	Manager     string        `json:"manager,omitempty"` // has it, of those that share the state
	Result      *Result       `json:"result,omitempty"`
	Warnings    []*pb.Warning `json:"warnings,omitempty"` // about its scripts
	// Pipeline and Job are those of a build of a pipeline. Interruptible says that a newer pipeline may end it.
	Pipeline      string `json:"pipeline,omitempty"`
	Job           string `json:"job,omitempty"`
	Interruptible bool   `json:"interruptible,omitempty"`
	// Saved are the names of the caches of which the log says that they were saved.
	Saved []string `json:"saved,omitempty"`

	revision uint64 // in the bucket; 0 if it is not there
}

// IsKept reports whether the record, or an earlier one of the build, is in the bucket.
func (r *Record) IsKept() bool { return r.revision > 0 }

// NewRecord returns the record of a build that has none. asked is nil if its request cannot be read.
func NewRecord(r *Request, asked *pb.SubmitRequest) *Record {
	return &Record{
		ID: r.ID, StepsFile: asked.GetJob().GetStepsFile(), Submitted: r.Submitted, Warnings: asked.GetWarnings(),
	}
}

// maxID bounds the ID of a build, in bytes. No build has such a long one.
const maxID = 64

// Record returns the record of a build. It returns nil if there is no record.
func (s *Store) Record(ctx context.Context, id string) (*Record, error) {
	if len(id) > maxID { // it would be part of a subject: for a long one the store closes the connection
		return nil, nil
	}
	entry, err := s.Builds.Get(ctx, id)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrInvalidKey) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the build %s: %w", id, err)
	}
	return recordOf(id, entry.Value(), entry.Revision())
}

func recordOf(id string, text []byte, revision uint64) (*Record, error) {
	r := &Record{revision: revision}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read the build %s: %w", id, err)
	}
	if r.ID != id {
		return nil, nil // a lease
	}
	return r, nil
}

// recordMark is how long a mark of an expired record stays. When the store starts, it ends records, too:
// within this time all builds are found that had ended and whose requests are still in the queue.
const recordMark = 10 * time.Minute

// marks returns how long the mark of a key stays that has expired. The server lets no key of the bucket expire earlier.
func (s *Store) marks() time.Duration { return max(min(recordMark, s.cfg.Keep), leastMark) }

// leastMark is for managers that keep builds for a few seconds.
const leastMark = 5 * time.Second

// RecordOrMark returns the record of the build of a request, as Record does. over is set if there is none any more,
// because the build has ended and its record has expired.
func (s *Store) RecordOrMark(ctx context.Context, id string) (rec *Record, over bool, err error) {
	msg, err := s.history.GetLastMsgForSubject(ctx, "$KV."+buildsBucket+"."+id)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read the build %s: %w", id, err)
	case msg.Header.Get(jetstream.MarkerReasonHeader) != "":
		return nil, true, nil
	}
	rec, err = recordOf(id, msg.Data, msg.Sequence)
	return rec, false, err
}

// ErrTaken says that a record was changed by somebody else.
var ErrTaken = errors.New("another process changed the build's record first")

// Put changes a record by compare-and-set: r has the revision of the previous record, and then gets its own.
func (s *Store) Put(ctx context.Context, r *Record) error {
	options := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(r.revision)}
	if r.Phase == PhaseEnded && r.Pipeline == "" { // the others are kept as long as their pipeline
		options = append(options, jetstream.WithMsgTTL(s.cfg.Keep))
	}
	revision, err := s.Write(ctx, s.Builds, r.ID, natscall.Encode(r), options...)
	if natscall.Changed(err) {
		return ErrTaken
	}
	if err != nil {
		return fmt.Errorf("keep the build %s: %w", r.ID, err)
	}
	r.revision = revision
	return nil
}

// Refuse ends a build that this manager does not run: its result is kept, and its request leaves the queue.
func (s *Store) Refuse(ctx context.Context, r *Request, rec *Record, log *Log, why *Result) error {
	if rec == nil {
		asked, _ := s.Read(r) // one that cannot be read may be why
		rec = NewRecord(r, asked)
	}
	rec.Phase, rec.Ended, rec.Result = PhaseEnded, time.Now(), why
	rec.Canceled = why.Reason == string(instance.JobCanceled)
	if err := s.Put(ctx, rec); err != nil {
		return err
	}
	if err := log.End(why); err != nil { //nolint:contextcheck // bounded by the manager's life
		return err
	}
	if r.Seq == 0 { // of a pipeline: the request is known by its build when it is handed out
		return nil
	}
	err := s.queue.DeleteMsg(ctx, r.Seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) || isGone(err) {
		return nil
	}
	return err
}

// isGone reports whether err says that a message was deleted before.
func isGone(err error) bool {
	told, ok := errors.AsType[*jetstream.APIError](err)
	return ok && told.ErrorCode == 10057 // of DeleteMsg, for a sequence that is not there
}

// AwaitEnd waits until the record of a build has its result, or is not kept any more.
func (s *Store) AwaitEnd(ctx context.Context, id string) error {
	return s.WatchRecord(ctx, id, func(r *Record) bool { return r != nil && r.Phase != PhaseEnded })
}

// WatchRecord calls changed with the record of a build, now and after each change, until that returns false. The record
// is nil if it is not kept, or not any more.
func (s *Store) WatchRecord(ctx context.Context, id string, changed func(*Record) bool) error {
	return s.home.watch(ctx, s.Builds, []string{id}, func(news []keyValue) (bool, error) {
		for _, v := range news {
			if v.text == nil {
				changed(nil)
				return false, nil
			}
			r, err := recordOf(id, v.text, v.revision)
			if err != nil || r == nil || !changed(r) {
				return false, err
			}
		}
		return true, nil
	})
}
