package state

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance/manager/archive"
	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// home is where a store has its state: embedded in the manager's process, or joined by several managers. A store
// asks it for all that differs.
type home interface {
	// open connects the store, for which it waits until ctx ends.
	open(ctx context.Context) error
	// check looks for damage, once the streams are open.
	check(ctx context.Context) error
	// lost returns why the servers cannot keep anything any more, or nil. The connection is open.
	lost() error
	// close ends the connection, and the server if there is one. All that was acknowledged is on disk.
	close()

	// repeats reports whether a call that failed with err is made again, since the servers may answer later.
	repeats(err error) bool
	// failure returns the answer to a client if err comes from the servers, else nil.
	failure(err error) error
	// stream opens a stream, which is made if it is missing.
	stream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error)
	// files opens the archives of projects, artifacts and traces.
	files(ctx context.Context) (archive.Store, error)

	// watch passes the values of keys of a bucket to take, all of them now, and those that have changed, until take
	// returns false. Changes that follow each other fast may come as one. A key that has expired is not told.
	watch(
		ctx context.Context, bucket jetstream.KeyValue, keys []string, take func([]keyValue) (more bool, err error),
	) error
	// leaveQueue is Store.LeaveQueue.
	leaveQueue(r *Request, d *Delivery)
	// settle writes changes to the disk that were put off. It is called every SettlePause.
	settle(ctx context.Context)
	// endLog tells those that follow a log its end, which is p. log.mu is held.
	endLog(log *Log, p Piece) error
	// follow passes the pieces of a log that grows to take, up to its end.
	follow(ctx context.Context, id string, offset int64, take func(Piece) error) error
}

// homeOf returns the home that a store's configuration names.
func homeOf(s *Store) home {
	if s.cfg.NATS != nil {
		return &joined{s, s.cfg.NATS}
	}
	return &embedded{s: s, dir: filepath.Join(s.cfg.Dir, "jetstream")}
}

// embedded is a server in this process, with files of its own. No other manager reads or writes them.
type embedded struct {
	s      *Store
	dir    string
	server *server.Server // nil unless it was started
	noted  uint64         // noteQueue's, for one goroutine at a time
}

// open starts the server and connects to it.
func (h *embedded) open(context.Context) (err error) {
	s := h.s
	h.server, err = server.NewServer(&server.Options{
		ServerName: "stepmux", DontListen: true, NoSigs: true, DisableJetStreamBanner: true,
		JetStream: true, StoreDir: h.dir, SyncAlways: true, MaxPayload: MaxPayload,
		// What the disk has is not reserved: other programs use it too.
		JetStreamMaxStore: 1 << 50, JetStreamMaxMemory: 1 << 30,
		// Each reader of a log is a consumer.
		JetStreamLimits: server.JSLimitOpts{DefaultMaxConsumers: -1},
	})
	if err != nil {
		return err
	}
	h.server.SetLoggerV2(s.logger, false, false, false)
	h.server.Start()
	if err := s.logger.fatal(); err != nil {
		return err
	}
	if !h.server.ReadyForConnections(startTimeout) {
		return errors.New("the store did not start")
	}
	s.Conn, err = nats.Connect("", nats.InProcessServer(h.server), nats.MaxReconnects(0), nats.Name("manager"))
	if err != nil {
		return errors.Join(err, s.logger.fatal())
	}
	s.js, err = jetstream.New(s.Conn, jetstream.WithDefaultTimeout(storeTimeout))
	return err
}

func (h *embedded) check(ctx context.Context) error {
	if err := h.checkDamage(ctx); err != nil {
		return err
	}
	h.s.logger.open()
	return nil
}

func (h *embedded) lost() error {
	if !h.server.JetStreamEnabled() {
		return fmt.Errorf("the store gave up: is the disk full, or read-only? %s", h.s.logger.last())
	}
	return nil
}

func (h *embedded) close() {
	if h.s.Conn != nil {
		h.s.Conn.Close()
	}
	if h.server != nil {
		h.server.Shutdown()
		h.server.WaitForShutdown()
	}
}

func (*embedded) repeats(error) bool { return false }

func (*embedded) failure(error) error { return nil }

func (h *embedded) stream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	cfg.AllowDirect = true
	return h.s.makeStream(ctx, cfg)
}

func (h *embedded) files(context.Context) (archive.Store, error) {
	return archive.OpenDirs(h.s.archives())
}

// leaveQueue notes the build for removeEnded.
func (h *embedded) leaveQueue(r *Request, d *Delivery) {
	e := &endedBuild{id: r.ID}
	if d != nil {
		e.reply = d.msg.Reply()
	}
	h.s.ended.mu.Lock()
	defer h.s.ended.mu.Unlock()
	h.s.ended.builds[r.Seq] = e
}

func (h *embedded) settle(ctx context.Context) {
	h.noteQueue(ctx)
	h.s.removeEnded(ctx)
}

// endLog stores nothing: the record has the result, and all followers are those of this manager.
func (h *embedded) endLog(log *Log, p Piece) error {
	h.s.feeds.add(log.id, fedPiece{p, log.last, math.MaxUint64})
	return nil
}

func (h *embedded) follow(ctx context.Context, id string, offset int64, take func(Piece) error) error {
	return h.s.followLog(ctx, id, offset, take)
}

// joined are the servers of a NATS cluster. Other managers use the same state.
type joined struct {
	s   *Store
	cfg *NATS
}

// open waits for a server that listens.
func (h *joined) open(ctx context.Context) error { return h.s.join(ctx, h.cfg) }

// check has nothing to do: other servers have copies.
func (*joined) check(context.Context) error { return nil }

// lost returns nil: servers that do not answer are waited for.
func (*joined) lost() error { return nil }

func (h *joined) close() {
	if h.s.Conn != nil {
		_ = h.s.Conn.FlushTimeout(time.Second) // of messages without an answer
		h.s.Conn.Close()
	}
}

func (h *joined) repeats(err error) bool {
	if !natscall.Silent(err) {
		return false
	}
	h.s.logger.to.Warn("store: waits until the NATS cluster answers", "error", err)
	return true
}

func (*joined) failure(err error) error {
	_, network := errors.AsType[*net.OpError](err)
	_, system := errors.AsType[syscall.Errno](err)
	disk := system && !network // of this machine
	if disk || errors.Is(err, archive.ErrDamaged) {
		return nil
	}
	return status.Errorf(codes.Unavailable, "NATS: has the cluster lost its quorum? %v", err)
}

// stream makes three replicas, if there are so many servers. Only the leader is read: the others may be behind.
func (h *joined) stream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	cfg.Replicas = replicas
	stream, err := h.s.makeStream(ctx, cfg)
	told, ok := errors.AsType[*jetstream.APIError](err)
	if ok && (told.ErrorCode == codeNoPeers || told.ErrorCode == codeNoReplicas) {
		cfg.Replicas = 1
		if now, err := h.s.js.Stream(ctx, cfg.Name); err == nil {
			cfg.Replicas = now.CachedInfo().Config.Replicas
		}
		stream, err = h.s.makeStream(ctx, cfg)
	}
	if err == nil && cfg.Replicas < replicas {
		h.s.logger.to.Warn("store: fewer than three NATS servers have this stream", "stream", cfg.Name, "servers",
			cfg.Replicas)
	}
	return stream, err
}

func (h *joined) files(ctx context.Context) (archive.Store, error) {
	return archive.OpenShared(ctx, h.s.archives(), archive.Server{
		JS: h.s.js, Stream: h.stream, Persist: h.s.Persist, Timeout: h.s.Timeout, MaxPiece: h.s.MaxRequest,
	})
}

// leaveQueue acknowledges the request alone: other managers have those before it.
func (*joined) leaveQueue(_ *Request, d *Delivery) {
	if d != nil {
		_ = d.Ack() // else it comes again
	}
}

func (*joined) settle(context.Context) {}

// endLog stores a piece, for the followers of other managers.
func (*joined) endLog(log *Log, p Piece) error { return log.putLocked(p) }

func (h *joined) follow(ctx context.Context, id string, offset int64, take func(Piece) error) error {
	from, _, err := h.s.findPieces(ctx, id, 0, offset)
	if err == nil {
		_, err = h.s.readPieces(ctx, id, from, 0, take)
	}
	return err
}
