package claims

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/instance/manager/state"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openStore opens the store of a fleet, until the test ends.
func openStore(t *testing.T) *state.Store {
	t.Helper()
	dir := t.TempDir()
	s, err := state.Open(t.Context(), state.Config{
		Dir: dir, KeyFile: filepath.Join(dir, "key"), Keep: time.Hour, LogBytes: 1 << 30, FileBytes: 1 << 30,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// member is a Member of a fleet of two VMs, to which nothing connects.
type member struct {
	*Member
	t    *testing.T
	join func() error
	die  func() // ends it without a word
	told chan string
	vms  *instance.Group
}

// newMember returns a member that has not joined.
func newMember(t *testing.T, s *state.Store, dir string) *member {
	t.Helper()
	var vms []instance.Instance
	for _, id := range []string{"vm-1", "vm-2"} {
		vms = append(vms, instance.Instance{
			ID: id, Addr: "127.0.0.1:1", Capacity: 1,
			SSH: mux.Config{User: "u", Auth: []login.Auth{login.Password("p")}, HostKeys: login.InsecureHostKeys()},
		})
	}
	group, err := instance.NewGroup(vms...)
	require.NoError(t, err)
	provider, err := instance.NewProvider(instance.Config{Group: group})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, provider.Close()) })
	m := &member{t: t, told: make(chan string, 100), vms: group}
	m.Member = New(Config{
		Dir: dir, Lease: time.Second, Store: s, Group: group, Provider: provider, Logger: slog.New(slog.DiscardHandler),
		Left: func([]string) {}, Renewed: func(context.Context) {}, Canceled: func(build string) { m.told <- build },
		Changed: func(entry jetstream.KeyValueEntry) { m.told <- entry.Key() },
		IsLease: func(string) bool { return false },
	})
	life, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	m.join = func() error {
		err := m.Join(t.Context(), life)
		if err == nil {
			running.Go(func() { m.Run(life) })
		}
		return err
	}
	m.die = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(m.die)
	return m
}

// joined returns a member that takes part.
func joined(t *testing.T, s *state.Store) *member {
	t.Helper()
	m := newMember(t, s, t.TempDir())
	require.NoError(t, m.join())
	return m
}

// awaitHeld waits until the member has so many VMs.
func (m *member) awaitHeld(n int) {
	m.t.Helper()
	require.Eventually(m.t, func() bool { return len(m.Held()) == n }, sshtest.Bound, 10*time.Millisecond)
}

func TestMembersShareTheVMsAndTakeThoseOfTheDead(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	a := joined(t, s)
	require.Equal(t, []string{"vm-1", "vm-2"}, a.Held(), "at once")
	b := joined(t, s)
	a.awaitHeld(1)
	b.awaitHeld(1)
	require.Equal(t, 1, a.Others())
	theirs := b.Held()[0]
	require.True(t, b.Has(theirs))
	require.Eventually(t, func() bool {
		return a.OwnerOf(func(in instance.Instance) bool { return in.ID == theirs }) == b.ID()
	}, sshtest.Bound, 10*time.Millisecond)
	require.False(t, a.Has(theirs))
	require.Empty(t, a.OwnerOf(func(instance.Instance) bool { return true }), "a has one of them")
	b.die()
	a.awaitHeld(2)
	require.Zero(t, a.Others())
	c := joined(t, s)
	c.awaitHeld(1)
	a.die()
	a.Leave(t.Context())
	require.Empty(t, a.Held())
	c.awaitHeld(2)
}

// A manager whose watches the library had closed, as after a break of the connection, took no more part in the cluster:
// it renewed no lease, and went on using its VMs after that.
func TestAManagerGoesOnWhenItsWatchesAreClosed(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	a := joined(t, s)
	a.awaitHeld(2)
	require.NoError(t, errors.Join(a.claimed.Stop(), a.leased.Stop()))
	b := joined(t, s)
	a.awaitHeld(1)
	b.awaitHeld(1)
}

func TestMembersPassOnChangesThatAreNotTheirs(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	_, err := s.Fleet.Put(t.Context(), "drain.x", nil)
	require.NoError(t, err)
	a := joined(t, s)
	ctx := sshtest.Within(t)
	told := func() string {
		select {
		case what := <-a.told:
			return what
		case <-ctx.Done():
			return ""
		}
	}
	require.Equal(t, []string{"key", "drain.x"}, []string{told(), told()}, "what is there")
	b := joined(t, s)
	require.NoError(t, b.TellCancel(t.Context(), "7-abc"))
	require.Equal(t, "7-abc", told())
	_, err = s.Fleet.Put(t.Context(), "drain.y", nil)
	require.NoError(t, err)
	require.Equal(t, "drain.y", told())
}

func TestACopyOfADirectoryDoesNotJoinWhileTheOtherLives(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	a := joined(t, s)
	dir := t.TempDir()
	require.NoError(t, CheckID(dir))
	copied := newMember(t, s, dir)
	file := filepath.Join(dir, idFile)
	require.NoError(t, os.WriteFile(file, []byte(a.ID()), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, copied.Join(ctx, t.Context()), context.DeadlineExceeded)
	require.Empty(t, copied.Held())
	require.NoError(t, os.WriteFile(file, []byte("short"), 0o600))
	require.ErrorContains(t, CheckID(dir), "is no ID of a manager")
}

// leave takes a VM out of the inventory.
func (m *member) leave(id string) {
	m.t.Helper()
	all := slices.DeleteFunc(m.vms.Instances(), func(in instance.Instance) bool { return in.ID == id })
	require.NoError(m.t, m.vms.Update(all))
}

// claimedKeys returns the keys of claims in the store, also of those that have only a mark.
func claimedKeys(t *testing.T, s *state.Store) (claims, marks []string) {
	t.Helper()
	watch, err := s.Fleet.Watch(t.Context(), claimPrefix+"*")
	require.NoError(t, err)
	defer func() { require.NoError(t, watch.Stop()) }()
	all, err := natscall.Present(t.Context(), watch)
	require.NoError(t, err)
	for _, entry := range all {
		if entry.Operation() == jetstream.KeyValuePut {
			claims = append(claims, entry.Key())
		} else {
			marks = append(marks, entry.Key())
		}
	}
	return claims, marks
}

// The claim of each VM that had ever been there stayed in the store.
func TestTheClaimOfAVMThatIsGoneIsRemoved(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	a, b := joined(t, s), joined(t, s)
	a.awaitHeld(1)
	b.awaitHeld(1)
	gone, dead, all := a.Held()[0], b.Held()[0], a.vms.Instances()
	awaitClaims := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			claims, _ := claimedKeys(t, s)
			return slices.Equal(claims, want)
		}, sshtest.Bound, 10*time.Millisecond)
	}
	a.leave(gone)
	b.leave(gone)
	awaitClaims(claimKey(dead))
	require.NoError(t, a.vms.Update(all), "it comes back while the mark is there")
	require.Eventually(t, func() bool { return slices.Contains(a.Held(), gone) }, sshtest.Bound, 10*time.Millisecond)
	awaitClaims(slices.Sorted(slices.Values([]string{claimKey("vm-1"), claimKey("vm-2")}))...)
	a.leave(gone)
	awaitClaims(claimKey(dead))
	b.die()
	a.leave(dead)
	awaitClaims()

	js, err := jetstream.New(s.Conn)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "KV_"+s.Fleet.Bucket())
	require.NoError(t, err)
	_, marks := claimedKeys(t, s)
	require.Len(t, marks, 2)
	for _, key := range marks {
		msg, err := stream.GetLastMsgForSubject(t.Context(), "$KV."+s.Fleet.Bucket()+"."+key)
		require.NoError(t, err)
		require.Equal(t, markTime.String(), msg.Header.Get(jetstream.MsgTTLHeader), "it goes by itself")
	}
	// Once the mark has gone, a VM with the ID can be claimed again, although the manager knows of the mark.
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject("$KV."+s.Fleet.Bucket()+"."+claimKey(gone))))
	require.NoError(t, a.vms.Update(all))
	a.awaitHeld(2)
}

// The term of a manager ends before another one may take its tasks over, and another begins with its next lease.
func TestATermEndsWithTheLease(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	a, b := joined(t, s), joined(t, s)
	term, stop, err := a.Term(t.Context())
	require.NoError(t, err)
	defer stop()
	require.True(t, a.Free(t.Context(), a.ID()))
	require.False(t, b.Free(t.Context(), a.ID()))
	a.die()
	a.Leave(t.Context())
	require.Error(t, term.Err())
	require.Eventually(t, func() bool { return b.Free(t.Context(), a.ID()) }, sshtest.Bound, 10*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = a.Term(ctx)
	require.ErrorIs(t, err, context.Canceled, "there is no lease")
}
