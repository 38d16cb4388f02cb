package manager

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/instance/manager/seal"
	"github.com/stepmux/stepmux/internal/filelock"
)

const (
	queueStream  = "STEPMUX_QUEUE"
	queueSubject = "stepmux.queue.default"
	consumerName = "manager"
	buildsBucket = "STEPMUX_BUILDS"
	fleetBucket  = "STEPMUX_FLEET"
	logsStream   = "STEPMUX_LOGS"
	logsSubject  = "stepmux.logs."

	// maxRequest bounds a request, in bytes. maxPayload bounds a message of a stream: a request, sealed, with headers
	// of less than payloadExtra.
	maxRequest, maxPayload, payloadExtra = 4 << 20, 5 << 20, 64 << 10
	// keyTime is how long a request that is sent again, with the same key, is known. Each costs 100 bytes of memory
	// meanwhile.
	keyTime = 2 * time.Minute
	// storeTimeout bounds a call to the store, and startTimeout its start: streams are checked then.
	storeTimeout, startTimeout = 30 * time.Second, 5 * time.Minute
)

// store is the state of a manager, in JetStream. These rules keep a build from being lost and from being run twice:
//
//   - A request stays in the queue until its build has ended.
//   - A record is created before the job is delivered to a step runner, by compare-and-set. A build with a record may
//     have run: it is resumed, and never started.
//   - A piece of a log and the state of the log after it are one message.
//   - The record has the result before the build's step runner is ended, since nobody could tell it after that, and
//     before the request leaves the queue.
type store struct {
	keep       time.Duration // the age of a build that has ended, and of its log
	key        *seal.Key
	lock       *os.File
	home       home          // of all the following
	timeout    time.Duration // of a call
	maxRequest int
	logger     *serverLog
	nc         *nats.Conn
	js         jetstream.JetStream

	queue   jetstream.Stream
	logs    jetstream.Stream
	history jetstream.Stream // of builds
	builds  jetstream.KeyValue
	fleet   jetstream.KeyValue
	audit   jetstream.Stream // of the actions of operators

	feeds  feeds         // of the logs that are followed; unused if other managers write logs, too
	ended  ended         // unused if other managers take builds, too
	before uint64        // the last place in the queue at the start
	pushed atomic.Uint64 // the last place in the queue that was given since
}

// openStore opens the state in a directory, which is made if it is missing. The caller calls close.
func openStore(ctx context.Context, cfg *Config) (*store, error) {
	s := &store{keep: cfg.Keep, timeout: storeTimeout, maxRequest: maxRequest, logger: &serverLog{to: cfg.Logger}}
	s.ended.builds, s.home = map[uint64]*endedBuild{}, homeOf(s, cfg)
	if err := s.open(ctx, cfg); err != nil {
		s.close()
		return nil, fmt.Errorf("state directory %s: %w", cfg.Dir, err)
	}
	return s, nil
}

func (s *store) open(ctx context.Context, cfg *Config) (err error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return err
	}
	dir, err := filepath.EvalSymlinks(cfg.Dir) // Claim follows no link
	if err != nil {
		return err
	}
	if s.lock, err = filelock.Claim(dir); errors.Is(err, filelock.ErrTaken) {
		return errors.New("another manager uses it")
	} else if err != nil {
		return err
	}
	if s.key, err = seal.OpenKey(cfg.KeyFile); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.home.open(ctx); err != nil {
		return err
	}
	if err := s.openStreams(ctx, cfg); err != nil {
		return errors.Join(err, s.logger.fatal())
	}
	err = s.persist(ctx, func(ctx context.Context) error { return s.checkKey(ctx, cfg.KeyFile) })
	if err != nil {
		return err
	}
	return s.home.check(ctx, cfg)
}

func (s *store) openStreams(ctx context.Context, cfg *Config) (err error) {
	s.queue, err = s.stream(ctx, jetstream.StreamConfig{
		Name: queueStream, Subjects: []string{"stepmux.queue.*"}, Retention: jetstream.WorkQueuePolicy,
		Duplicates: keyTime,
	})
	if err != nil {
		return fmt.Errorf("open the queue: %w", err)
	}
	s.before = s.queue.CachedInfo().State.LastSeq
	s.logs, err = s.stream(ctx, jetstream.StreamConfig{
		Name: logsStream, Subjects: []string{logsSubject + "*"}, MaxAge: cfg.Keep, MaxBytes: cfg.LogBytes,
		Duplicates: min(time.Minute, cfg.Keep),
	})
	if err != nil {
		return fmt.Errorf("open the logs: %w", err)
	}
	if s.builds, err = s.bucket(ctx, buildsBucket, 0, recordMark); err != nil { // for the age of builds that have ended
		return fmt.Errorf("open the builds: %w", err)
	}
	if s.fleet, err = s.bucket(ctx, fleetBucket, 0, 0); err != nil {
		return fmt.Errorf("open the fleet's state: %w", err)
	}
	if err := s.openAudit(ctx); err != nil {
		return err
	}
	return s.persist(ctx, func(ctx context.Context) (err error) {
		s.history, err = s.js.Stream(ctx, "KV_"+buildsBucket)
		return err
	})
}

// checkKey returns an error if the state was sealed with another key.
func (s *store) checkKey(ctx context.Context, file string) error {
	const name, use = "key", "check of the key"
	entry, err := s.fleet.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		_, err = s.fleet.Create(ctx, name, s.key.Seal(use, nil))
		return err
	}
	if err != nil {
		return err
	}
	if _, err := s.key.Open(use, entry.Value()); err != nil {
		return fmt.Errorf("the requests there were sealed with another key than that in %s", file)
	}
	return nil
}

// close ends the store. All that was acknowledged is on disk.
func (s *store) close() {
	s.home.close()
	if s.lock != nil {
		filelock.Release(s.lock)
	}
}

// err returns why the store cannot keep anything any more, or nil.
func (s *store) err() error {
	if err := s.logger.fatal(); err != nil {
		return err
	}
	if s.nc.IsClosed() {
		return fmt.Errorf("the connection to NATS was closed: %w", cmp.Or(s.nc.LastError(), nats.ErrConnectionClosed))
	}
	return s.home.lost()
}

// buildID returns the ID of the build whose request has this place in the queue and this key: it is found by its ID,
// and unique even if the state directory was made anew.
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

// request is a build in the queue.
type request struct {
	id        string
	seq       uint64
	key       string
	project   string // that the build needs; may be empty
	sealed    []byte // with the key
	submitted time.Time
	// fresh says that the request was queued since the manager started, and that it was handed out for the first time: no
	// other has begun the build, which has neither a record nor a log. If that is wrong, as when the build was canceled
	// meanwhile, the first write of either fails.
	fresh bool
}

// projectHeader is the header of a request with the project that its build needs.
const projectHeader = "Stepmux-Project"

// push queues a request. When it returns, that is on disk.
func (s *store) push(ctx context.Context, key, project string, text []byte) (id string, err error) {
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

// requestOf returns the request that a message of the queue has.
func requestOf(seq uint64, h nats.Header, sealed []byte, submitted time.Time) *request {
	key := h.Get(nats.MsgIdHdr)
	return &request{
		id: buildID(seq, key), seq: seq, key: key, project: h.Get(projectHeader), sealed: sealed, submitted: submitted,
	}
}

// queued returns the first request at or after a place in the queue, or nil.
func (s *store) queued(ctx context.Context, seq uint64) (*request, error) {
	msg, err := s.queue.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(queueSubject))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the queue: %w", err)
	}
	return requestOf(msg.Sequence, msg.Header, msg.Data, msg.Time), nil
}

// queuedProjects returns the projects of all requests in the queue whose builds have not ended.
func (s *store) queuedProjects(ctx context.Context) (map[string]bool, error) {
	needed := map[string]bool{}
	for seq := uint64(1); ; {
		r, err := s.queued(ctx, seq)
		if r == nil {
			return needed, err
		}
		if !s.hasEnded(r.seq) {
			needed[r.project] = true
		}
		seq = r.seq + 1
	}
}

// find returns the request of a build, nil if it is not in the queue.
func (s *store) find(ctx context.Context, id string) (*request, error) {
	seq := placeOf(id)
	if seq == 0 {
		return nil, nil
	}
	r, err := s.queued(ctx, seq)
	if r != nil && r.id != id {
		r = nil
	}
	return r, err
}

// phases of a build's record. A build without a record is queued.
const (
	phaseWaiting = ""        // it was lost, and is to run again
	phaseRunning = "running" // its job may have been delivered
	phaseEnded   = "ended"
)

// result is the outcome of a build.
type result struct {
	Reason   string   `json:"reason,omitempty"` // empty for success
	ExitCode int      `json:"exit_code,omitempty"`
	Message  string   `json:"message,omitempty"`
	Left     []string `json:"left,omitempty"`
	// Artifacts is the length of the archive that was kept.
	Artifacts int64 `json:"artifacts,omitempty"`
	Trace     int64 `json:"trace,omitempty"` // so of the trace
}

// record is the stored state of a build, in the bucket.
type record struct {
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
	Result      *result       `json:"result,omitempty"`
	Warnings    []*pb.Warning `json:"warnings,omitempty"` // about its scripts

	revision uint64 // in the bucket; 0 if it is not there
}

// newRecord returns the record of a build that has none. asked is nil if its request cannot be read.
func newRecord(r *request, asked *pb.SubmitRequest) *record {
	return &record{
		ID: r.id, StepsFile: asked.GetJob().GetStepsFile(), Submitted: r.submitted, Warnings: asked.GetWarnings(),
	}
}

// maxID bounds the ID of a build, in bytes. No build has such a long one.
const maxID = 64

// record returns the record of a build. It returns nil if there is no record.
func (s *store) record(ctx context.Context, id string) (*record, error) {
	if len(id) > maxID { // it would be part of a subject: for a long one the store closes the connection
		return nil, nil
	}
	entry, err := s.builds.Get(ctx, id)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrInvalidKey) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the build %s: %w", id, err)
	}
	return recordOf(id, entry.Value(), entry.Revision())
}

func recordOf(id string, text []byte, revision uint64) (*record, error) {
	r := &record{revision: revision}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read the build %s: %w", id, err)
	}
	if r.ID != id {
		return nil, nil // a lease
	}
	return r, nil
}

// recordMark is how long a mark stays of a record whose time is over. When the store starts, it ends records, too:
// within this time all builds are found that had ended and whose requests are still in the queue.
const recordMark = 10 * time.Minute

// recordOrMark returns the record of the build of a request, as record does. over is set if there is none any more,
// because the build has ended and its time is over.
func (s *store) recordOrMark(ctx context.Context, id string) (rec *record, over bool, err error) {
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

// errTaken says that a record was changed by somebody else.
var errTaken = errors.New("the build's record was changed meanwhile")

// put changes a record by compare-and-set: its revision is that of the previous record, and then its own.
func (s *store) put(ctx context.Context, r *record) error {
	// As KeyValue.Update does, which knows no age.
	msg := nats.NewMsg("$KV." + buildsBucket + "." + r.ID)
	msg.Data = encode(r)
	options := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(r.revision)}
	if r.Phase == phaseEnded {
		options = append(options, jetstream.WithMsgTTL(s.keep))
	}
	ack, err := s.js.PublishMsg(ctx, msg, options...)
	if natscall.Changed(err) {
		return errTaken
	}
	if err != nil {
		return fmt.Errorf("keep the build %s: %w", r.ID, err)
	}
	r.revision = ack.Sequence
	return nil
}

// purge removes a key of a bucket, and returns the revision of the mark that stays.
func (s *store) purge(ctx context.Context, bucket, key string, options ...jetstream.PublishOpt) (uint64, error) {
	// As KeyValue.Purge does, which does not tell the revision.
	msg := nats.NewMsg("$KV." + bucket + "." + key)
	msg.Header.Set("KV-Operation", "PURGE")
	msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	ack, err := s.js.PublishMsg(ctx, msg, options...)
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// refuse ends a build that this manager does not run: its result is kept, and its request leaves the queue.
func (s *store) refuse(ctx context.Context, r *request, rec *record, log *storedLog, why *result) error {
	if rec == nil {
		asked, _ := s.read(r) // one that cannot be read may be why
		rec = newRecord(r, asked)
	}
	rec.Phase, rec.Ended, rec.Result = phaseEnded, time.Now(), why
	rec.Canceled = why.Reason == string(instance.JobCanceled)
	if err := s.put(ctx, rec); err != nil {
		return err
	}
	if err := log.end(why); err != nil { //nolint:contextcheck // bounded by the manager's life
		return err
	}
	err := s.queue.DeleteMsg(ctx, r.seq)
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
