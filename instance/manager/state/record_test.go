package state

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// behind is a bucket whose watches begin as on a server that is behind the leader: without the latest value.
type behind struct {
	jetstream.KeyValue

	put func()
}

func (b behind) Watch(ctx context.Context, keys string, options ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	watch, err := b.KeyValue.Watch(ctx, keys, options...)
	b.put()
	return watch, err
}

// The watch of a record may be on a server of the cluster that has not got it yet. A pipeline took its build for one
// that is not kept any more, and failed.
func TestAWatchOnAServerThatIsBehindFindsTheRecord(t *testing.T) {
	t.Parallel()
	s := open(t)
	rec := NewRecord(&Request{ID: "1-a"}, &pb.SubmitRequest{})
	s.Builds = behind{s.Builds, func() { require.NoError(t, s.Put(t.Context(), rec)) }}
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

	s.Builds = behind{s.Builds.(behind).KeyValue, func() {}}
	var kept []bool
	require.NoError(t, s.WatchRecord(t.Context(), "2-b", func(r *Record) bool {
		kept = append(kept, r != nil)
		return true
	}))
	require.Equal(t, []bool{false}, kept)
}
