package proc

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// newStarter returns a Starter that has a shim ready.
func newStarter(t *testing.T) *Starter {
	t.Helper()
	s := new(Starter)
	t.Cleanup(s.Close)
	s.Prepare()
	s.makers.Wait()
	require.NotNil(t, s.ready())
	return s
}

// ready returns the shim that is ready, nil if there is none.
func (s *Starter) ready() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		return nil
	}
	return s.next()
}

func TestStarterTakesTheShimThatIsReadyAndGetsAnotherReady(t *testing.T) {
	s := newStarter(t)
	for range 3 {
		ready := s.ready()
		s.Prepare() // one is enough
		s.makers.Wait()
		require.Same(t, ready, s.ready())
		var out, errs bytes.Buffer
		c := shell("echo out; echo err >&2; exit 3")
		c.Stdout, c.Stderr = &out, &errs
		p, err := s.Start(t.Context(), c)
		require.NoError(t, err)
		require.Same(t, ready, p)
		require.Equal(t, 3, wait(t, p).Code)
		require.NoError(t, p.Close())
		require.Equal(t, "out\n", out.String())
		require.Equal(t, "err\n", errs.String())
		s.makers.Wait()
		require.NotNil(t, s.ready())
	}
}

func TestStarterGoesOnWhenItsReadyShimWasKilled(t *testing.T) {
	s := newStarter(t)
	killed := s.ready()
	require.NoError(t, killed.shim.Kill())
	<-killed.gone
	p, err := s.Start(t.Context(), shell("exit 3"))
	require.NoError(t, err)
	require.NotSame(t, killed, p)
	require.Equal(t, 3, wait(t, p).Code)
	require.NoError(t, p.Close())
}

func TestClosedStarterLeavesNothingAndStillStarts(t *testing.T) {
	s := newStarter(t)
	ready := s.ready()
	s.Prepare()
	s.Close()
	require.True(t, ended(ready.shim.Pid))
	s.Close()
	s.Prepare()
	p, err := s.Start(t.Context(), shell("exit 3"))
	require.NoError(t, err)
	require.Equal(t, 3, wait(t, p).Code)
	require.NoError(t, p.Close())
	require.Nil(t, s.ready())

	s = new(Starter) // closed while one is being made ready
	s.Prepare()
	s.Close()
	require.Nil(t, s.ready())
}

func TestStarterKeepsItsShimWhenACommandCannotBeStarted(t *testing.T) {
	s := newStarter(t)
	ready := s.ready()
	_, err := s.Start(t.Context(), Command{Dir: "/"})
	require.ErrorContains(t, err, "it has no program")
	require.Same(t, ready, s.ready(), "it was not needed to tell that")
	_, err = s.Start(t.Context(), Command{Argv: []string{"/no/such"}, Dir: "/"})
	require.ErrorIs(t, err, ErrNotFound)
	require.True(t, ended(ready.shim.Pid))
}

func TestStarterStartsManyAtOnceAndHasOneReadyAtTheEnd(t *testing.T) {
	s := new(Starter)
	defer s.Close()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			s.Prepare()
			p, err := s.Start(t.Context(), shell("exit 3"))
			require.NoError(t, err)
			require.Equal(t, 3, wait(t, p).Code)
			require.NoError(t, p.Close())
		})
	}
	wg.Wait()
	s.Prepare()
	s.makers.Wait()
	require.NotNil(t, s.ready())
}
