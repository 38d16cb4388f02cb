package state

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/internal/pause"
)

// NATS names a NATS cluster with JetStream, in which managers keep their state together.
type NATS struct {
	// URLs are those of its servers. Required.
	URLs []string
	// Creds is a file with credentials (a JWT and its seed), CA one with the certificates of the authorities that sign
	// those of the servers, and Cert and Key are the client's certificate and its key. If empty, there are no
	// credentials, and the system's authorities count.
	Creds, CA, Cert, Key string
}

const (
	// natsConnect bounds the wait for a NATS server, and natsPause is the time between two attempts to reach one again.
	natsConnect, natsPause = 5 * time.Second, 500 * time.Millisecond
	// natsTimeout bounds a call to the cluster: a server that dies takes the call along, and it is repeated.
	natsTimeout = 5 * time.Second
	// natsPing is the time between two pings. Two pings may be lost.
	natsPing = 5 * time.Second
	// minPayload is the max_payload of NATS servers by default. A piece of a log can be more than half as large.
	minPayload = 1 << 20
	// replicas is how many servers have each stream, if there are that many.
	replicas = 3
	// Codes of the API of JetStream, which nats.go has no names for.
	codeNoPeers, codeNoReplicas = 10005, 10074
)

// join connects to a NATS cluster. It waits for a server that listens until ctx ends.
func (s *Store) join(ctx context.Context, cfg *NATS) (err error) {
	s.Timeout = natsTimeout
	log := s.logger.to
	options := append(cfg.options(),
		nats.Name("stepmux manager"), nats.Timeout(natsConnect), nats.PingInterval(natsPing), nats.MaxPingsOutstanding(2),
		nats.MaxReconnects(-1), nats.ReconnectWait(natsPause),
		nats.ReconnectBufSize(-1), // a message that cannot be sent now fails, and its caller repeats it
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			log.Warn("store: connection to NATS is lost", "error", err)
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("store: connected to NATS", "server", nc.ConnectedServerName())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn("store: NATS", "error", err) }),
	)
	err = s.Persist(ctx, func(context.Context) (err error) {
		s.Conn, err = nats.Connect(strings.Join(cfg.URLs, ","), options...)
		return cfg.failed(err)
	})
	if err != nil {
		return err
	}
	if s.Conn.MaxPayload() < minPayload {
		return fmt.Errorf("the NATS servers at %s take messages of %d bytes at most: set their max_payload to at least 1MB, "+
			"or to 8MB for all requests", cfg, s.Conn.MaxPayload())
	}
	s.MaxRequest = min(maxRequest, int(s.Conn.MaxPayload())-payloadExtra)
	s.js, err = jetstream.New(s.Conn, jetstream.WithDefaultTimeout(s.Timeout))
	return err
}

// options returns how to log in to a server.
func (n *NATS) options() (all []nats.Option) {
	if n.Creds != "" {
		all = append(all, nats.UserCredentials(n.Creds))
	}
	if n.CA != "" {
		all = append(all, nats.RootCAs(n.CA))
	}
	if n.Cert != "" || n.Key != "" {
		all = append(all, nats.ClientCert(n.Cert, n.Key))
	}
	return all
}

// Check returns why no connection could be made with the addresses and files, and makes none.
func (n *NATS) Check() error {
	options := nats.GetDefaultOptions()
	for _, set := range n.options() {
		if err := set(&options); err != nil {
			return n.failed(err)
		}
	}
	if options.UserJWT != nil {
		_, err := options.UserJWT()
		if err == nil {
			_, err = options.SignatureCB([]byte("a nonce"))
		}
		if err != nil {
			return n.failed(err)
		}
	}
	for _, text := range n.URLs {
		if _, err := url.Parse(withScheme(strings.TrimSpace(text))); err != nil {
			return n.failed(err)
		}
	}
	return nil
}

// failed returns the error of an attempt to connect, and nil for nil.
func (n *NATS) failed(err error) error {
	if err == nil {
		return nil
	}
	if _, bad := errors.AsType[*url.Error](err); bad { // not shown: it has the password
		err = errors.New("the address is no URL; in a password write a percent sign as %25")
	}
	return fmt.Errorf("connect to NATS at %s: %w", n, err)
}

// withScheme returns an address as the library reads it.
func withScheme(text string) string {
	if !strings.Contains(text, "://") {
		text = "nats://" + text
	}
	return text
}

// String returns the addresses, without passwords.
func (n *NATS) String() string {
	var all []string
	for _, text := range n.URLs {
		if u, err := url.Parse(withScheme(text)); err == nil {
			all = append(all, u.Redacted())
		}
	}
	return strings.Join(all, ",")
}

// stream opens a stream, which is made if it is missing.
func (s *Store) stream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	return s.home.stream(ctx, cfg)
}

// makeStream opens a stream as it is described, or makes it.
func (s *Store) makeStream(ctx context.Context, cfg jetstream.StreamConfig) (stream jetstream.Stream, err error) {
	err = s.Persist(ctx, func(ctx context.Context) (err error) {
		stream, err = s.js.CreateOrUpdateStream(ctx, cfg)
		return err
	})
	return stream, err
}

// Bucket opens a key-value bucket, which is made if it is missing. Its keys are gone after a time, never if that is
// zero. With marks, a key can have a time of its own.
func (s *Store) Bucket(
	ctx context.Context, name string, age time.Duration, marks time.Duration,
) (jetstream.KeyValue, error) {
	duplicates := 2 * time.Minute
	if age > 0 {
		duplicates = min(duplicates, age)
	}
	_, err := s.stream(ctx, jetstream.StreamConfig{ // as CreateKeyValue does, which lets all replicas be read
		Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"}, MaxMsgsPerSubject: 2, MaxBytes: -1, MaxAge: age,
		MaxMsgSize: -1, Replicas: 1, AllowRollup: true, DenyDelete: true, Duplicates: duplicates, MaxMsgs: -1,
		MaxConsumers: -1, Discard: jetstream.DiscardNew, AllowMsgTTL: marks > 0, SubjectDeleteMarkerTTL: marks,
	})
	if err != nil {
		return nil, err
	}
	var bucket jetstream.KeyValue
	err = s.Persist(ctx, func(ctx context.Context) (err error) {
		bucket, err = s.js.KeyValue(ctx, name)
		return err
	})
	return bucket, err
}

// Persist calls do again while the servers do not answer, as in an election, if they are those of a cluster.
func (s *Store) Persist(ctx context.Context, do func(ctx context.Context) error) error {
	for {
		once, cancel := context.WithTimeout(ctx, s.Timeout)
		err := do(once)
		cancel()
		if err == nil || ctx.Err() != nil || !s.home.repeats(err) {
			return err
		}
		if pause.For(ctx, natsPause) != nil {
			return err
		}
	}
}
