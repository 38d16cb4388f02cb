package pipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// controlFD is the descriptor of a serve's end of a ControlPair.
const controlFD = 3

// The packets between a relay and a serve.
const (
	serveWaits  = 'W' // from the serve: its build has left nothing, and it waits for the next one
	buildBegins = 'B' // from the relay, with the standard files of that build
)

// ControlPair makes the socket by which a relay hands a serve another build. The serve gets its end as descriptor 3,
// see [OpenControl]. Child processes inherit neither end by default.
func ControlPair() (relay, serve int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	return fds[0], fds[1], err
}

// TakeWaiting reports whether the serve at the other end of relay has said since the last call that it waits for a
// build. It does not block.
func TakeWaiting(relay int) bool {
	packet := make([]byte, 2)
	_ = unix.SetNonblock(relay, true) // never fails for a socket
	n, err := ReadFD(uintptr(relay), packet)
	return err == nil && n == 1 && packet[0] == serveWaits
}

// SendBuild gives the serve at the other end of relay the standard files of its next build. It does not block.
func SendBuild(relay int, stdio [3]int) error {
	return sendPacket(relay, buildBegins, unix.UnixRights(stdio[:]...))
}

func sendPacket(fd int, kind byte, rights []byte) error {
	return unix.Sendmsg(fd, []byte{kind}, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// Control is a serve's end of a ControlPair. Its owner closes it. It is not safe for concurrent use.
type Control struct {
	f    *os.File
	conn syscall.RawConn // of f
}

// OpenControl returns the Control of this process, which no child process inherits. It fails unless descriptor 3 is the
// socket of a relay.
func OpenControl() (*Control, error) {
	kind, err := unix.GetsockoptInt(controlFD, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_SEQPACKET {
		return nil, fmt.Errorf("descriptor %d is not the socket of a relay, which starts this command by itself", controlFD)
	}
	unix.CloseOnExec(controlFD)
	_ = unix.SetNonblock(controlFD, true) // before NewFile, which checks the mode; never fails for a socket
	f := os.NewFile(controlFD, "control")
	conn, err := f.SyscallConn()
	return &Control{f, conn}, err
}

// Close closes the socket.
func (c *Control) Close() { c.f.Close() }

// idleDelay is how long Await waits before it calls idle.
const idleDelay = time.Second

// Await tells the relay that this process waits for another build, closes the standard files of the last one, and puts
// those of the next one in their place. It calls idle if no build comes for a second. The error is io.EOF if the relay
// has no more builds or has ended, and the cause of ctx if that ends first.
func (c *Control) Await(ctx context.Context, idle func()) error {
	var failed error
	err := c.conn.Control(func(fd uintptr) { failed = sendPacket(int(fd), serveWaits, nil) })
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("tell the relay that the build has ended: %w", err)
	}
	if err := LetGo(); err != nil { // the relay looks for the packet when the build's files end
		return err
	}
	past := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() { _ = c.f.SetReadDeadline(past) })
	defer stop()
	_ = c.f.SetReadDeadline(time.Now().Add(idleDelay))
	for first := true; ; first = false {
		stdio, err := c.receive()
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case errors.Is(err, os.ErrDeadlineExceeded) && first:
			idle()
			_ = c.f.SetReadDeadline(time.Time{})
			if ctx.Err() == nil { // otherwise its deadline may be gone
				continue
			}
			err = context.Cause(ctx)
		case err == nil:
			for i, fd := range stdio {
				err = errors.Join(err, unix.Dup3(fd, i, 0))
			}
		}
		for _, fd := range stdio {
			_ = unix.Close(fd)
		}
		return err
	}
}

// receive waits for a packet and returns its files. No child process inherits them.
func (c *Control) receive() (stdio []int, err error) {
	packet, oob := make([]byte, 2), make([]byte, unix.CmsgSpace(4*3))
	var n, oobn int
	waitErr := c.conn.Read(func(fd uintptr) bool {
		// Not unix.Recvmsg, which decodes the addresses of all networks: the VM's end would be larger by 25 KB.
		n, oobn, _, _, err = syscall.Recvmsg(int(fd), packet, oob, unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err = errors.Join(waitErr, err); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	parts, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err == nil && len(parts) == 1 {
		stdio, err = unix.ParseUnixRights(&parts[0])
	}
	if err == nil && (n != 1 || packet[0] != buildBegins || len(stdio) != 3) {
		err = errors.New("malformed message of the relay")
	}
	return stdio, err
}

// LetGo puts /dev/null in the place of the standard files. Their readers would wait for the end of this process, as an
// SSH server does before it closes a session.
func LetGo() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for fd := range 3 {
		_ = unix.Dup3(int(null.Fd()), fd, 0) // fails only if a file is not open
	}
	return nil
}
