package alive_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/alive"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const interval, timeout = 15 * time.Second, 10 * time.Second

// peer is one that was last heard at a time, and may answer when asked.
type peer struct {
	last  time.Time
	asked int
	reply bool
}

func (p *peer) heard() time.Time { return p.last }

func (p *peer) ask() {
	p.asked++
	if p.reply {
		p.last = time.Now()
	}
}

func TestWatchFindsASilentPeerWithinItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := &peer{last: start}
		err := alive.Watch(t.Context().Done(), interval, timeout, p.heard, p.ask)
		require.ErrorContains(t, err, "no sign of life for 25s")
		require.Equal(t, interval+timeout, time.Since(start))
		require.Equal(t, 1, p.asked)
	})
}

func TestWatchLeavesAPeerThatAnswersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		p := &peer{last: time.Now(), reply: true}
		require.NoError(t, alive.Watch(ctx.Done(), interval, timeout, p.heard, p.ask))
		require.EqualValues(t, time.Hour/interval, p.asked, "asked only when it was silent")
	})
}

func TestWatchDoesNotAskAPeerThatTalks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		p := &peer{}
		talks := func() time.Time { return time.Now().Add(-interval / 2) }
		require.NoError(t, alive.Watch(ctx.Done(), interval, timeout, talks, p.ask))
		require.Zero(t, p.asked)
	})
}

func TestWatchTakesAnyByteForAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := &peer{}
		late := start.Add(interval + timeout - time.Second)
		heard := func() time.Time {
			if time.Now().Before(late) {
				return start
			}
			return late
		}
		require.Error(t, alive.Watch(t.Context().Done(), interval, timeout, heard, p.ask))
		require.Equal(t, 2, p.asked)
		require.Equal(t, interval+timeout, time.Since(late), "the bound counts from the last byte")
	})
}
