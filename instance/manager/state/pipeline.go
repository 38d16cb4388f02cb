package state

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// These rules keep a pipeline from being lost, and its jobs from being run twice:
//
//   - A call for a pipeline is a message in the stream of calls. It stays there until a manager has carried the
//     pipeline on as far as it goes by itself, and has kept that in the record. So a pipeline that has ended, or waits
//     for somebody to start a manual job, has no call.
//   - The record names the call by which a manager carries the pipeline out. Another call finds it in the record, and
//     is taken out: the manager sees each change of the record before it puts the pipeline at rest, by compare-and-set.
//   - The ID of a build is made of the pipeline, the job and the attempt, and its record is there before its request is
//     queued. A manager that goes on with the pipeline computes the same builds, and finds how they ended.
const (
	pipelinesBucket = "STEPMUX_PIPELINES"
	callsStream     = "STEPMUX_CALLS"
	callsSubject    = "stepmux.calls"

	// The beginnings of the keys of the bucket: the record, the sealed request and the jobs of a pipeline, by its ID, the
	// sealed outputs of its builds, by their IDs, the turns of its members in concurrency groups, the locks of resource
	// groups, concurrency groups, caches, and the files of actions: the artifacts of a pipeline by its ID, and the caches
	// of a project.
	recordKey, requestKey, jobsKey, outputsKey, turnKey = "record.", "request.", "jobs.", "outputs.", "turn."
	lockKey, groupKey, cacheKey                         = "lock.", "group.", "cache."
	artifactKey, actionCacheKey                         = "artifact.", "actions."

	// pipelinePrefix begins the ID of a pipeline, and those of its builds. No other build has it.
	pipelinePrefix = "p-"
	// ForgetAfter is an age for ForgetPipelines: a submit makes a pipeline in less time.
	ForgetAfter = 10 * time.Minute
)

// The phases of a pipeline.
const (
	PipelineQueued  = "queued"
	PipelineRunning = "running"
	PipelineBlocked = "blocked"
	PipelineEnded   = "ended"
)

// Pipeline is the stored state of a pipeline.
type Pipeline struct {
	ID        string    `json:"id"`
	Phase     string    `json:"phase"`
	File      string    `json:"file,omitempty"`
	Name      string    `json:"name,omitempty"`
	Status    string    `json:"status,omitempty"`
	ExitCode  int       `json:"exit_code,omitempty"`
	Error     string    `json:"error,omitempty"`
	Submitted time.Time `json:"submitted"`
	Started   time.Time `json:"started,omitzero"`
	Ended     time.Time `json:"ended,omitzero"`
	Canceled  bool      `json:"canceled,omitempty"`
	// Killed says that it was cancelled again: jobs that go on after a cancel end, too.
	Killed bool `json:"killed,omitempty"`
	// Replaced says why a newer pipeline has cancelled it.
	Replaced string `json:"replaced,omitempty"`
	// Series and Version are those of a Planned pipeline, hashed. Newer is the part that a newer pipeline ends.
	Series  string `json:"series,omitempty"`
	Version string `json:"version,omitempty"`
	Newer   string `json:"newer,omitempty"`
	// Redundant says that a newer pipeline ends the jobs that are interruptible.
	Redundant bool `json:"redundant,omitempty"`
	// Played are the manual jobs that were started.
	Played []string `json:"played,omitempty"`
	// Rounds counts how often jobs were run again by a retry.
	Rounds map[string]int `json:"rounds,omitempty"`
	// Due has the ends of the delays of delayed jobs.
	Due map[string]time.Time `json:"due,omitempty"`
	// Counts has how many jobs there are in each status.
	Counts map[string]int32 `json:"counts,omitempty"`
	// Project is the archive that its builds need; may be empty.
	Project string `json:"project,omitempty"`
	// Call is the place of the call by which Manager carries it out, while its phase is running.
	Call    uint64 `json:"call,omitempty"`
	Manager string `json:"manager,omitempty"`

	revision uint64
}

// The values of Pipeline.Newer. It is empty for a pipeline without a series.
const (
	EndUnlessStarted = "unless-started" // all of it, unless a job that is not interruptible has started
	EndInterruptible = "interruptible"
	EndNothing       = "nothing"
)

// AtRest reports whether nobody carries the pipeline out.
func (p *Pipeline) AtRest() bool { return p.Phase == PipelineBlocked || p.Phase == PipelineEnded }

// After reports whether the record is a later revision than another one.
func (p *Pipeline) After(other *Pipeline) bool { return p.revision > other.revision }

// IsPipeline reports whether an ID is that of a pipeline, not of a build.
func IsPipeline(id string) bool {
	rest, ok := strings.CutPrefix(id, pipelinePrefix)
	return ok && !strings.Contains(rest, "-")
}

// PipelineID returns the ID of the pipeline whose request has a key.
func PipelineID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return pipelinePrefix + hex.EncodeToString(sum[:6])
}

// Digest returns a digest of texts, by which they can be compared.
func Digest(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// PipelineBuildID returns the ID of a build of a pipeline.
func PipelineBuildID(pipeline, job string, round, attempt int) string {
	sum := sha256.Sum256([]byte(job))
	return fmt.Sprintf("%s-%s-%d-%d", pipeline, hex.EncodeToString(sum[:6]), round, attempt)
}

// PipelineOf returns the ID of the pipeline that an ID of a build names, or "".
func PipelineOf(build string) string {
	rest, ok := strings.CutPrefix(build, pipelinePrefix)
	name, _, inside := strings.Cut(rest, "-")
	if !ok || !inside {
		return ""
	}
	return pipelinePrefix + name
}

func (s *Store) openPipelines(ctx context.Context) (err error) {
	s.calls, err = s.stream(ctx, jetstream.StreamConfig{
		Name: callsStream, Subjects: []string{callsSubject}, Retention: jetstream.WorkQueuePolicy,
	})
	if err == nil {
		s.Pipelines, err = s.Bucket(ctx, pipelinesBucket, 0, s.marks())
	}
	if err != nil {
		return fmt.Errorf("open the pipelines: %w", err)
	}
	return nil
}

// OpenCalls returns the queue of calls for pipelines, as OpenQueue does for builds.
func (s *Store) OpenCalls(ctx context.Context, wait time.Duration) (*Queue, error) {
	return s.openConsumer(ctx, s.calls, callsSubject, wait)
}

// Call calls for a manager that carries a pipeline out, and returns the place of the call. It is for one manager first,
// unless that is empty.
func (s *Store) Call(ctx context.Context, id, manager string) (place uint64, err error) {
	msg := nats.NewMsg(callsSubject)
	msg.Data = []byte(id)
	if manager != "" {
		msg.Header.Set(managerHeader, manager)
	}
	ack, err := s.js.PublishMsg(ctx, msg)
	if err != nil {
		return 0, fmt.Errorf("call for the pipeline %s: %w", id, err)
	}
	return ack.Sequence, nil
}

// Called returns the pipeline for which a delivery calls, and the place of the call.
func (d *Delivery) Called() (id string, place uint64, err error) {
	at, err := d.msg.Metadata()
	if err != nil {
		return "", 0, err
	}
	return string(d.msg.Data()), at.Sequence.Stream, nil
}

// PutPipeline changes a record by compare-and-set, as Put does. The record of a pipeline at rest is kept for a time.
func (s *Store) PutPipeline(ctx context.Context, p *Pipeline) error {
	options := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(p.revision)}
	if p.AtRest() {
		options = append(options, jetstream.WithMsgTTL(s.cfg.Keep))
	}
	revision, err := s.Write(ctx, s.Pipelines, recordKey+p.ID, natscall.Encode(p), options...)
	if natscall.Changed(err) {
		return ErrTaken
	}
	if err != nil {
		return fmt.Errorf("keep the pipeline %s: %w", p.ID, err)
	}
	p.revision = revision
	return nil
}

// Pipeline returns the record of a pipeline, nil without one.
func (s *Store) Pipeline(ctx context.Context, id string) (*Pipeline, error) {
	if !IsPipeline(id) || len(id) > maxID {
		return nil, nil
	}
	entry, err := s.Pipelines.Get(ctx, recordKey+id)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrInvalidKey) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the pipeline %s: %w", id, err)
	}
	return readPipeline(keyValue{entry.Key(), entry.Value(), entry.Revision()})
}

func readPipeline(v keyValue) (*Pipeline, error) {
	p := &Pipeline{revision: v.revision}
	if err := json.Unmarshal(v.text, p); err != nil {
		return nil, fmt.Errorf("read the pipeline %s: %w", strings.TrimPrefix(v.key, recordKey), err)
	}
	return p, nil
}

// AllPipelines returns all records, the latest first.
func (s *Store) AllPipelines(ctx context.Context) (all []*Pipeline, err error) {
	entries, err := natscall.Entries(ctx, s.Pipelines, recordKey+"*")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if p, err := readPipeline(keyValue{entry.Key(), entry.Value(), entry.Revision()}); err == nil {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *Pipeline) int { return b.Submitted.Compare(a.Submitted) })
	return all, nil
}

// WatchPipeline calls changed with the record and with the jobs of a pipeline, now and after each change of one of
// them, until that returns false. The record is nil if it is not kept any more.
func (s *Store) WatchPipeline(ctx context.Context, id string, changed func(p *Pipeline, jobs *pb.Pipeline) bool) error {
	var p *Pipeline
	jobs := &pb.Pipeline{}
	keys := []string{recordKey + id, jobsKey + id}
	return s.home.watch(ctx, s.Pipelines, keys, func(all []keyValue) (bool, error) {
		news := false
		for _, v := range all {
			switch isJobs := v.key == keys[1]; {
			case v.text == nil && isJobs:
				news = true
			case v.text == nil:
				p, news = nil, true
			case isJobs:
				told, err := readJobs(v.text)
				if err != nil {
					return false, err
				}
				jobs, news = told, true
			default:
				now, err := readPipeline(v)
				if err != nil {
					return false, err
				}
				if p == nil || now.After(p) {
					p, news = now, true
				}
			}
		}
		return !news || changed(p, jobs), nil
	})
}

// PutJobs keeps the jobs of a pipeline as they are shown.
func (s *Store) PutJobs(ctx context.Context, id string, jobs *pb.Pipeline) error {
	text, err := packJobs(jobs)
	if err == nil && len(text) > s.MaxRequest { // thousands of jobs with long names that have nothing in common
		text, err = packJobs(&pb.Pipeline{Name: jobs.GetName(), Notes: []string{"the jobs are too many to be shown"}})
	}
	if err != nil {
		return err
	}
	if _, err := s.Write(ctx, s.Pipelines, jobsKey+id, text); err != nil {
		return fmt.Errorf("keep the jobs of the pipeline %s: %w", id, err)
	}
	return nil
}

// Jobs returns the jobs as PutJobs has kept them, or an empty message.
func (s *Store) Jobs(ctx context.Context, id string) (*pb.Pipeline, error) {
	entry, err := s.Pipelines.Get(ctx, jobsKey+id)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return &pb.Pipeline{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the jobs of the pipeline %s: %w", id, err)
	}
	return readJobs(entry.Value())
}

// packJobs compresses the jobs of a pipeline: their names, stages and states are much alike.
func packJobs(jobs *pb.Pipeline) ([]byte, error) {
	text, err := proto.Marshal(jobs)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	to, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err == nil {
		_, err = to.Write(text)
	}
	if err == nil {
		err = to.Close()
	}
	return packed.Bytes(), err
}

func readJobs(packed []byte) (*pb.Pipeline, error) {
	jobs := &pb.Pipeline{}
	from, err := gzip.NewReader(bytes.NewReader(packed))
	var text []byte
	if err == nil {
		text, err = io.ReadAll(from)
	}
	if err == nil {
		err = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, jobs)
	}
	if err != nil {
		return nil, fmt.Errorf("read the jobs of a pipeline: %w", err)
	}
	return jobs, nil
}

// KeepRequest keeps the request of a pipeline, sealed. It is nothing new if there is one.
func (s *Store) KeepRequest(ctx context.Context, id string, asked *pb.SubmitPipelineRequest) error {
	text, err := proto.Marshal(asked)
	if err != nil {
		return err
	}
	_, err = s.Pipelines.Create(ctx, requestKey+id, s.key.Seal(requestKey+id, text))
	if err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
		return fmt.Errorf("keep the request of the pipeline %s: %w", id, err)
	}
	return nil
}

// PipelineRequest returns the request of a pipeline.
func (s *Store) PipelineRequest(ctx context.Context, id string) (*pb.SubmitPipelineRequest, error) {
	entry, err := s.Pipelines.Get(ctx, requestKey+id)
	if err != nil {
		return nil, fmt.Errorf("read the request of the pipeline %s: %w", id, err)
	}
	text, err := s.key.Open(requestKey+id, entry.Value())
	if err != nil {
		return nil, fmt.Errorf("open the request of the pipeline %s with the key: %w", id, err)
	}
	asked := &pb.SubmitPipelineRequest{}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, asked); err != nil {
		return nil, fmt.Errorf("read the request of the pipeline %s: %w", id, err)
	}
	return asked, nil
}
