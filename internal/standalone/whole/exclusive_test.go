package whole

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/pause"
)

// Of a group one job runs and one waits. A newer job replaces the one that waits and, if it cancels, the one that runs.
func TestGroupsHaveOneJobThatRunsAndOneThatWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		cancels bool
		want    []string // how each job ended, with the time
	}{
		"waits": {false, []string{
			"first ran 11s", "second replaced 4s", "third replaced 5s", "fourth replaced 6s", "fifth ran 21s", "other ran 12s",
		}},
		"cancels": {true, []string{
			"first replaced 3s", "second replaced 4s", "third replaced 5s", "fourth replaced 6s", "fifth ran 16s",
			"other ran 12s",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &runner{dir: t.TempDir()}
				var mu sync.Mutex
				var got []string
				begin := time.Now()
				var all sync.WaitGroup
				start := func(at time.Duration, job, group string) {
					all.Go(func() {
						pause.For(t.Context(), at)
						how := "ran"
						ctx, leave, err := g.enter(
							t.Context(), Member{Group: group, Cancels: tt.cancels, Newer: errNewerJob}, func(string) {},
						)
						if err == nil {
							err = pause.For(ctx, 10*time.Second)
							leave()
						}
						if err != nil {
							require.ErrorIs(t, err, errNewerJob)
							how = "replaced"
						}
						mu.Lock()
						defer mu.Unlock()
						got = append(got, job+" "+how+" "+time.Since(begin).Round(time.Second).String())
					})
				}
				for i, job := range []string{"first", "other", "second", "third", "fourth", "fifth"} {
					group := "g"
					if job == "other" {
						group = "h"
					}
					start(time.Duration(i+1)*time.Second, job, group)
				}
				all.Wait()
				slices.Sort(got)
				slices.Sort(tt.want)
				require.Equal(t, tt.want, got)
			})
		})
	}
}

// A job that is stopped while it waits leaves the group to others.
func TestAStoppedJobLeavesItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, said := &runner{dir: t.TempDir()}, ""
		tell := func(text string) { said += text }
		_, leave, err := g.enter(t.Context(), Member{Group: "g", Newer: errNewerJob}, tell)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err = g.enter(ctx, Member{Group: "g", Newer: errNewerJob}, tell)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		leave()
		require.Equal(t, `waits for the concurrency group "g", which another run or job on this machine has`, said)
		_, leave, err = g.enter(t.Context(), Member{Group: "g", Newer: errNewerJob}, tell)
		require.NoError(t, err)
		leave()
	})
}
