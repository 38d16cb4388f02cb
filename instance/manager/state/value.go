package state

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Write stores the value of a key of a bucket, and returns its revision. All keys that are removed one day, or expire,
// are written by it: it removes the value before by a rollup, and the server keeps a note of that. It keeps none of the
// values that it removes by the limit of messages of a key: such a value is there again once the last one has gone and
// the server has read its files after a crash.
func (s *Store) Write(
	ctx context.Context, bucket jetstream.KeyValue, key string, value []byte, options ...jetstream.PublishOpt,
) (uint64, error) {
	return s.rollup(ctx, bucket, key, nats.Header{}, value, options)
}

// Purge removes a key of a bucket, and returns the revision of the mark that stays.
func (s *Store) Purge(
	ctx context.Context, bucket jetstream.KeyValue, key string, options ...jetstream.PublishOpt,
) (uint64, error) {
	return s.rollup(ctx, bucket, key, nats.Header{"KV-Operation": {"PURGE"}}, nil, options)
}

// rollup publishes the message of a key, as KeyValue.Put and Purge do. Those take no options, or do not tell the
// revision.
func (s *Store) rollup(
	ctx context.Context, bucket jetstream.KeyValue, key string, header nats.Header, value []byte,
	options []jetstream.PublishOpt,
) (uint64, error) {
	msg := &nats.Msg{Subject: "$KV." + bucket.Bucket() + "." + key, Header: header, Data: value}
	header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	ack, err := s.js.PublishMsg(ctx, msg, options...)
	if err != nil {
		s.watches.tell(bucket.Bucket(), keyValue{key: key}) // it may be stored
		return 0, err
	}
	s.watches.tell(bucket.Bucket(), keyValue{key, value, ack.Sequence})
	return ack.Sequence, nil
}
