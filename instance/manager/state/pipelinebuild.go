package state

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// buildHeader is the header of a request with the ID of its build, if that is not made of its place and its key.
const buildHeader = "Stepmux-Build"

// managerHeader is the header of a request, and of a call for a pipeline, that is for a manager first: that one has a
// slot for it.
const managerHeader = "Stepmux-Manager"

// PushBuild queues a build of a pipeline, which has a record, and returns its request. If the queue has its request
// already, it has two then: that does no harm, since a build is known by its record. Unless manager is empty, the
// request is for that one first.
func (s *Store) PushBuild(
	ctx context.Context, id string, asked *pb.SubmitRequest, manager string,
) (*Request, error) {
	text, err := proto.Marshal(asked)
	if err != nil {
		return nil, err
	}
	if len(text) > s.MaxRequest {
		return nil, fmt.Errorf("the request has %d bytes, at most %d can be queued", len(text), s.MaxRequest)
	}
	msg := nats.NewMsg(queueSubject)
	msg.Header.Set(buildHeader, id)
	if manager != "" {
		msg.Header.Set(managerHeader, manager)
	}
	projects := []string{}
	if asked.GetProject() != "" {
		projects = append(projects, asked.GetProject())
	}
	for _, a := range asked.GetPipeline().GetArchives() {
		projects = append(projects, a.GetDigest())
	}
	if len(projects) > 0 {
		msg.Header.Set(projectHeader, strings.Join(projects, " "))
	}
	msg.Data = s.key.Seal(id, text)
	ack, err := s.js.PublishMsg(ctx, msg, jetstream.WithMsgID(id))
	if err != nil {
		return nil, fmt.Errorf("queue the build: %w", err)
	}
	return requestOf(ack.Sequence, msg.Header, msg.Data, time.Now()), nil
}

// QueuedOf returns the builds of a pipeline whose requests are in the queue.
func (s *Store) QueuedOf(ctx context.Context, pipeline string) (map[string]bool, error) {
	all := map[string]bool{}
	for seq := uint64(1); ; {
		r, err := s.Queued(ctx, seq)
		if r == nil {
			return all, err
		}
		if PipelineOf(r.ID) == pipeline {
			all[r.ID] = true
		}
		seq = r.Seq + 1
	}
}

// BuildsOf returns the records of the builds of a pipeline.
func (s *Store) BuildsOf(ctx context.Context, pipeline string) (all []*Record, err error) {
	keys, err := keysOf(ctx, s.Builds)
	for id := range keys {
		if PipelineOf(id) != pipeline || err != nil {
			continue
		}
		var r *Record
		if r, err = s.Record(ctx, id); r != nil {
			all = append(all, r)
		}
	}
	return all, err
}

// IsOfRound reports whether a build is one of a job of a pipeline that has run again so many times.
func IsOfRound(build, pipeline, job string, round int) bool {
	return strings.HasPrefix(build, strings.TrimSuffix(PipelineBuildID(pipeline, job, round, 0), "0"))
}

// KeepOutputs keeps the outputs of a build of a pipeline, sealed.
func (s *Store) KeepOutputs(ctx context.Context, build string, outputs *stepmuxv1.Outputs) error {
	text, err := proto.Marshal(outputs)
	if err != nil {
		return err
	}
	if _, err := s.Write(ctx, s.Pipelines, outputsKey+build, s.key.Seal(outputsKey+build, text)); err != nil {
		return fmt.Errorf("keep the outputs of the build %s: %w", build, err)
	}
	return nil
}

// Outputs returns the outputs of a build of a pipeline. They are nil if none are kept.
func (s *Store) Outputs(ctx context.Context, build string) (*stepmuxv1.Outputs, error) {
	entry, err := s.Pipelines.Get(ctx, outputsKey+build)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	var text []byte
	if err == nil {
		text, err = s.key.Open(outputsKey+build, entry.Value())
	}
	outputs := &stepmuxv1.Outputs{}
	if err == nil {
		err = proto.Unmarshal(text, outputs)
	}
	if err != nil {
		return nil, fmt.Errorf("read the outputs of the build %s: %w", build, err)
	}
	return outputs, nil
}

// Lock takes the lock of a resource group for a build with a record. It returns the build that has it, which is another
// one if the lock is taken. A lock is free once the build that has it has ended: nobody gives it back.
func (s *Store) Lock(ctx context.Context, name, build string) (holder string, err error) {
	key := lockKey + Digest(name)
	for {
		entry, err := s.Pipelines.Get(ctx, key)
		revision := uint64(0)
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			_, err = s.Pipelines.Create(ctx, key, []byte(build))
			if errors.Is(err, jetstream.ErrKeyExists) {
				continue
			}
			return build, err
		case err != nil:
			return "", err
		}
		revision, holder = entry.Revision(), string(entry.Value())
		if holder == build {
			return build, nil
		}
		rec, err := s.Record(ctx, holder)
		if err != nil {
			return "", err
		}
		if rec != nil && rec.Phase != PhaseEnded {
			return holder, nil
		}
		if _, err = s.Pipelines.Update(ctx, key, []byte(build), revision); !natscall.Changed(err) {
			return build, err
		}
	}
}

// ForgetPipelines removes the requests, the jobs, the artifacts and the records of builds of pipelines whose record is
// not kept any more, and concurrency groups without members, if they are older than an age.
func (s *Store) ForgetPipelines(ctx context.Context, age time.Duration) error {
	known := map[string]bool{}
	keys, err := keysOf(ctx, s.Pipelines)
	if err != nil {
		return err
	}
	for key := range keys {
		if id, ok := strings.CutPrefix(key, recordKey); ok {
			known[id] = true
		}
	}
	for key, created := range keys {
		kind, id, _ := strings.Cut(key, ".")
		switch kind += "."; kind {
		case outputsKey, turnKey:
			id = PipelineOf(id)
		case requestKey, jobsKey, groupKey:
		case artifactKey:
			if id = pipelineAt(key); id == "" { // it ages
				continue
			}
		default:
			continue
		}
		if known[id] || time.Since(created) < age {
			continue
		}
		if kind == groupKey {
			if err := s.forgetGroup(ctx, key); err != nil {
				return err
			}
			continue
		}
		if _, err := s.Purge(ctx, s.Pipelines, key, jetstream.WithMsgTTL(recordMark)); err != nil {
			return err
		}
	}
	builds, err := keysOf(ctx, s.Builds)
	if err != nil {
		return err
	}
	for key, created := range builds {
		if of := PipelineOf(key); of == "" || known[of] || time.Since(created) < age {
			continue
		}
		if _, err := s.Purge(ctx, s.Builds, key, jetstream.WithMsgTTL(recordMark)); err != nil {
			return err
		}
	}
	return nil
}

// keysOf returns the keys of a bucket, with the times of their values.
func keysOf(ctx context.Context, of jetstream.KeyValue) (map[string]time.Time, error) {
	all := map[string]time.Time{}
	watch, err := of.WatchAll(ctx, jetstream.IgnoreDeletes(), jetstream.MetaOnly())
	if err != nil {
		return nil, fmt.Errorf("list the keys of %s: %w", of.Bucket(), err)
	}
	defer func() { _ = watch.Stop() }() // it may be closed
	found, err := natscall.Present(ctx, watch)
	if err != nil {
		return nil, fmt.Errorf("list the keys of %s: %w", of.Bucket(), err)
	}
	for _, entry := range found {
		all[entry.Key()] = entry.Created()
	}
	return all, nil
}
