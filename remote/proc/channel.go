package proc

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Messages between the server and the shim: one byte with the kind, four bytes (little endian) with the length of the
// payload, the payload.
const (
	// To the shim. The first two are frameFiles and frameCommand; the end of the channel without a
	// frameClose is the end of the server.
	frameFiles   = 'O' // carries the descriptors of stdout and stderr
	frameCommand = 'C' // see encodeCommand
	frameTerm    = 'T' // SIGTERM to the command's process group
	frameKill    = 'K' // SIGKILL to everything that descends from the command
	frameClose   = 'Q' // the same, and end

	// From the shim: either started, exited, left, or failed alone. It ends by closing the channel.
	frameStarted = 'S' // pid
	frameFailed  = 'F' // stage, errno
	frameExited  = 'X' // wait status and resources of the command
	frameLeft    = 'L' // how many processes could not be killed

	frameHeader = 5
	maxReply    = 64
)

// channel is one end of the socket between a server and a shim. One goroutine may receive while others send. Sending a
// small message does not block, as the socket's buffer has room for it.
type channel struct{ file *os.File }

// channelPair returns the server's end and the shim's. Processes do not inherit either by default.
func channelPair() (*channel, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make its control socket: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil { // for deadlines
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, nil, fmt.Errorf("make its control socket: %w", err)
	}
	return &channel{os.NewFile(uintptr(fds[0]), "control")}, os.NewFile(uintptr(fds[1]), "shim"), nil
}

// send sends one message, in one write: messages of several goroutines do not mix.
func (c *channel) send(kind byte, payload []byte) error {
	frame := make([]byte, 0, frameHeader+len(payload))
	frame = append(frame, kind)
	frame = binary.LittleEndian.AppendUint32(frame, uint32(len(payload)))
	_, err := c.file.Write(append(frame, payload...))
	return err
}

// sendFiles sends a frameFiles. It must be the first message, which always finds room.
func (c *channel) sendFiles(files [2]*os.File) error {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	rights := unix.UnixRights(int(files[0].Fd()), int(files[1].Fd()))
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), []byte{frameFiles, 0, 0, 0, 0}, rights, nil, 0)
		return true
	})
	if err == nil {
		err = sendErr
	}
	return err
}

// receiveFiles receives a frameFiles. The error of any other message, and of the end, is errMessage.
func (c *channel) receiveFiles() (fds []int, err error) {
	var header [frameHeader]byte
	oob := make([]byte, unix.CmsgSpace(2*4))
	n, oobn, _, _, err := unix.Recvmsg(int(c.file.Fd()), header[:], oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_WAITALL)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || n != frameHeader || header[0] != frameFiles || len(messages) != 1 {
		return nil, errMessage
	}
	fds, err = unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 2 {
		return nil, errMessage
	}
	return fds, nil
}

// sendContext is send for a message that may block. If ctx ends first a part of it may have been sent: then the channel
// can only be closed.
func (c *channel) sendContext(ctx context.Context, kind byte, payload []byte) error {
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.file.SetWriteDeadline(time.Unix(1, 0))
		close(woken)
	})
	err := c.send(kind, payload)
	if !stop() {
		<-woken
		_ = c.file.SetWriteDeadline(time.Time{})
	}
	return err
}

// receive returns the next message, of at most limit bytes.
func (c *channel) receive(limit uint32) (kind byte, payload []byte, err error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(c.file, header[:]); err != nil {
		return 0, nil, err
	}
	size := binary.LittleEndian.Uint32(header[1:])
	if size > limit {
		return 0, nil, fmt.Errorf("message %q of %d bytes, the limit is %d", header[0], size, limit)
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(c.file, payload); err != nil {
		return 0, nil, err
	}
	return header[0], payload, nil
}

// closeWrite ends the channel towards the shim, which can still send.
func (c *channel) closeWrite() {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return // closed
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
}

func (c *channel) close() { c.file.Close() }
