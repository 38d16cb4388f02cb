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

// KeepTask keeps a task that a manager has, sealed. It is nothing new if it is kept: an answer to an earlier call may
// have been lost. When it returns nil, the task is on disk.
func (s *Store) KeepTask(ctx context.Context, key, manager string, text []byte) error {
	key = textKey + key
	_, err := s.Pipelines.Create(ctx, key, s.key.Seal(key, owned(manager, text)))
	if err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
		return fmt.Errorf("keep %s: %w", key, err)
	}
	return nil
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

// TakeTask makes a task that of a manager, and returns it. It returns nil if the task has another revision by now, or
// if free says that the manager that has it keeps it: a manager that comes back changes the revision before it goes
// on. A manager alone has no ID, and writes nothing.
func (s *Store) TakeTask(
	ctx context.Context, key string, revision uint64, manager string, free func(of string) bool,
) ([]byte, error) {
	key = textKey + key
	entry, err := s.Pipelines.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) || err == nil && entry.Revision() != revision {
		return nil, nil
	}
	var kept []byte
	if err == nil {
		kept, err = s.key.Open(key, entry.Value())
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	of, text, _ := bytes.Cut(kept, []byte("\n"))
	if !free(string(of)) {
		return nil, nil
	}
	if manager == "" {
		return text, nil
	}
	_, err = s.write(
		ctx, s.Pipelines, key, s.key.Seal(key, owned(manager, text)), jetstream.WithExpectLastSequencePerSubject(revision))
	if natscall.Changed(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take %s over: %w", key, err)
	}
	return text, nil
}
