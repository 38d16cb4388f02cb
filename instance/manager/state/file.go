package state

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance/manager/natscall"
)

// File is an archive that is kept for the actions of workflows: an artifact of a pipeline, or a cache of a project.
type File struct {
	// Digest is the SHA-256 of the archive, in hexadecimal, and Size its length.
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// About describes it.
	About json.RawMessage `json:"about"`

	key      string
	revision uint64
}

// Compare sorts files by their last use.
func (f *File) Compare(other *File) int { return cmp.Compare(f.revision, other.revision) }

// ArtifactsOf returns the place of the files of a pipeline. They end with its record, after ForgetPipelines. Those of
// another build are gone after the age of builds that have ended.
func ArtifactsOf(id string) (place string) { return artifactKey + id + "." }

// CachesOf returns the place of the files of a project. Each is gone when it was not used for the age of builds that
// have ended.
func CachesOf(project string) (place string) { return actionCacheKey + hashOf(project) + "." }

// pipelineAt returns the pipeline that has the file of a key, or its place, or "".
func pipelineAt(key string) string {
	rest, is := strings.CutPrefix(key, artifactKey)
	id, _, _ := strings.Cut(rest, ".")
	if !is || !IsPipeline(id) {
		return ""
	}
	return id
}

func hashOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// PutFile names an archive that is kept. before is the file of that name, as it was found, or nil: if it was changed
// since, the error is ErrTaken.
func (s *Store) PutFile(ctx context.Context, place, name string, f, before *File) error {
	if before != nil {
		return s.replaceFile(ctx, before, f)
	}
	key := place + hashOf(name)
	var options []jetstream.KVCreateOpt
	if pipelineAt(place) == "" {
		options = append(options, jetstream.KeyTTL(s.cfg.Keep))
	}
	_, err := s.Pipelines.Create(ctx, key, s.key.Seal(key, natscall.Encode(f)), options...)
	if errors.Is(err, jetstream.ErrKeyExists) {
		return ErrTaken
	}
	if err != nil {
		return fmt.Errorf("keep the name of a file: %w", err)
	}
	return nil
}

// replaceFile puts a file in the place of another one, unless that was changed since it was found.
func (s *Store) replaceFile(ctx context.Context, before, f *File) error {
	options := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(before.revision)}
	if pipelineAt(before.key) == "" {
		options = append(options, jetstream.WithMsgTTL(s.cfg.Keep))
	}
	_, err := s.Write(ctx, s.Pipelines, before.key, s.key.Seal(before.key, natscall.Encode(f)), options...)
	if natscall.Changed(err) {
		return ErrTaken
	}
	if err != nil {
		return fmt.Errorf("keep the name of a file: %w", err)
	}
	return nil
}

// UseFile notes the use of a file, as it was found.
func (s *Store) UseFile(ctx context.Context, f *File) error {
	err := s.replaceFile(ctx, f, f)
	if errors.Is(err, ErrTaken) { // another process has used it
		return nil
	}
	return err
}

// FindFile returns the file of a name, nil without one.
func (s *Store) FindFile(ctx context.Context, place, name string) (*File, error) {
	key := place + hashOf(name)
	entry, err := s.Pipelines.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for a file: %w", err)
	}
	return s.readFile(entry)
}

// ListFiles returns all files. One that was damaged or forged is left out.
func (s *Store) ListFiles(ctx context.Context, place string) (all []*File, err error) {
	entries, err := natscall.Entries(ctx, s.Pipelines, place+"*")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if f, err := s.readFile(entry); err == nil {
			all = append(all, f)
		}
	}
	return all, nil
}

// RemoveFile removes the file of a name.
func (s *Store) RemoveFile(ctx context.Context, place, name string) error {
	_, err := s.Purge(ctx, s.Pipelines, place+hashOf(name), jetstream.WithMsgTTL(recordMark))
	return err
}

func (s *Store) readFile(entry jetstream.KeyValueEntry) (*File, error) {
	f := &File{key: entry.Key(), revision: entry.Revision()}
	text, err := s.key.Open(entry.Key(), entry.Value())
	if err == nil {
		err = json.Unmarshal(text, f)
	}
	if err != nil {
		return nil, fmt.Errorf("read the description of a file: %w", err)
	}
	return f, nil
}

// neededArtifacts adds the archives of the artifacts of pipelines that have not ended.
func (s *Store) neededArtifacts(ctx context.Context, open map[string]bool, needed map[string]bool) error {
	all, err := s.ListFiles(ctx, artifactKey+"*.")
	for _, f := range all {
		if open[pipelineAt(f.key)] {
			needed[f.Digest] = true
		}
	}
	return err
}
