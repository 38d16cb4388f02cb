package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
)

// yamuxFrame returns a header of yamux and the bytes after it.
func yamuxFrame(kind byte, flags uint16, id, n uint32, body string) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, id), n)
	return append(b, body...)
}

var ping = yamuxFrame(2, 1, 0, 7, "")

func TestRelayGuardFailsWhereARelayBreaksTheProtocol(t *testing.T) {
	for name, tc := range map[string]struct {
		said []byte
		want string
	}{
		"opens a stream":            {yamuxFrame(1, 1, 2, 0, ""), "opened a stream"},
		"opens a stream with bytes": {yamuxFrame(0, 1, 2, 3, "abc"), "opened a stream"},
		"opens and ends a stream":   {yamuxFrame(1, 1|4, 2, 0, ""), "opened a stream"},
		"opens one after data": {
			append(yamuxFrame(0, 0, 1, 3, "abc"), yamuxFrame(1, 1, 2, 0, "")...), "opened a stream",
		},
		"pings all the time":         {bytes.Repeat(ping, relayPings+1), "pings more"},
		"pings":                      {bytes.Repeat(ping, relayPings), ""},
		"answers pings":              {bytes.Repeat(yamuxFrame(2, 2, 0, 7, ""), 1000), ""},
		"acknowledges and ends":      {append(yamuxFrame(1, 2, 1, 0, ""), yamuxFrame(1, 4, 1, 0, "")...), ""},
		"has a header in its data":   {yamuxFrame(0, 0, 1, 12, string(yamuxFrame(1, 1, 2, 0, ""))), ""},
		"has bytes without a length": {append(yamuxFrame(1, 0, 1, 12, ""), yamuxFrame(1, 1, 2, 0, "")...), "opened a stream"},
	} {
		for _, read := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader} {
			got, err := io.ReadAll(NewRelayGuard(read(bytes.NewReader(tc.said))))
			if tc.want == "" {
				require.NoError(t, err, name)
				require.Equal(t, tc.said, got, name)
			} else {
				require.ErrorIs(t, err, ErrRelayProtocol, name)
				require.ErrorContains(t, err, tc.want, name)
			}
		}
	}
}

func TestRelayGuardAllowsOnePingASecond(t *testing.T) {
	now := time.Now()
	g := NewRelayGuard(nil)
	g.now = func() time.Time { return now }
	for range 1000 {
		now = now.Add(relayPingInterval)
		require.NoError(t, g.check(ping))
	}
	now = now.Add(time.Hour)
	require.NoError(t, g.check(bytes.Repeat(ping, relayPings)))
	require.Error(t, g.check(ping), "an hour of silence is no store of pings")
}

// FuzzRelayGuard compares the guard, which sees pieces, with a look at the whole.
func FuzzRelayGuard(f *testing.F) {
	f.Add(append(yamuxFrame(0, 0, 1, 3, "abc"), ping...), uint8(5))
	f.Add(yamuxFrame(1, 1, 2, 0, ""), uint8(1))
	f.Add(bytes.Repeat(ping, relayPings+1), uint8(13))
	f.Add(yamuxFrame(0, 0, 1, 1<<32-1, "abc"), uint8(2))
	f.Fuzz(func(t *testing.T, said []byte, size uint8) {
		good, pings := true, 0
		for rest := said; good && len(rest) >= yamuxHeader; {
			head := rest[:yamuxHeader]
			rest = rest[yamuxHeader:]
			opens := head[3]&1 != 0
			switch {
			case head[1] == 2 && opens:
				pings++
				good = pings <= relayPings
			case head[1] < 2 && opens:
				good = false
			case head[1] == 0:
				rest = rest[min(uint64(len(rest)), uint64(binary.BigEndian.Uint32(head[8:]))):]
			}
		}
		g := NewRelayGuard(bytes.NewReader(said))
		now := time.Now()
		g.now = func() time.Time { return now } // so that no ping comes back
		got, err := io.ReadAll(sized{g, int(size) + 1})
		if good {
			require.NoError(t, err)
			require.True(t, bytes.Equal(said, got))
		} else {
			require.ErrorIs(t, err, ErrRelayProtocol)
			require.True(t, bytes.HasPrefix(said, got))
		}
	})
}

// sized reads at most n bytes at once.
type sized struct {
	io.Reader
	n int
}

func (s sized) Read(p []byte) (int, error) { return s.Reader.Read(p[:min(len(p), s.n)]) }
