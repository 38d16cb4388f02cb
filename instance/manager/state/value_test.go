package state

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// A key that was changed before it went came back with an older value after a kill: the server notes no removals by the
// limit of messages of a key, and reads its files anew. A build that had ended long before was open again, and the
// pipeline that it was of could have run it again.
func TestNothingThatHasGoneComesBackAfterAKill(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := open(t)
	// Files without a message that stays are removed, with all that is in them.
	for _, bucket := range []jetstream.KeyValue{s.Builds, s.Fleet, s.Pipelines} {
		_, err := bucket.Create(ctx, "stays", nil)
		require.NoError(t, err)
	}
	putBuild := func(r *Record) {
		for _, r.Phase = range []string{PhaseWaiting, PhaseRunning, PhaseRunning, PhaseEnded} {
			require.NoError(t, s.Put(ctx, r))
		}
	}
	putBuild(&Record{ID: "b-1"})
	p := &Pipeline{ID: PipelineID("p")}
	require.NoError(t, s.KeepRequest(ctx, p.ID, &pb.SubmitPipelineRequest{}))
	for _, p.Phase = range []string{PipelineRunning, PipelineRunning, PipelineBlocked, PipelineRunning, PipelineEnded} {
		require.NoError(t, s.PutPipeline(ctx, p))
		require.NoError(t, s.PutJobs(ctx, p.ID, &pb.Pipeline{Name: p.Phase}))
	}
	build := PipelineBuildID(p.ID, "job", 0, 1)
	putBuild(&Record{ID: build, Pipeline: p.ID, Job: "job"})
	for _, member := range []string{build, PipelineBuildID(p.ID, "job2", 0, 1)} {
		_, _, err := s.Advance(ctx, "group", member, true)
		require.NoError(t, err)
		require.NoError(t, s.KeepOutputs(ctx, member, &stepmuxv1.Outputs{}))
		require.NoError(t, s.KeepOutputs(ctx, member, &stepmuxv1.Outputs{}))
	}
	require.NoError(t, s.Leave(ctx, "group", build, Done))
	for _, place := range []string{ArtifactsOf(p.ID), ArtifactsOf("b-1"), CachesOf("project")} {
		require.NoError(t, s.PutFile(ctx, place, "name", &File{Digest: "a"}, nil))
		for range 3 {
			f, err := s.FindFile(ctx, place, "name")
			require.NoError(t, err)
			require.NoError(t, s.UseFile(ctx, f))
		}
	}
	require.NoError(t, s.RemoveFile(ctx, CachesOf("project"), "name"))
	require.NoError(t, s.NameCache(ctx, "ab", &pb.Archive{}))
	for range 3 {
		_, err := s.FindCache(ctx, "ab")
		require.NoError(t, err)
		require.NoError(t, s.KeepText(ctx, "gitea.task", []byte("text")))
	}
	revision, err := s.KeepTask(ctx, "gitea.task.7", "a", []byte("text"), 0)
	require.NoError(t, err)
	for range 3 {
		_, revision, err = s.TakeTask(ctx, "gitea.task.7", revision, "b", func(string) bool { return true })
		require.NoError(t, err)
		revision, err = s.KeepTask(ctx, "gitea.task.7", "b", []byte("text "+strconv.FormatUint(revision, 10)), revision)
		require.NoError(t, err)
	}
	claimed := uint64(0)
	for range 4 {
		claimed, err = s.Write(ctx, s.Fleet, "vm.a", []byte("x"), jetstream.WithExpectLastSequencePerSubject(claimed))
		require.NoError(t, err)
	}
	_, err = s.Purge(ctx, s.Fleet, "vm.a", jetstream.WithMsgTTL(recordMark))
	require.NoError(t, err)
	require.NoError(t, s.ForgetText(ctx, "gitea.task"))
	require.NoError(t, s.ForgetText(ctx, "gitea.task.7"))

	// What is still there ends with its time: the records of the build and of the pipeline, at last the marks.
	expire := func() {
		for _, bucket := range []jetstream.KeyValue{s.Builds, s.Fleet, s.Pipelines} {
			stream, err := s.js.Stream(ctx, "KV_"+bucket.Bucket())
			require.NoError(t, err)
			watch, err := bucket.WatchAll(ctx)
			require.NoError(t, err)
			kept, err := natscall.Present(ctx, watch)
			require.NoError(t, err)
			for _, entry := range kept {
				msg, err := stream.GetMsg(ctx, entry.Revision())
				require.NoError(t, err)
				if msg.Header.Get(jetstream.MsgTTLHeader) == "" {
					continue
				}
				all, err := stream.Info(ctx, jetstream.WithSubjectFilter(msg.Subject))
				require.NoError(t, err)
				require.Equal(t, map[string]uint64{msg.Subject: 1}, all.State.Subjects)
				require.NoError(t, stream.Purge(ctx, jetstream.WithPurgeSubject(msg.Subject)))
			}
			require.NoError(t, watch.Stop())
		}
	}
	expire()
	require.NoError(t, s.ForgetPipelines(ctx, -time.Minute)) // also what is as old as now
	expire()

	dir := filepath.Join(t.TempDir(), "killed")
	require.NoError(t, os.CopyFS(dir, os.DirFS(s.cfg.Dir)))
	cfg := s.cfg
	cfg.Dir = dir
	after, err := Open(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(after.Close)
	for _, s := range []*Store{s, after} {
		for _, bucket := range []jetstream.KeyValue{s.Builds, s.Fleet, s.Pipelines} {
			keys, err := keysOf(ctx, bucket)
			require.NoError(t, err)
			delete(keys, "key") // of Fleet
			require.Contains(t, keys, "stays")
			require.Len(t, keys, 1)
		}
	}
}
