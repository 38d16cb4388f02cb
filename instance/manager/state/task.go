package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// A task of a server is a text of a door that one manager has. Its ID and a newline stand before the text, and another
// manager takes it over by compare-and-set.

// KeepTask keeps a task that a manager has, sealed, in place of the text of a revision, which is 0 for a new task. It
// returns the new revision once that is on disk. The same text is nothing new: an answer to an earlier call may have
// been lost. If another one is there, it returns ErrTaken.
func (s *Store) KeepTask(ctx context.Context, key, manager string, text []byte, revision uint64) (uint64, error) {
	key = textKey + key
	kept := s.key.Seal(key, owned(manager, text))
	var now uint64
	var err error
	if revision == 0 {
		now, err = s.Pipelines.Create(ctx, key, kept)
	} else {
		now, err = s.Write(ctx, s.Pipelines, key, kept, jetstream.WithExpectLastSequencePerSubject(revision))
	}
	if natscall.Changed(err) || errors.Is(err, jetstream.ErrKeyExists) {
		var entry jetstream.KeyValueEntry
		if entry, err = s.Pipelines.Get(ctx, key); err == nil {
			now = entry.Revision()
			if kept, err = s.key.Open(key, entry.Value()); err == nil && !bytes.Equal(kept, owned(manager, text)) {
				err = ErrTaken
			}
		}
	}
	if err != nil {
		return 0, fmt.Errorf("keep %s: %w", key, err)
	}
	return now, nil
}

func owned(manager string, text []byte) []byte { return append([]byte(manager+"\n"), text...) }

// Tasks returns the tasks whose keys begin with a key and a dot, each with its revision.
func (s *Store) Tasks(ctx context.Context, key string) (map[string]uint64, error) {
	entries, err := natscall.Entries(ctx, s.Pipelines, textKey+key+".*", jetstream.MetaOnly())
	all := map[string]uint64{}
	for _, entry := range entries {
		all[entry.Key()[len(textKey):]] = entry.Revision()
	}
	return all, err
}

// Task returns the text of a task, nil if it is not kept.
func (s *Store) Task(ctx context.Context, key string) ([]byte, error) {
	key = textKey + key
	entry, err := s.Pipelines.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	var kept []byte
	if err == nil {
		kept, err = s.key.Open(key, entry.Value())
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	_, text, _ := bytes.Cut(kept, []byte("\n"))
	return text, nil
}

// TakeTask makes a task that of a manager, and returns it, with its revision then. The task is nil if it has another
// revision by now, or if free says that the manager that has it keeps it: a manager that comes back changes the
// revision before it goes on. A manager alone has no ID, and writes nothing.
func (s *Store) TakeTask(
	ctx context.Context, key string, revision uint64, manager string, free func(of string) bool,
) (task []byte, now uint64, err error) {
	key = textKey + key
	entry, err := s.Pipelines.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) || err == nil && entry.Revision() != revision {
		return nil, 0, nil
	}
	var kept []byte
	if err == nil {
		kept, err = s.key.Open(key, entry.Value())
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", key, err)
	}
	of, text, _ := bytes.Cut(kept, []byte("\n"))
	if !free(string(of)) {
		return nil, 0, nil
	}
	if manager == "" {
		return text, revision, nil
	}
	now, err = s.Write(
		ctx, s.Pipelines, key, s.key.Seal(key, owned(manager, text)), jetstream.WithExpectLastSequencePerSubject(revision))
	if natscall.Changed(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("take %s over: %w", key, err)
	}
	return text, now, nil
}
