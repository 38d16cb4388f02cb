package manager

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/buildlog"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/archive"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/instance/manager/seal"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Dir returns the state directory of the manager.
func (m *Manager) Dir() string { return m.cfg.Dir }

// jetStream returns a client of the store.
func (m *Manager) jetStream(t *testing.T) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(m.store.Conn)
	require.NoError(t, err)
	return js
}

// stream returns a stream of the store as it is now.
func (m *Manager) stream(t *testing.T, name string) jetstream.Stream {
	t.Helper()
	stream, err := m.jetStream(t).Stream(t.Context(), name)
	require.NoError(t, err)
	return stream
}

// Tell says that something happened to a VM.
func (m *Manager) Tell(kind, id, note string) {
	m.tell(state.Event{Kind: kind, Instance: id, Note: note})
}

// Readers returns how many readers of logs the store knows.
func (m *Manager) Readers(t *testing.T) int {
	t.Helper()
	return m.stream(t, "STEPMUX_LOGS").CachedInfo().State.Consumers
}

// BoundRequests bounds requests, and outputs of builds, as a NATS server with a small max_payload does.
func (m *Manager) BoundRequests(bytes int) { m.store.MaxRequest = bytes }

// Requests returns how many requests the queue has.
func (m *Manager) Requests(t *testing.T) uint64 {
	t.Helper()
	return m.stream(t, "STEPMUX_QUEUE").CachedInfo().State.Msgs
}

// Pieces returns how many pieces all logs have together.
func (m *Manager) Pieces(t *testing.T) uint64 {
	t.Helper()
	return m.stream(t, "STEPMUX_LOGS").CachedInfo().State.Msgs
}

// SweepFiles removes the projects that no build needs, until there is room for so many bytes more.
func (m *Manager) SweepFiles(t *testing.T, more int64) error {
	t.Helper()
	return m.files.Sweep(t.Context(), more)
}

// Projects returns how many projects a cluster has.
func (m *Manager) Projects(t *testing.T) int {
	t.Helper()
	all, err := m.files.(*archive.Shared).Projects.List(t.Context())
	require.NoError(t, err)
	return len(all)
}

// SweepAround removes the projects of a cluster that no build needs, and calls do between the look at them and their
// removal. It returns how many messages there are in the store then.
func (m *Manager) SweepAround(t *testing.T, more int64, do func()) (left uint64) {
	t.Helper()
	projects := m.files.(*archive.Shared).Projects
	_, err := projects.Sweep(t.Context(), more, m.cfg.Keep, func(context.Context) (map[string]bool, error) {
		do()
		return nil, nil
	})
	require.NoError(t, err)
	return m.stream(t, "OBJ_STEPMUX_PROJECTS").CachedInfo().State.Msgs
}

// PutPart stores a piece of a project whose upload does not go on.
func (m *Manager) PutPart(t *testing.T) {
	t.Helper()
	_, err := m.jetStream(t).Publish(t.Context(), "$O.STEPMUX_PROJECTS.C.part", []byte("part"))
	require.NoError(t, err)
}

// Damage cuts off the only piece of an archive in NATS, or replaces it. The manager's copies of projects are removed.
func (m *Manager) Damage(t *testing.T, name string, cut bool) {
	t.Helper()
	copies := filepath.Join(m.cfg.Dir, "projects")
	require.NoError(t, os.RemoveAll(copies))
	require.NoError(t, os.Mkdir(copies, 0o700))
	find := func(bucket string) *jetstream.ObjectInfo {
		objects, err := m.jetStream(t).ObjectStore(t.Context(), bucket)
		require.NoError(t, err)
		info, err := objects.GetInfo(t.Context(), name)
		if !errors.Is(err, jetstream.ErrObjectNotFound) {
			require.NoError(t, err)
		}
		return info
	}
	info := find("STEPMUX_ARTIFACTS")
	if info == nil {
		info = find("STEPMUX_PROJECTS")
		require.NotNil(t, info)
	}
	stream := m.stream(t, "OBJ_"+info.Bucket)
	subject := "$O." + info.Bucket + ".C." + info.NUID
	piece, err := stream.GetLastMsgForSubject(t.Context(), subject)
	require.NoError(t, err)
	require.NoError(t, stream.DeleteMsg(t.Context(), piece.Sequence))
	if !cut {
		_, err = m.jetStream(t).Publish(t.Context(), subject, make([]byte, len(piece.Data)))
		require.NoError(t, err)
	}
}

// PutAndGo stores an archive for a caller that goes away when NATS gets the description. It returns what is there then.
func (m *Manager) PutAndGo(t *testing.T, name, text string) (read string, err error) {
	t.Helper()
	o := m.files.(*archive.Shared).Artifacts
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	described, err := m.store.Conn.Subscribe("$O.STEPMUX_ARTIFACTS.M.>", func(*nats.Msg) { cancel() })
	require.NoError(t, err)
	require.NoError(t, m.store.Conn.Flush())
	_ = o.Put(ctx, name, strings.NewReader(text)) // it may have been told before
	<-ctx.Done()
	require.NoError(t, described.Unsubscribe())
	var got strings.Builder
	err = o.Read(t.Context(), name, &got)
	for errors.Is(err, fs.ErrNotExist) { // it is under way
		err = o.Read(t.Context(), name, &got)
	}
	return got.String(), err
}

// SetRest sets how long after its last use a project of a cluster stays.
func (m *Manager) SetRest(t *testing.T, rest time.Duration) {
	t.Helper()
	f := m.files.(*archive.Shared)
	f.Projects.Rest, f.Artifacts.Rest = rest, rest
}

// Withdraw takes a VM from the manager, whose claim stays for now: a build that is resumed there finds it elsewhere.
func (m *Manager) Withdraw(id string) { m.cfg.Provider.Yield(id, m.abandon) }

// Holds returns how many VMs the manager of a cluster has.
func (m *Manager) Holds() int { return len(m.fleet.(*shared).Held()) }

// ShortenGuestTime sets how long a connection may take to show the token from now on, until restore is called. The test
// must not be parallel.
func ShortenGuestTime(t *testing.T, d time.Duration) (restore func()) {
	t.Helper()
	shortGuestTime.Store(int64(d))
	restore = func() { shortGuestTime.Store(0) }
	t.Cleanup(restore)
	return restore
}

// Taken returns how many builds the manager has taken from the queue.
func (m *Manager) Taken() int { return len(m.builds()) }

// MaxHeld bounds the builds that a manager has taken from the queue and that have no slot.
const MaxHeld = maxHeld

// Waiting returns the builds that wait for a slot, in the order in which they get one.
func (m *Manager) Waiting() []string { return m.cfg.Group.Waiting() }

// ReserveAndGo reserves a lease for a caller that goes away when the store gets the lease's record. It reports whether
// there is a record then.
func (m *Manager) ReserveAndGo(t *testing.T, name string) (kept bool, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	record := "$KV." + m.store.Builds.Bucket() + "." + leasePrefix + name
	stored, err := m.store.Conn.Subscribe(record, func(*nats.Msg) { cancel() })
	require.NoError(t, err)
	require.NoError(t, m.store.Conn.Flush())
	_, _, _, err = m.reserve(ctx, leaseRequest{name: name}, func(int) error { return nil })
	require.NoError(t, stored.Unsubscribe())
	_, findErr := m.store.Builds.Get(t.Context(), leasePrefix+name)
	if !errors.Is(findErr, jetstream.ErrKeyNotFound) {
		require.NoError(t, findErr)
	}
	return findErr == nil, err
}

// ReserveHeld reserves a lease that ends with a process.
func (m *Manager) ReserveHeld(t *testing.T, name string, pid int) {
	t.Helper()
	_, start, err := statOf(pid)
	require.NoError(t, err)
	r := leaseRequest{name: name, holder: &holder{pid, start}}
	_, _, _, err = m.reserve(t.Context(), r, func(int) error { return nil })
	require.NoError(t, err)
}

// KeepResult keeps the artifacts or the trace of a build.
func (m *Manager) KeepResult(t *testing.T, name string, file *os.File) error {
	t.Helper()
	return m.files.KeepResult(t.Context(), name, file)
}

// Keeps reports whether the store has the record of a lease.
func (m *Manager) Keeps(t *testing.T, name string) bool {
	t.Helper()
	_, err := m.store.Builds.Get(t.Context(), leasePrefix+name)
	return !errors.Is(err, jetstream.ErrKeyNotFound)
}

// Release ends a lease as a call does that is under way when the manager ends.
func (m *Manager) Release(ctx context.Context, name string) error {
	_, err := (&service{m: m}).Release(ctx, &pb.ReleaseRequest{Lease: name})
	return err
}

// CountLife has managers count the contexts that their lives hold, which end with them. It returns the number of the
// last manager that was opened. The test must not be parallel.
func CountLife(t *testing.T) (holds func() int) {
	t.Helper()
	var life *countedLife
	newLife = func(ctx context.Context) (context.Context, context.CancelCauseFunc) {
		ctx, end := context.WithCancelCause(ctx)
		life = &countedLife{Context: ctx, done: make(chan struct{})}
		context.AfterFunc(ctx, func() { close(life.done) })
		return life, end
	}
	t.Cleanup(func() { newLife = context.WithCancelCause })
	return func() int { return int(life.held.Load()) }
}

// countedLife counts the contexts that are derived from it and have not ended. Its channel is not that of the context
// in it, so that package context does not keep them there but calls AfterFunc.
type countedLife struct {
	context.Context
	done chan struct{}
	held atomic.Int64
}

func (l *countedLife) Done() <-chan struct{} { return l.done }

func (l *countedLife) AfterFunc(f func()) (stop func() bool) {
	l.held.Add(1)
	unregister := context.AfterFunc(l.Context, f)
	return func() bool {
		stopped := unregister()
		if stopped {
			l.held.Add(-1)
		}
		return stopped
	}
}

// RecentProjects returns how many projects the manager holds for requests that may not be in the queue yet.
func (m *Manager) RecentProjects() int {
	return m.files.(*archive.Dirs).Recent()
}

// Settled reports whether the manager takes out a VM if and only if the state says so.
func (m *Manager) Settled(t *testing.T, id string) bool {
	t.Helper()
	_, err := m.store.Fleet.Get(t.Context(), drainKey(id))
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return false // a NATS server on a busy machine may be late
	}
	m.mu.Lock()
	known := m.drains[id] != nil && !m.drains[id].over
	m.mu.Unlock()
	for _, vm := range m.cfg.Provider.Stat().Instances {
		if vm.ID == id && vm.State != instance.Elsewhere && (vm.State == instance.Draining) != known {
			return false
		}
	}
	return known == (err == nil)
}

// DrainIsForgotten reports whether the state has nothing of a drain, except a mark that goes by itself.
func (m *Manager) DrainIsForgotten(t *testing.T, id string) bool {
	t.Helper()
	stream := m.stream(t, "KV_"+m.store.Fleet.Bucket())
	msg, err := stream.GetLastMsgForSubject(t.Context(), "$KV."+m.store.Fleet.Bucket()+"."+drainKey(id))
	require.NoError(t, err)
	return msg.Header.Get("KV-Operation") == "PURGE" && msg.Header.Get(jetstream.MsgTTLHeader) != ""
}

// AcceptLate takes a request from the queue as a manager does that was stopped for longer than its lease. It
// returns the number of the delivery, and whether the manager has begun the build.
func (m *Manager) AcceptLate(t *testing.T) (number int, begun bool) {
	t.Helper()
	queue, err := m.store.OpenQueue(t.Context(), m.cfg.Lease)
	require.NoError(t, err)
	d, err := queue.Next(t.Context())
	require.NoError(t, err)
	d.Until = m.fleet.keptUntil(time.Now().Add(-m.cfg.Lease))
	require.NoError(t, m.accept(d, nil))
	return int(d.Times()), len(m.builds()) > 0
}

// FirstOutputs writes a line about a build to a log, and then output of its job. It returns the times to the first
// output after each.
func (m *Manager) FirstOutputs(t *testing.T) (ours, theirs time.Duration) {
	t.Helper()
	l, start := m.store.NewLog(m.life, "1-first"), time.Now().Add(-time.Hour)
	defer l.Stop()
	_, err := l.WriteState([]byte("step runner: image x:1 cannot be pulled\n"), buildlog.State{Lines: 1})
	require.NoError(t, err)
	ours = l.FirstAfter(start)
	_, err = l.WriteState([]byte("on\n"), buildlog.State{Stdout: 3})
	require.NoError(t, err)
	return ours, l.FirstAfter(start)
}

// CloseStore closes the connection to the store.
func (m *Manager) CloseStore() { m.store.Conn.Close() }

// RemoveLog removes the log of a build.
func (m *Manager) RemoveLog(t *testing.T, id string) {
	t.Helper()
	require.NoError(t, m.stream(t, "STEPMUX_LOGS").Purge(t.Context(), jetstream.WithPurgeSubject("stepmux.logs."+id)))
}

// ReadAndRemove reads the log of a build, and removes it once the reader has its first piece. It returns how many bytes
// were read.
func (m *Manager) ReadAndRemove(ctx context.Context, t *testing.T, id string) (read int, err error) {
	t.Helper()
	err = m.store.ReadLog(ctx, id, 0, false, false, func(p state.Piece) error {
		read += len(p.Text)
		m.RemoveLog(t, id)
		return nil
	})
	return read, err
}

// FollowRemoved follows the log of a build that has ended, and whose log was removed, as a reader does that came before
// its end. The record of the build is removed, too, before the reader asks for it.
func (m *Manager) FollowRemoved(ctx context.Context, t *testing.T, id string) error {
	t.Helper()
	m.RemoveLog(t, id)
	err := m.store.ReadLog(ctx, id, 0, true, false, func(state.Piece) error { return nil })
	require.NoError(t, err)
	_, err = m.store.Purge(t.Context(), m.store.Builds, id)
	require.NoError(t, err)
	return m.store.AwaitEnd(ctx, id)
}

// CancelAndGo cancels a build for a caller that has gone away.
func (m *Manager) CancelAndGo(t *testing.T, id string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := (&service{m: m}).Cancel(ctx, &pb.CancelRequest{Id: id})
	return err
}

// DrainAndGo drains a VM for a caller that goes away when the store gets the drain.
func (m *Manager) DrainAndGo(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stored, err := m.store.Conn.Subscribe("$KV."+m.store.Fleet.Bucket()+"."+drainKey(id), func(*nats.Msg) { cancel() })
	require.NoError(t, err)
	require.NoError(t, m.store.Conn.Flush())
	_, _ = (&service{m: m}).Drain(ctx, &pb.DrainRequest{Instances: []string{id}}) // nobody gets the answer
	<-ctx.Done()
	require.NoError(t, stored.Unsubscribe())
}

// UsePlaces uses up places among the records of builds, as leases do.
func (m *Manager) UsePlaces(t *testing.T, n int) {
	t.Helper()
	js := m.jetStream(t)
	for range n {
		_, err := js.PublishAsync("$KV."+m.store.Builds.Bucket()+"."+leasePrefix+"x", nil)
		require.NoError(t, err)
	}
	<-js.PublishAsyncComplete()
}

// Asked returns how many messages the manager has sent to its store.
func (m *Manager) Asked() uint64 { return m.store.Conn.Stats().OutMsgs }

// SetStarted sets when a running build got its slot.
func (m *Manager) SetStarted(t *testing.T, id string, at time.Time) {
	t.Helper()
	m.mu.Lock()
	b := m.live[id]
	m.mu.Unlock()
	require.NotNil(t, b)
	require.NoError(t, m.change(b, func(r *state.Record) { r.Started = at }))
}

// KeepUnanswered keeps the record of a running build, as it is, by a call whose answer is lost.
func (m *Manager) KeepUnanswered(t *testing.T, id string) {
	t.Helper()
	rec, err := m.store.Record(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, m.store.Put(t.Context(), rec))
}

// FillQueue queues the text of a request n times in a state directory that no manager uses, with less care for the disk
// than a manager takes.
func FillQueue(t *testing.T, dir string, text []byte, n int) {
	t.Helper()
	key, err := seal.OpenKey(filepath.Join(dir, "key"))
	require.NoError(t, err)
	embedded, err := server.NewServer(&server.Options{
		DontListen: true, NoSigs: true, JetStream: true, StoreDir: filepath.Join(dir, "jetstream"),
		MaxPayload: state.MaxPayload,
	})
	require.NoError(t, err)
	embedded.Start()
	defer func() {
		embedded.Shutdown()
		embedded.WaitForShutdown()
	}()
	require.True(t, embedded.ReadyForConnections(sshtest.Bound))
	conn, err := nats.Connect("", nats.InProcessServer(embedded))
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(4000))
	require.NoError(t, err)
	for i := range n {
		id := strconv.Itoa(i)
		msg := nats.NewMsg("stepmux.queue.default")
		msg.Data = key.Seal(id, text)
		_, err = js.PublishMsgAsync(msg, jetstream.WithMsgID(id), jetstream.WithStallWait(sshtest.Bound))
		require.NoError(t, err)
	}
	<-js.PublishAsyncComplete()
}

// PutWaitingRecord keeps the record of a build that was lost and is to run again. No manager has the state.
func PutWaitingRecord(t *testing.T, dir, id string) {
	t.Helper()
	s, err := state.Open(t.Context(), state.Config{
		Dir: dir, KeyFile: filepath.Join(dir, "key"), Keep: DefaultKeep, LogBytes: DefaultLogBytes,
		FileBytes: DefaultFileBytes, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), &state.Record{
		ID: id, Phase: state.PhaseWaiting, Attempt: 1, Submitted: time.Now(),
	}))
}

// FillPipelines keeps as many pipelines as there may be that have not ended.
func (m *Manager) FillPipelines(t *testing.T) {
	t.Helper()
	for i := range maxPipelines {
		p := &state.Pipeline{ID: state.PipelineID(strconv.Itoa(i)), Phase: state.PipelineBlocked}
		require.NoError(t, m.store.PutPipeline(t.Context(), p))
	}
}

// ForgetPipelines removes all that is kept of pipelines whose record has expired. It returns how many builds there are
// then.
func (m *Manager) ForgetPipelines(t *testing.T) (builds int) {
	t.Helper()
	require.NoError(t, m.store.ForgetPipelines(t.Context(), 0))
	keys, err := m.store.Builds.ListKeys(t.Context())
	require.NoError(t, err)
	for range keys.Keys() {
		builds++
	}
	return builds
}

// KeptOutputs returns the outputs of builds as they are kept.
func (m *Manager) KeptOutputs(t *testing.T) (all [][]byte) {
	t.Helper()
	entries, err := natscall.Entries(t.Context(), m.store.Pipelines, "outputs.*")
	require.NoError(t, err)
	for _, entry := range entries {
		all = append(all, entry.Value())
	}
	return all
}

// QueueWithoutACall lets a pipeline stand as a manager leaves it that ends in the middle of a change.
func (m *Manager) QueueWithoutACall(t *testing.T, id string) {
	t.Helper()
	p, err := m.store.Pipeline(t.Context(), id)
	require.NoError(t, err)
	p.Phase = state.PipelineQueued
	require.NoError(t, m.store.PutPipeline(t.Context(), p))
}

// ExpirePipeline lets the record of a pipeline be gone.
func (m *Manager) ExpirePipeline(t *testing.T, id string) {
	t.Helper()
	_, err := m.store.Purge(t.Context(), m.store.Pipelines, "record."+id)
	require.NoError(t, err)
}

// GroupsAndTurns returns how many concurrency groups and turns in them are kept.
func (m *Manager) GroupsAndTurns(t *testing.T) (kept int) {
	t.Helper()
	for _, keys := range []string{"group.*", "turn.*"} {
		entries, err := natscall.Entries(t.Context(), m.store.Pipelines, keys)
		require.NoError(t, err)
		kept += len(entries)
	}
	return kept
}

// SaveCache saves the first cache of a build that runs, and returns the line for its log.
func (m *Manager) SaveCache(t *testing.T, id string) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "cache"))
	require.NoError(t, err)
	defer file.Close()
	all, err := m.caches(m.find(id))(t.Context())
	require.NoError(t, err)
	return all.After[0].Save(t.Context(), file, nil)
}

// KeptArtifacts returns how many artifacts of actions a pipeline has.
func (m *Manager) KeptArtifacts(t *testing.T, pipeline string) int {
	all, err := actionFiles{m}.Artifacts(t.Context(), pipeline)
	require.NoError(t, err)
	return len(all)
}

// RemovePipeline removes the record of a pipeline, as its age does.
func (m *Manager) RemovePipeline(t *testing.T, id string) {
	require.NoError(t, m.store.Pipelines.Purge(t.Context(), "record."+id))
}

// KeptTasks returns the keys of the tasks that are kept of a door.
func (m *Manager) KeptTasks(t *testing.T, name string) (keys []string) {
	t.Helper()
	var kept map[string][]byte
	require.Eventually(t, func() bool { // it forgets a task after its report
		var err error
		kept, err = m.store.KeptTexts(t.Context(), name+".task")
		return err == nil && len(kept) == 0
	}, 5*time.Second, time.Millisecond)
	for key := range kept {
		keys = append(keys, key)
	}
	return keys
}

// KeptText returns a text of a door, or nil, and KeepText keeps one.
func (m *Manager) KeptText(t *testing.T, key string) []byte {
	t.Helper()
	kept, err := m.store.KeptTexts(t.Context(), key)
	require.NoError(t, err)
	return kept[key]
}

func (m *Manager) KeepText(t *testing.T, key string, text []byte) {
	t.Helper()
	require.NoError(t, m.store.KeepText(t.Context(), key, text))
}
