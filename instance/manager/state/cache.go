package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// NameCache names an archive that is kept as a cache. The name is hexadecimal, and is gone when it was not used for the
// age of builds that have ended.
func (s *Store) NameCache(ctx context.Context, name string, is *pb.Archive) error {
	return s.nameCache(ctx, name, is)
}

func (s *Store) nameCache(ctx context.Context, name string, is *pb.Archive, options ...jetstream.PublishOpt) error {
	text, err := proto.Marshal(is)
	if err != nil {
		return err
	}
	options = append(options, jetstream.WithMsgTTL(s.cfg.Keep))
	if _, err := s.Write(ctx, s.Pipelines, cacheKey+name, text, options...); err != nil {
		return fmt.Errorf("keep the name of a cache: %w", err)
	}
	return nil
}

// FindCache returns the archive that has a name, nil without one. It is a use of the name.
func (s *Store) FindCache(ctx context.Context, name string) (*pb.Archive, error) {
	entry, err := s.Pipelines.Get(ctx, cacheKey+name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for a cache: %w", err)
	}
	is := &pb.Archive{}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(entry.Value(), is); err != nil {
		return nil, fmt.Errorf("read a cache: %w", err)
	}
	// It fails if another build has saved the cache in between, which is a use, too.
	_ = s.nameCache(ctx, name, is, jetstream.WithExpectLastSequencePerSubject(entry.Revision()))
	return is, nil
}
