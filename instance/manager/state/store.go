package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance/manager/archive"
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

	// MaxPayload bounds a message of a stream, in bytes: a request, sealed, with headers of less than payloadExtra.
	MaxPayload, payloadExtra = 5 << 20, 64 << 10
	// maxRequest bounds a request, in bytes.
	maxRequest = 4 << 20
	// keyTime is how long a request that is sent again, with the same key, is known. Each costs 100 bytes of memory
	// for that time.
	keyTime = 2 * time.Minute
	// storeTimeout bounds a call to the store, and startTimeout its start: streams are checked then.
	storeTimeout, startTimeout = 30 * time.Second, 5 * time.Minute
)

// Store is the state of a manager, in JetStream. It is safe for concurrent use. These rules keep a build from being
// lost and from being run twice:
//
//   - A request stays in the queue until its build has ended.
//   - A record is created before the job is delivered to a step runner, by compare-and-set. A build with a record may
//     have run: it is resumed, and never started.
//   - A piece of a log and the state of the log after it are one message.
//   - The record has the result before the build's step runner is ended, since no process knows it after that, and
//     before the request leaves the queue.
type Store struct {
	// Timeout bounds a call, and MaxRequest a request, in bytes.
	Timeout    time.Duration
	MaxRequest int
	// Conn is the connection to the servers. The managers of a cluster ask each other by it.
	Conn *nats.Conn
	// Builds has the records of builds, which are for the methods here, and of leases. Fleet has drains and claims.
	// Pipelines has those of pipelines.
	Builds, Fleet, Pipelines jetstream.KeyValue

	cfg    Config
	key    *seal.Key
	lock   *os.File
	home   home // of the connection, the buckets and the streams
	logger *serverLog
	js     jetstream.JetStream

	queue   jetstream.Stream
	calls   jetstream.Stream // for pipelines
	logs    jetstream.Stream
	history jetstream.Stream // of builds
	audit   jetstream.Stream // of the actions of operators
	events  jetstream.Stream // of VMs

	feeds   feeds         // of the logs that are followed; unused if other managers write logs, too
	places  readMarks     // of logs
	watches watches       // of keys; unused if other managers write them, too
	ended   ended         // unused if other managers take builds, too
	before  uint64        // the last place in the queue at the start
	pushed  atomic.Uint64 // the last place in the queue that was given since
}

// Config is the configuration of a store. All fields but NATS are required.
type Config struct {
	// Dir is the directory of the state, or, with NATS, of the files of this manager alone. It is made if it is missing,
	// for this user alone. One store uses it at a time.
	Dir string
	// KeyFile has the key that seals requests. It is made if it is missing.
	KeyFile string
	// NATS is the cluster in which several managers keep their state. If nil, the state is in Dir.
	NATS *NATS
	// Keep is the age of a build that has ended, and of its log.
	Keep time.Duration
	// LogBytes bounds all logs together, and FileBytes the archives of projects and those of artifacts.
	LogBytes, FileBytes int64
	Logger              *slog.Logger
}

// Open opens the state in a directory, which is made if it is missing. The caller calls Close.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, Timeout: storeTimeout, MaxRequest: maxRequest, logger: &serverLog{to: cfg.Logger}}
	s.ended.builds, s.home = map[uint64]*endedBuild{}, homeOf(s)
	if err := s.open(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("state directory %s: %w", cfg.Dir, err)
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) (err error) {
	cfg := &s.cfg
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
	if err := s.openStreams(ctx); err != nil {
		return errors.Join(err, s.logger.fatal())
	}
	err = s.Persist(ctx, func(ctx context.Context) error { return s.checkKey(ctx, cfg.KeyFile) })
	if err != nil {
		return err
	}
	return s.home.check(ctx)
}

func (s *Store) openStreams(ctx context.Context) (err error) {
	s.queue, err = s.stream(ctx, jetstream.StreamConfig{
		Name: queueStream, Subjects: []string{"stepmux.queue.*"}, Retention: jetstream.WorkQueuePolicy,
		Duplicates: keyTime,
	})
	if err != nil {
		return fmt.Errorf("open the queue: %w", err)
	}
	s.before = s.queue.CachedInfo().State.LastSeq
	s.logs, err = s.stream(ctx, jetstream.StreamConfig{
		Name: logsStream, Subjects: []string{logsSubject + "*"}, MaxAge: s.cfg.Keep, MaxBytes: s.cfg.LogBytes,
		Duplicates: min(time.Minute, s.cfg.Keep),
	})
	if err != nil {
		return fmt.Errorf("open the logs: %w", err)
	}
	if s.Builds, err = s.Bucket(ctx, buildsBucket, 0, s.marks()); err != nil { // for the age of builds that have ended
		return fmt.Errorf("open the builds: %w", err)
	}
	if s.Fleet, err = s.Bucket(ctx, fleetBucket, 0, s.marks()); err != nil {
		return fmt.Errorf("open the fleet's state: %w", err)
	}
	if err := s.openPipelines(ctx); err != nil {
		return err
	}
	if err := s.openAudit(ctx); err != nil {
		return err
	}
	return s.Persist(ctx, func(ctx context.Context) (err error) {
		s.history, err = s.js.Stream(ctx, "KV_"+buildsBucket)
		return err
	})
}

// checkKey returns an error if the state was sealed with another key.
func (s *Store) checkKey(ctx context.Context, file string) error {
	const name, use = "key", "check of the key"
	entry, err := s.Fleet.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		_, err = s.Fleet.Create(ctx, name, s.key.Seal(use, nil))
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

// Secret returns the secret of the step runner of a build.
func (s *Store) Secret(id string) string { return s.key.Secret(id) }

// OpenFiles opens the archives of projects, artifacts and traces.
func (s *Store) OpenFiles(ctx context.Context) (archive.Store, error) { return s.home.files(ctx) }

// archives describes the archives of the manager.
func (s *Store) archives() archive.Config {
	return archive.Config{Dir: s.cfg.Dir, Bytes: s.cfg.FileBytes, Keep: s.cfg.Keep, Needed: s.queuedProjects}
}

// SettlePause is the time between two calls of Settle.
const SettlePause = time.Second

// Settle writes changes to the disk that were put off.
func (s *Store) Settle(ctx context.Context) { s.home.settle(ctx) }

// Failure returns the answer to a client if err comes from the servers of a cluster, else nil.
func (s *Store) Failure(err error) error { return s.home.failure(err) }

// Close ends the store. All that was acknowledged is on disk.
func (s *Store) Close() {
	s.home.close()
	if s.lock != nil {
		filelock.Release(s.lock)
	}
}

// Err returns why the store cannot keep anything any more, or nil.
func (s *Store) Err() error {
	if err := s.logger.fatal(); err != nil {
		return err
	}
	if s.Conn.IsClosed() {
		return fmt.Errorf("the connection to NATS was closed: %w", cmp.Or(s.Conn.LastError(), nats.ErrConnectionClosed))
	}
	return s.home.lost()
}
