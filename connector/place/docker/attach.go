package docker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
)

// frameHeader is the length of the header that the daemon puts before each piece of output: one byte for the stream,
// three of zero, and four for the length.
const frameHeader = 8

// attached is the stream to the standard streams of a container's main process, without a terminal. It implements
// relay.Duplex: it writes to stdin and reads stdout. Read passes stderr on.
type attached struct {
	stream client.HijackedResponse
	stderr io.Writer // never fails, never waits
	left   int       // bytes of stdout that are still to come of a frame; owned by Read

	closeOnce sync.Once
}

// Read implements io.Reader.
func (a *attached) Read(p []byte) (int, error) {
	for a.left == 0 {
		if err := a.nextFrame(); err != nil {
			return 0, err
		}
	}
	n, err := a.stream.Reader.Read(p[:min(len(p), a.left)])
	a.left -= n
	return n, cutOff(err)
}

// nextFrame reads a frame's header, and the frame if it is not of stdout.
func (a *attached) nextFrame() error {
	var header [frameHeader]byte
	if _, err := io.ReadFull(a.stream.Reader, header[:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(header[4:]))
	switch stdcopy.StdType(header[0]) { //nolint:exhaustive // the others are never sent
	case stdcopy.Stdout:
		a.left = int(size)
		return nil
	case stdcopy.Stderr:
		_, err := io.CopyN(a.stderr, a.stream.Reader, size)
		return cutOff(err)
	default:
		return fmt.Errorf("the Docker daemon sent a piece of an unknown stream %d", header[0])
	}
}

// cutOff returns the error of a read within a frame, where the stream must not end.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write implements io.Writer.
func (a *attached) Write(p []byte) (int, error) { return a.stream.Conn.Write(p) }

// CloseWrite ends the process's stdin.
func (a *attached) CloseWrite() error { return a.stream.CloseWrite() }

// Close implements io.Closer. The daemon then ends the process's stdin for good (StdinOnce): it accepts a later
// attachment, but drops its input.
func (a *attached) Close() error {
	a.closeOnce.Do(func() { a.stream.Close() })
	return nil
}
