package state

import (
	"context"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// behind is a bucket whose watches begin as on a server that is behind the leader: without the latest value.
type behind struct {
	jetstream.KeyValue

	put func()
}

func (b behind) WatchFiltered(
	ctx context.Context, keys []string, options ...jetstream.WatchOpt,
) (jetstream.KeyWatcher, error) {
	watch, err := b.KeyValue.WatchFiltered(ctx, keys, options...)
	b.put()
	return watch, err
}

// The watch of a record may be on a server of the cluster that has not got it yet. A pipeline took its build for one
// that is not kept any more, and failed. In this process, the record may come between the watch and the first look.
func TestAWatchThatBeginsBeforeTheRecordFindsIt(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		s := open(t)
		own := s.home
		if shared {
			s.home = &joined{s: s}
		}
		bucket := s.Builds
		rec := NewRecord(&Request{ID: "1-a"}, &pb.SubmitRequest{})
		put := func() { require.NoError(t, s.Put(t.Context(), rec)) }
		if s.Builds = (behind{bucket, put}); !shared {
			put()
		}
		phases := []string{}
		err := s.WatchRecord(t.Context(), rec.ID, func(r *Record) bool {
			require.NotNil(t, r)
			phases = append(phases, r.Phase)
			if len(phases) == 1 {
				rec.Phase = PhaseEnded
				require.NoError(t, s.Put(t.Context(), rec))
			}
			return r.Phase != PhaseEnded
		})
		require.NoError(t, err)
		require.Equal(t, PhaseEnded, phases[len(phases)-1])

		s.Builds = behind{bucket, func() {}}
		var kept []bool
		require.NoError(t, s.WatchRecord(t.Context(), "2-b", func(r *Record) bool {
			kept = append(kept, r != nil)
			return true
		}))
		require.Equal(t, []bool{false}, kept)
		s.home = own
	}
}

// Each reader gets the last value of its keys, however fast they change and by how many writers, and their end.
func TestEachWatchGetsTheLastValue(t *testing.T) {
	t.Parallel()
	const writers, writes, readers = 4, 25, 8
	s := open(t)
	var mu sync.Mutex
	last := map[string]uint64{} // revisions
	keys := []string{"a", "b"}
	var all, writing sync.WaitGroup
	for range readers {
		all.Go(func() {
			seen := map[string]uint64{}
			gone := 0
			err := s.home.watch(t.Context(), s.Pipelines, keys, func(news []keyValue) (bool, error) {
				for _, v := range news {
					if v.revision == 0 {
						assert.Nil(t, v.text)
						continue
					}
					assert.Greater(t, v.revision, seen[v.key])
					if seen[v.key] = v.revision; v.text == nil {
						gone++
					}
				}
				return gone < len(keys), nil
			})
			assert.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, last, seen)
		})
	}
	for _, key := range keys {
		for range writers {
			writing.Go(func() {
				for range writes {
					_, err := s.Write(t.Context(), s.Pipelines, key, []byte("x"))
					assert.NoError(t, err)
				}
			})
		}
	}
	writing.Wait()
	mu.Lock()
	for _, key := range keys {
		revision, err := s.Purge(t.Context(), s.Pipelines, key)
		require.NoError(t, err)
		last[key] = revision
	}
	mu.Unlock()
	all.Wait()
	require.Empty(t, s.watches.all)
}

// Whether a write that has failed is stored is not known: the readers look.
func TestAWatchLooksAfterAWriteThatHasFailed(t *testing.T) {
	t.Parallel()
	s := open(t)
	var told []string
	require.NoError(t, s.home.watch(t.Context(), s.Pipelines, []string{"a"}, func(news []keyValue) (bool, error) {
		told = append(told, string(news[0].text))
		switch len(told) {
		case 1:
			_, err := s.Pipelines.Put(t.Context(), "a", []byte("by another way")) // nobody is told
			require.NoError(t, err)
			_, err = s.Write(t.Context(), s.Pipelines, "a", []byte("x"), jetstream.WithExpectLastSequencePerSubject(99))
			require.Error(t, err)
			s.watches.tell(s.Pipelines.Bucket(), keyValue{"a", []byte("late"), 1}) // of an older write
		}
		return len(told) < 2, nil
	}))
	require.Equal(t, []string{"", "by another way"}, told)
}
