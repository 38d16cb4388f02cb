package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHellosAreFoundWhereTheyMayBe(t *testing.T) {
	hello := RelayHello(1)
	for name, test := range map[string]struct {
		text    string
		version int
		noise   string
	}{
		"alone":                   {hello, 1, ""},
		"another version":         {RelayHello(407), 407, ""},
		"after a greeting":        {"Welcome\r\n\r\n" + hello, 1, "Welcome\r\n\r\n"},
		"on the line of a prompt": {"user@vm:~$ " + hello, 1, "user@vm:~$ "},
		"after one that is none":  {"stepmux-relay/x\n" + hello, 1, "stepmux-relay/x\n"},
		"with leading zeros":      {"stepmux-relay/01\n", 1, ""},
		"after much noise":        {strings.Repeat("noise\n", 10_000) + hello, 1, strings.Repeat("noise\n", 10_000)},
	} {
		t.Run(name, func(t *testing.T) {
			r := bufio.NewReader(strings.NewReader(test.text + "rest"))
			version, noise, err := FindRelayHello(r)
			require.NoError(t, err)
			require.Equal(t, test.version, version)
			require.Equal(t, test.noise, string(noise))
			rest, err := io.ReadAll(r)
			require.NoError(t, err)
			require.Equal(t, "rest", string(rest), "not a byte more")
		})
	}
}

func TestOutputOfOtherProgramsIsNoRelayHello(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":            "",
		"text":               "hello\n",
		"version 0":          RelayHello(0),
		"a negative version": RelayHello(-1),
		"a long version":     "stepmux-relay/1234\n",
		"no newline":         "stepmux-relay/1",
	} {
		_, noise, err := FindRelayHello(bufio.NewReader(strings.NewReader(text)))
		require.ErrorIs(t, err, io.EOF, name)
		require.Equal(t, text, string(noise), name)
	}
	for _, echo := range []string{ManagerHello(1), "zsh: not found: " + ManagerHello(1)} {
		_, _, err := FindRelayHello(bufio.NewReader(io.MultiReader(strings.NewReader("text\n"+echo), neverRead{t})))
		require.ErrorIs(t, err, ErrEcho)
	}
	endless := io.MultiReader(bytes.NewReader(make([]byte, maxRelayNoise)), neverRead{t})
	_, _, err := FindRelayHello(bufio.NewReaderSize(endless, 16))
	require.ErrorContains(t, err, "no relay's hello in the first 65536 bytes")
}

// neverRead fails the test when it is read.
type neverRead struct{ t *testing.T }

func (n neverRead) Read([]byte) (int, error) {
	n.t.Error("read on beyond the bound")
	return 0, io.EOF
}

func TestManagerHelloMustComeFirst(t *testing.T) {
	r := strings.NewReader(ManagerHello(12) + "rest")
	version, err := ReadManagerHello(r)
	require.NoError(t, err)
	require.Equal(t, 12, version)
	require.Equal(t, 4, r.Len(), "not a byte more")
	for name, text := range map[string]string{
		"a blank before": " " + ManagerHello(1), "HTTP": "GET / HTTP/1.1\r\n", "SSH": "SSH-2.0-x\r\n",
		"version 0": ManagerHello(0),
		"a letter":  "stepmux-manager/1a\n", "a long version": "stepmux-manager/1234567\n", "the relay's": RelayHello(1),
	} {
		_, err := ReadManagerHello(strings.NewReader(text + strings.Repeat("x", 100)))
		require.ErrorContains(t, err, "started by a manager", name)
	}
	_, err = ReadManagerHello(strings.NewReader("stepmux"))
	require.ErrorIs(t, err, io.EOF, "cut off")
}

func TestRelayRequestsArriveAsTheyWereSent(t *testing.T) {
	for _, want := range []any{
		&RelayStart{Argv: []string{"stepmux", "", "a b", "ä\xff", strings.Repeat("x", 100_000)}},
		&RelayStart{Line: "echo 'x'; exit 3", Dir: "/tmp", Env: []string{"A=", "B=c=d"}, Ready: "/tmp/x.sock"},
		&RelayConnect{Path: "/tmp/gitlab-runner-steps/b/step-runner.sock"},
		&RelayConnect{Path: "", Wait: 1500 * time.Millisecond},
	} {
		var b []byte
		var err error
		switch r := want.(type) {
		case *RelayStart:
			b, err = AppendRelayStart([]byte("before"), *r)
		case *RelayConnect:
			b, err = AppendRelayConnect([]byte("before"), *r)
		}
		require.NoError(t, err)
		r := bytes.NewReader(append(bytes.TrimPrefix(b, []byte("before")), "rest"...))
		got, err := ReadRelayRequest(r)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, 4, r.Len(), "not a byte more")
	}
	for _, want := range []RelayResponse{{}, {RelayForbidden, "no"}, {RelayCode(77), strings.Repeat("y", 1000)}} {
		got, err := ReadRelayResponse(bytes.NewReader(AppendRelayResponse(nil, want)))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	long, err := ReadRelayResponse(
		bytes.NewReader(AppendRelayResponse(nil, RelayResponse{Text: strings.Repeat("z", 10<<20)})),
	)
	require.NoError(t, err)
	require.NotEmpty(t, long.Text, "cut, not lost")
}

func TestMalformedRelayRequestsAreRefused(t *testing.T) {
	start := func(s RelayStart) []byte {
		b, err := AppendRelayStart(nil, s)
		require.NoError(t, err)
		return b
	}
	whole := start(RelayStart{Argv: []string{"true"}})
	for name, test := range map[string]struct {
		bytes []byte
		want  string
	}{
		"an unknown kind":       {[]byte{9, 0, 0, 0}, "unknown request 9"},
		"a length beyond all":   {[]byte{1, 0xff, 0xff, 0xff}, "at most 524288 are allowed"},
		"nothing in it":         {[]byte{1, 0, 0, 0}, "malformed"},
		"a length within wrong": {append([]byte{1, 0, 0, 3}, 0, 0, 9), "malformed"},
		"bytes after the end": {
			append([]byte{whole[0], 0, 0, whole[3] + 1}, append(whole[4:len(whole):len(whole)], 7)...), "malformed",
		},
		"a connect cut short":  {[]byte{2, 0, 0, 3, 0, 0, 0}, "malformed"},
		"no program":           {start(RelayStart{}), "names no program"},
		"an empty program":     {start(RelayStart{Argv: []string{""}}), "empty program"},
		"program and line":     {start(RelayStart{Argv: []string{"a"}, Line: "b"}), "both"},
		"a NUL byte":           {start(RelayStart{Argv: []string{"a", "\x00"}}), "NUL"},
		"an env without a key": {start(RelayStart{Argv: []string{"a"}, Env: []string{"=b"}}), "KEY=VALUE"},
	} {
		_, err := ReadRelayRequest(bytes.NewReader(test.bytes))
		require.ErrorIs(t, err, ErrRelayProtocol, name)
		require.ErrorContains(t, err, test.want, name)
	}
	for n := range len(whole) {
		_, err := ReadRelayRequest(bytes.NewReader(whole[:n]))
		require.Error(t, err)
		require.Equal(t, n == 0, errors.Is(err, io.EOF), "cut at %d: %v", n, err)
	}
	_, err := AppendRelayStart(nil, RelayStart{Argv: []string{strings.Repeat("x", 1<<20)}})
	require.ErrorContains(t, err, "pass large data on stdin")
	_, err = AppendRelayStart(nil, RelayStart{Argv: []string{strings.Repeat("x", 1<<25)}})
	require.Error(t, err)
}

func TestFramesArriveAsTheyWereSent(t *testing.T) {
	b := AppendFrame(nil, FrameData, []byte("data"))
	b = AppendFrame(b, FrameEnd, nil)
	b = RelayCredit{FrameStderr, 4096}.Append(b)
	b = RelayExit{Status: 3, Signal: "KILL", Text: "because"}.Append(b)
	r := bytes.NewReader(b)
	next := func(want RelayFrame) []byte {
		kind, n, err := ReadFrameHeader(r)
		require.NoError(t, err)
		require.Equal(t, want, kind)
		payload, err := ReadFramePayload(r, n)
		require.NoError(t, err)
		return payload
	}
	require.Equal(t, "data", string(next(FrameData)))
	require.Empty(t, next(FrameEnd))
	credit, err := ParseRelayCredit(next(FrameCredit))
	require.NoError(t, err)
	require.Equal(t, RelayCredit{FrameStderr, 4096}, credit)
	exit, err := ParseRelayExit(next(FrameExit))
	require.NoError(t, err)
	require.Equal(t, RelayExit{3, "KILL", "because"}, exit)
	_, _, err = ReadFrameHeader(r)
	require.Equal(t, io.EOF, err)
	_, _, err = ReadFrameHeader(bytes.NewReader(b[:2]))
	require.Equal(t, io.ErrUnexpectedEOF, err)
	_, _, err = ReadFrameHeader(bytes.NewReader([]byte{'D', 1, 0, 1}))
	require.ErrorContains(t, err, "claims 65537 bytes")
	for _, bad := range [][]byte{nil, {1}, {'X', 0, 0, 0, 1}, {'D', 0xff, 0, 0, 0}} {
		_, err := ParseRelayCredit(bad)
		require.ErrorIs(t, err, ErrRelayProtocol)
	}
	_, err = ParseRelayExit([]byte{0, 0})
	require.ErrorIs(t, err, ErrRelayProtocol)
}

func TestTheWindowGrowsWithTheDistance(t *testing.T) {
	last := uint32(0)
	for _, rtt := range []time.Duration{-time.Second, 0, time.Millisecond, 20 * time.Millisecond, time.Second, time.Hour} {
		window := RelayWindow(rtt)
		require.GreaterOrEqual(t, window, last, "the longer the way, the more is under way")
		last = window
	}
	require.EqualValues(t, MaxRelayWindow, last)
}

func FuzzRelayRequest(f *testing.F) {
	for _, s := range []RelayStart{{Argv: []string{"a", "b"}}, {Line: "x", Dir: "/", Env: []string{"A=b"}, Ready: "/s"}} {
		b, err := AppendRelayStart(nil, s)
		require.NoError(f, err)
		f.Add(b)
	}
	b, err := AppendRelayConnect(nil, RelayConnect{"/s", time.Second})
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte{1, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := ReadRelayRequest(bytes.NewReader(data))
		if err != nil {
			return
		}
		var again []byte
		switch r := got.(type) {
		case *RelayStart:
			again, err = AppendRelayStart(nil, *r)
		case *RelayConnect:
			again, err = AppendRelayConnect(nil, *r)
		}
		require.NoError(t, err)
		require.Equal(t, data[:len(again)], again, "one form only")
	})
}

func FuzzRelayFrames(f *testing.F) {
	f.Add(
		RelayExit{
			Status: 1,
			Signal: "TERM",
		}.Append(
			RelayCredit{FrameData, 1}.Append(AppendFrame(nil, FrameData, []byte("x"))),
		),
	)
	f.Add([]byte{'D', 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			kind, n, err := ReadFrameHeader(r)
			if err != nil {
				return
			}
			require.LessOrEqual(t, n, MaxRelayFrame)
			payload, err := ReadFramePayload(r, n)
			if err != nil {
				return
			}
			switch kind {
			case FrameCredit:
				if c, err := ParseRelayCredit(payload); err == nil {
					require.Equal(t, payload, c.Append(nil)[RelayFrameHeader:])
				}
			case FrameExit:
				_, _ = ParseRelayExit(payload) // no panic
			default:
			}
		}
	})
}

func FuzzRelayHello(f *testing.F) {
	f.Add([]byte("noise\n$ " + RelayHello(1) + "rest"))
	f.Add([]byte(ManagerHello(1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		version, noise, err := FindRelayHello(bytes.NewReader(data))
		if err == nil {
			require.Positive(t, version)
			require.True(t, bytes.HasPrefix(data, noise))
		}
		require.LessOrEqual(t, len(noise), maxRelayNoise)
		if version, err := ReadManagerHello(bytes.NewReader(data)); err == nil {
			require.Positive(t, version)
		}
	})
}
