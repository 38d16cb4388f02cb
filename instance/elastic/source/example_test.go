package source_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/instance/elastic/source"
	"github.com/stepmux/stepmux/instance/manager/scaler"
)

// shelf is a Source of machines that are there already, and are lent: by an address each.
type shelf struct {
	mu   sync.Mutex // guards the following
	free []string
	lent map[string]source.VM
	made map[string][]string // the IDs of VMs, by request
}

func (s *shelf) Info(context.Context) (source.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return source.Info{Name: "shelf", Max: len(s.free) + len(s.lent)}, nil
}

func (s *shelf) List(context.Context) ([]source.VM, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.lent)), nil
}

// Create lends machines. A machine that is lent again has another ID: nothing of its time before is known.
func (s *shelf) Create(_ context.Context, r source.Request) (int, []string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids, again := s.made[r.ID]
	if again {
		return len(ids), ids, nil
	}
	if len(s.free) == 0 {
		return 0, nil, fmt.Errorf("all machines are lent: %w", source.ErrTryLater)
	}
	for i := range min(r.Count, len(s.free)) {
		id := fmt.Sprintf("%s-%d", r.ID, i+1)
		s.lent[id] = source.VM{ID: id, State: source.Running, Address: s.free[0], Created: time.Now()}
		s.free, ids = s.free[1:], append(ids, id)
	}
	s.made[r.ID] = ids
	return len(ids), ids, nil
}

func (s *shelf) Delete(_ context.Context, ids []string, _ string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if vm, known := s.lent[id]; known {
			s.free = append(s.free, vm.Address)
			delete(s.lent, id)
		}
	}
	return ids, nil // an unknown one is gone
}

// A Source in Go, for the group of a manager: its scaler.Config goes to manager.Config.VMGroups.
func ExampleSource() {
	s := &shelf{free: []string{"10.0.0.1", "10.0.0.2"}, lent: map[string]source.VM{}, made: map[string][]string{}}
	group := scaler.Config{
		Name: "shelf", Source: s, Logger: slog.New(slog.DiscardHandler),
		Policy: elastic.Config{MaxInstances: 2, Rules: []elastic.Rule{{IdleTime: time.Minute}}},
	}
	if err := group.Check(); err != nil {
		panic(err)
	}

	// What a manager does for builds that wait, also if it was killed in between, and after them.
	ctx := context.Background()
	for range 2 {
		fmt.Println(group.Source.Create(ctx, source.Request{ID: "5f0c", Count: 3}))
	}
	fmt.Println(group.Source.Create(ctx, source.Request{ID: "77aa", Count: 1}))
	fmt.Println(group.Source.Delete(ctx, []string{"5f0c-1", "5f0c-2"}, "is not needed"))
	// Output:
	// 2 [5f0c-1 5f0c-2] <nil>
	// 2 [5f0c-1 5f0c-2] <nil>
	// 0 [] all machines are lent: the source asks to try again later
	// [5f0c-1 5f0c-2] <nil>
}
