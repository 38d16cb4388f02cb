package faults

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// shortSeed is the seed of the rounds that run as tests.
const shortSeed = 1

func testOptions(t *testing.T) (Options, Filter) {
	t.Helper()
	sshtest.RequirePart(t, "openssh-server", sshdPath)
	opts := Options{Program: runnertest.Manager(t), VMsEnd: runnertest.Command(t)[0], Private: true}
	if err := CanBePrivate(t.Context()); err != nil {
		t.Logf("left out, as there are no namespaces here (%v): %v", err, NeedPrivate())
		opts.Private = false
	}
	return opts, Filter{Shared: !opts.Private}
}

// A round of each kind of fault that takes no long time, and nothing is wrong.
func TestFaultsOfEachKindLeaveBuildsTrueAndVMsClean(t *testing.T) {
	const builds, jobs = 4, 4
	opts, filter := testOptions(t)
	plans := make(chan Plan)
	go func() {
		defer close(plans)
		for _, p := range DrawShort(shortSeed, filter, builds) {
			plans <- p
		}
	}()
	var mu sync.Mutex
	var all []Result
	var wg sync.WaitGroup
	for range jobs {
		wg.Go(func() {
			for p := range plans {
				r, talk, err := StartRound(t.Context(), p, opts)
				if err != nil || len(r.Findings) > 0 {
					t.Errorf("%s by %s: %v %v\nrepeat it with: make prove WHAT=faults SEED=%d ROUND=%d\n%s", p.Kind,
						p.Route, err, r.Findings, p.Seed, p.Round, tail(talk))
				}
				mu.Lock()
				all = append(all, r)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	faults := 0
	for _, r := range all {
		faults += r.Faults
	}
	require.GreaterOrEqual(t, faults, len(all)/2, "most faults found no victim")
	t.Logf("\n%s", Table(all))
}

// A product that leaves something behind is found out: here a step runner whose command does.
func TestARoundFindsWhatIsLeftBehind(t *testing.T) {
	opts, _ := testOptions(t)
	runner := filepath.Join(t.TempDir(), "stepmux")
	text := "#!/bin/sh\nsetsid sleep 600 </dev/null >/dev/null 2>&1 &\n: >>$TMPDIR/left\nexec " + opts.VMsEnd +
		` "$@"` + "\n"
	require.NoError(t, os.WriteFile(runner, []byte(text), 0o700))
	opts.VMsEnd, opts.Clean = runner, time.Second
	plan := DrawShort(shortSeed, Filter{Kinds: []Kind{"none"}}, 4)[0]
	plan.Route = "session"
	r, talk, err := StartRound(t.Context(), plan, opts)
	require.NoError(t, err, talk)
	found := map[string]bool{}
	for _, f := range r.Findings {
		found[f.What] = true
	}
	require.Equal(t, map[string]bool{Orphan: true, Leftover: true}, found, "%v\n%s", r.Findings, talk)
}

func TestARoundThatIsCutShortLeavesNoProcess(t *testing.T) {
	opts, _ := testOptions(t)
	plan := DrawShort(shortSeed, Filter{Kinds: []Kind{"none"}}, 4)[0]
	plan.Builds[0].Pause, plan.Builds[0].Bursts = time.Minute, 2
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, _, err := StartRound(ctx, plan, opts)
	require.Error(t, err)
	require.Eventually(t, func() bool {
		for _, p := range processes() {
			if len(p.args) == 2 && (p.args[1] == keeperArg || p.args[1] == roundArg) && p.parent == 1 {
				return false
			}
		}
		return true
	}, sshtest.Bound, 10*time.Millisecond)
}
