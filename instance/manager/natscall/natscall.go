// Package natscall adds calls to the client of NATS JetStream: Silent and Changed classify errors, Entries and Present
// read a bucket as it is now, and Read reads a subject of a stream. It keeps no state. The caller of Read calls stop.
package natscall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// PullExpiry bounds the life of a request for messages: a NATS server that dies takes it along.
	PullExpiry = 10 * time.Second
	// PullHeartbeat is how often the server says that it has such a request.
	PullHeartbeat = 2 * time.Second
	// ReaderIdle is how long the servers keep the place of a reader that asks for nothing.
	ReaderIdle = time.Minute
	// Ahead is how many messages a reader holds.
	Ahead = 4
	// forgetTimeout bounds the removal of a reader.
	forgetTimeout = 30 * time.Second
)

// Silent reports whether err says that the servers did not answer, or have no leader now.
func Silent(err error) bool {
	told, ok := errors.AsType[*jetstream.APIError](err)
	return ok && told.Code == http.StatusServiceUnavailable ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrReconnectBufExceeded) ||
		errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrNoServers)
}

// Changed reports whether err says that a subject has another last message than the one that was expected, or is
// being written to.
func Changed(err error) bool {
	told, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (told.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		told.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// Entries returns the entries of a bucket whose keys match. Options may leave out their values.
func Entries(
	ctx context.Context, of jetstream.KeyValue, keys string, options ...jetstream.WatchOpt,
) (all []jetstream.KeyValueEntry, err error) {
	watch, err := of.Watch(ctx, keys, append(options, jetstream.IgnoreDeletes())...)
	if err == nil {
		defer func() { _ = watch.Stop() }() // it may be closed
		all, err = Present(ctx, watch)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", keys, of.Bucket(), err)
	}
	return all, nil
}

// Present returns the entries that are there when a watch begins.
func Present(ctx context.Context, watch jetstream.KeyWatcher) (all []jetstream.KeyValueEntry, err error) {
	for {
		select {
		case entry, ok := <-watch.Updates():
			switch {
			case !ok:
				return nil, nats.ErrDisconnected
			case entry == nil: // the end of them
				return all, nil
			}
			all = append(all, entry)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Read returns the messages of a subject, in their order, from a place in the stream. The caller calls stop.
func Read(ctx context.Context, stream jetstream.Stream, subject string, from uint64) (
	messages jetstream.MessagesContext, stop func(), err error,
) {
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq: from, InactiveThreshold: ReaderIdle,
	})
	if err != nil {
		return nil, nil, err
	}
	forget := func() {
		if info := consumer.CachedInfo(); info != nil {
			over, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
			defer cancel()
			_ = stream.DeleteConsumer(over, info.Name) // else it ends by itself, after ReaderIdle
		}
	}
	messages, err = consumer.Messages(
		jetstream.PullMaxMessages(Ahead), jetstream.PullExpiry(PullExpiry), jetstream.PullHeartbeat(PullHeartbeat))
	if err != nil {
		forget()
		return nil, nil, err
	}
	waits := context.AfterFunc(ctx, messages.Stop) // Next may be waiting for a store that does not answer
	return messages, func() {
		waits()
		messages.Stop()
		forget()
	}, nil
}

// Encode returns a value as it is in a message or a bucket: JSON.
func Encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: encode: " + err.Error()) // it has nothing that cannot be encoded
	}
	return text
}
