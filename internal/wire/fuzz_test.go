package wire

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzRelayResponse(f *testing.F) {
	f.Add(AppendRelayResponse(nil, RelayResponse{Code: RelayBusy, Text: "busy"}))
	f.Add([]byte{0, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		got, err := ReadRelayResponse(r)
		if err != nil {
			return
		}
		again := AppendRelayResponse(nil, got)
		if len(got.Text) <= maxRelayMessage/2 { // longer ones are cut
			require.Equal(t, data[:len(data)-r.Len()], again, "one form only, and no byte more was read")
		}
	})
}

func FuzzParsedSecretComesBack(f *testing.F) {
	f.Add(NewSecret().text)
	f.Add("short")
	f.Fuzz(func(t *testing.T, line string) {
		s, err := ParseSecret(line)
		if err != nil {
			require.NotContains(t, err.Error()+" ", line+"x", "and not quoted")
			return
		}
		require.Equal(t, line+"\n", string(s.Line()))
		require.True(t, s.Verifier().Admits([]string{s.Authorization()}))
		require.False(t, s.Verifier().Admits([]string{s.Authorization() + "x"}))
		require.NotContains(t, s.String(), line)
	})
}

func FuzzRelayExitComesBack(f *testing.F) {
	f.Add(uint8(1), "TERM", "text")
	f.Add(uint8(0), "", "")
	f.Fuzz(func(t *testing.T, status uint8, signal, text string) {
		e := RelayExit{status, signal, text}
		frame := e.Append(nil)
		kind, n, err := ReadFrameHeader(bytes.NewReader(frame))
		require.NoError(t, err)
		require.Equal(t, FrameExit, kind)
		got, err := ParseRelayExit(frame[RelayFrameHeader:])
		require.NoError(t, err)
		require.Equal(t, n, len(frame)-RelayFrameHeader)
		require.Equal(t, RelayExit{status, signal[:min(len(signal), 32)], text[:min(len(text), MaxRelayFrame/2)]}, got)
		_, err = ParseRelayExit(frame[RelayFrameHeader : len(frame)-1])
		require.ErrorIs(t, err, ErrRelayProtocol, "a part of it is no response")
	})
}
