package docker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/iotest"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"
)

// frame returns a piece of output as the daemon sends it.
func frame(stream byte, text string) []byte {
	header := []byte{stream, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(header[4:], uint32(len(text)))
	return append(header, text...)
}

func attachedTo(r io.Reader, stderr io.Writer) *attached {
	return &attached{stream: client.HijackedResponse{Reader: bufio.NewReader(r)}, stderr: stderr}
}

func TestAttachedSeparatesTheStreams(t *testing.T) {
	text := bytes.Join([][]byte{
		frame(1, "one "), frame(2, "oh"), frame(1, ""), frame(2, ""), frame(1, "two"), frame(2, " dear"),
	}, nil)
	for name, from := range map[string]io.Reader{
		"at once":      bytes.NewReader(text),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(text)),
	} {
		var stderr bytes.Buffer
		stdout, err := io.ReadAll(attachedTo(from, &stderr))
		require.NoError(t, err, name)
		require.Equal(t, "one two", string(stdout), name)
		require.Equal(t, "oh dear", stderr.String(), name)
	}
}

func TestAttachedThatIsCutOffOrNoDaemonsIsAnError(t *testing.T) {
	for text, want := range map[string]error{
		"":                              nil, // the container has ended
		"\x01\x00\x00":                  io.ErrUnexpectedEOF,
		string(frame(2, "cut off"))[:9]: io.ErrUnexpectedEOF,
		string(frame(1, "cut off"))[:9]: io.ErrUnexpectedEOF,
	} {
		_, err := io.ReadAll(attachedTo(bytes.NewReader([]byte(text)), io.Discard))
		require.ErrorIs(t, err, want, "%q", text)
	}
	_, err := io.ReadAll(attachedTo(bytes.NewReader([]byte("HTTP/1.1 200 OK")), io.Discard))
	require.ErrorContains(t, err, "a piece of an unknown stream 72")
}

// FuzzAttached: any cut of any text into frames gives the text again, and any bytes an end.
func FuzzAttached(f *testing.F) {
	f.Add([]byte("some text"), 3)
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		size = max(1, size%64)
		var framed bytes.Buffer
		for rest := text; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			framed.Write(frame(1, string(rest[:min(size, len(rest))])))
			framed.Write(frame(2, "noise"))
		}
		got, err := io.ReadAll(attachedTo(&framed, io.Discard))
		require.NoError(t, err)
		require.Equal(t, string(text), string(got))
		_, _ = io.Copy(io.Discard, attachedTo(bytes.NewReader(text), io.Discard)) // it ends
	})
}

func TestAttachedIsClosedOnce(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	a := &attached{stream: client.NewHijackedResponse(here, "")}
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	_, err := a.Write([]byte("x"))
	require.ErrorIs(t, err, io.ErrClosedPipe)
}
