package job

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/engine"
)

// quick is a store whose jobs are over at once and write their length of life, so that only time
// counts.
func quick(t *testing.T, cfg Config) *Store {
	s := newStore(t, cfg)
	s.run = func(_ context.Context, _ *engine.Runner, p engine.Place) engine.Result {
		_, _ = fmt.Fprint(p.Stdout, "output")
		_ = os.WriteFile(filepath.Join(p.ScriptDir, streamNames[Merged]), nil, 0o600) // so the job keeps its directory
		return engine.Result{Status: engine.Success}
	}
	return s
}

//stepmux:faults service | Jobs that have ended, and their logs, are kept for ever
//stepmux:with remote/job.TestStoreIsBounded, remote/job.TestOutputOfEndedJobsIsBoundedInAll
//stepmux:with remote/job.TestEndedJobGivesUpItsVariablesAndSecrets
func TestFinishedJobIsRemovedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quick(t, Config{Keep: time.Hour})
		create := func(id string) {
			require.NoError(t, s.Create(script(t, id, "echo")))
			f, err := s.Follow(id)
			require.NoError(t, err)
			_, _, err = f.Wait(t.Context())
			require.NoError(t, err)
			f.Close()
		}
		create("a")
		pass(40 * time.Minute)
		create("b")
		pass(20*time.Minute - time.Nanosecond)
		require.Len(t, s.List(), 2)
		require.Len(t, dirs(t, s), 2)
		pass(time.Nanosecond)
		require.Equal(t, "b", s.List()[0].ID)
		require.Len(t, dirs(t, s), 1, "its files are gone too")
		pass(40 * time.Minute)
		require.Empty(t, s.List())
		require.Empty(t, dirs(t, s))
	})
}

func TestFollowersMayReadARemovedJobForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quick(t, Config{Keep: time.Hour, Linger: time.Minute})
		require.NoError(t, s.Create(script(t, "1", "echo")))
		stays, err := s.Follow("1")
		require.NoError(t, err)
		leaves, err := s.Follow("1")
		require.NoError(t, err)
		_, _, err = stays.Wait(t.Context())
		require.NoError(t, err)

		pass(time.Hour)
		require.Empty(t, s.List())
		require.Equal(t, "output", read(t, stays, Stdout, 0))
		leaves.Close()
		leaves.Close()
		pass(time.Minute - time.Nanosecond)
		require.Equal(t, "output", read(t, stays, Stdout, 0))
		require.Len(t, dirs(t, s), 1)
		pass(time.Nanosecond)
		require.Empty(t, dirs(t, s))
		_, err = stays.ReadAt(t.Context(), Stdout, make([]byte, 1), 0)
		require.ErrorIs(t, err, ErrNotFound)
		stays.Close()
	})
}

func TestRemovedJobGoesWithItsLastFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quick(t, Config{})
		require.NoError(t, s.Create(script(t, "1", "echo")))
		f, err := s.Follow("1")
		require.NoError(t, err)
		_, _, err = f.Wait(t.Context())
		require.NoError(t, err)
		s.Cancel("1", false)

		// A new job with the id sees no files of the old one.
		require.NoError(t, s.Create(script(t, "1", "echo anew")))
		again, err := s.Follow("1")
		require.NoError(t, err)
		_, _, err = again.Wait(t.Context())
		require.NoError(t, err)
		again.Close()
		require.Len(t, dirs(t, s), 2)
		f.Close()
		require.Len(t, dirs(t, s), 1)
		require.Equal(t, "output", read(t, follow(t, s, "1"), Stdout, 0))
	})
}

func TestOutputOfEndedJobsIsBoundedInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = int64(len("output"))
		s := quick(t, Config{KeepBytes: 3 * each})
		end := func(id string) {
			require.NoError(t, s.Create(script(t, id, "echo")))
			f, err := s.Follow(id)
			require.NoError(t, err)
			_, _, err = f.Wait(t.Context())
			require.NoError(t, err)
			f.Close()
			pass(time.Second)
		}
		ids := func() (list []string) {
			for _, stat := range s.List() {
				list = append(list, stat.ID)
			}
			return list
		}
		for _, id := range []string{"a", "b", "c"} {
			end(id)
		}
		require.Equal(t, []string{"a", "b", "c"}, ids())
		end("d")
		require.Equal(t, []string{"b", "c", "d"}, ids(), "the one that ended first has gone")
		require.Len(t, dirs(t, s), 3)
		s.Cancel("c", false)
		end("e")
		require.Equal(t, []string{"b", "d", "e"}, ids(), "what was removed counts no more")

		s.cfg.KeepBytes = each - 1
		end("f")
		require.Equal(t, []string{"f"}, ids(), "the last one stays, whatever it wrote")
		require.Equal(t, each, s.kept)
	})
}

func TestLimitsAreThereUnlessTheyAreChanged(t *testing.T) {
	cfg, err := Config{}.withDefaults()
	require.NoError(t, err)
	require.EqualValues(t, 256<<20, cfg.OutputLimit)
	require.EqualValues(t, 10<<30, cfg.KeepBytes)
	require.Equal(t, 1000, cfg.MaxJobs)
	require.Equal(t, 24*time.Hour, cfg.MaxRunTime)
	require.Equal(t, 30*time.Minute, cfg.Keep)
	cfg, err = Config{OutputLimit: -1, KeepBytes: -1}.withDefaults()
	require.NoError(t, err)
	require.Zero(t, cfg.OutputLimit, "none, to the log")
	require.Negative(t, cfg.KeepBytes)
}

// pass lets time pass, and all that is due then happen.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the time of a synctest bubble
	synctest.Wait()
}
