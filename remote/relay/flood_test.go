package relay

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/liveheap"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/proc"
)

// relayMemory bounds the memory that malformed frames of a manager cost a relay.
const relayMemory = 64 << 20

// floodCount is how many frames a hostile manager sends: STEPMUX_HOSTILE, or fewer.
func floodCount(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("STEPMUX_HOSTILE"), "20000"))
	require.NoError(t, err, "STEPMUX_HOSTILE")
	return n
}

// retained returns how many bytes of the heap stay in use once the relay has handled the sent bytes. A collection
// counts memory that is allocated while it runs, and under the race detector a sync.Pool drops a quarter of the frames.
func retained() int64 {
	least := liveheap.Bytes()
	for {
		now := liveheap.Bytes()
		if now >= least {
			return least
		}
		least = now
	}
}

// floodRelay runs a relay and lets say speak to it; sample is to be called now and then.
func floodRelay(t *testing.T, say func(m *manager, sample func())) {
	t.Helper()
	in, out, ended := relayHere(t, t.Context(), defaultLimits, startCat)
	m := manage(t, in, out)
	before, most := liveheap.Bytes(), int64(0)
	say(m, func() { most = max(most, retained()-before) })
	require.False(t, m.session.IsClosed(), "only the streams end")
	m.session.Close()
	require.NoError(t, <-ended)
	require.Empty(t, proc.ListChildren())
	require.Less(t, most, int64(relayMemory))
	t.Logf("at most %d KiB", most>>10)
}

func TestMalformedRequestsCostARelayNoMemory(t *testing.T) {
	n := floodCount(t) / 10 // each is a stream
	bad := [][]byte{{9, 0, 0, 0}, {1, 0xff, 0xff, 0xff}, {1, 0, 0, 1, 1}, {2, 0, 0, 0}, {0}}
	floodRelay(t, func(m *manager, sample func()) {
		for i := range n {
			s, err := m.session.OpenStream()
			require.NoError(t, err)
			_, err = s.Write(bad[i%len(bad)])
			require.NoError(t, err)
			require.NoError(t, s.Close())
			answer, err := io.ReadAll(s)
			require.NoError(t, err)
			if i%len(bad) < 4 {
				require.NotEmpty(t, answer, "it is told why")
			}
			if i%(n/8+1) == 0 {
				sample()
			}
		}
	})
}

func TestFramesThatMakeNoSenseCostARelayNoMemory(t *testing.T) {
	n := floodCount(t)
	start, err := wire.AppendRelayStart(nil, wire.RelayStart{Argv: []string{"cat"}})
	require.NoError(t, err)
	const many = 1000
	nothing := bytes.Repeat([]byte{'D', 0, 0, 0}, many)
	for _, last := range [][]byte{
		{'X', 0, 0, 0},
		{'D', 0xff, 0xff, 0xff},
		{'C', 0, 0, 5, 'D', 0xff, 0xff, 0xff, 0xff},
		{'K', 0, 1, 0},
		{'S', 0, 0, 0},
		{'?', 0, 0, 0},
	} {
		floodRelay(t, func(m *manager, sample func()) {
			s, err := m.session.OpenStream()
			require.NoError(t, err)
			_, err = s.Write(start)
			require.NoError(t, err)
			response, err := wire.ReadRelayResponse(s)
			require.NoError(t, err)
			require.Equal(t, wire.RelayOK, response.Code)
			for i := range n / many {
				_, err := s.Write(nothing)
				require.NoError(t, err)
				if i%(n/many/8+1) == 0 {
					sample()
				}
			}
			_, err = s.Write(last)
			require.NoError(t, err)
			_ = s.Close()
			_, err = io.Copy(io.Discard, s)
			require.NoError(t, err, "and the stream has an end")
		})
	}
}
