package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// KeepText keeps a text of a door under a key, sealed. When it returns nil, the text is on disk.
func (s *Store) KeepText(ctx context.Context, key string, text []byte) error {
	if _, err := s.Write(ctx, s.Pipelines, textKey+key, s.key.Seal(textKey+key, text)); err != nil {
		return fmt.Errorf("keep %s: %w", key, err)
	}
	return nil
}

// textKey begins the keys of texts of doors in the bucket of the pipelines.
const textKey = "door."

// KeptTexts returns the texts whose keys are a key, or begin with it and a dot.
func (s *Store) KeptTexts(ctx context.Context, key string) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, filter := range []string{textKey + key, textKey + key + ".*"} {
		entries, err := natscall.Entries(ctx, s.Pipelines, filter)
		if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
			return nil, err
		}
		for _, entry := range entries {
			text, err := s.key.Open(entry.Key(), entry.Value())
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", entry.Key(), err)
			}
			all[entry.Key()[len(textKey):]] = text
		}
	}
	return all, nil
}

// ForgetText removes a text.
func (s *Store) ForgetText(ctx context.Context, key string) error {
	if err := s.Pipelines.Purge(ctx, textKey+key, jetstream.PurgeTTL(recordMark)); err != nil {
		return fmt.Errorf("forget %s: %w", key, err)
	}
	return nil
}
