package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Messages to the shim, one byte each. The first is messageCommand; the end of the channel without a messageClose is
// the end of the server.
const (
	messageCommand = 'C' // carries the descriptors of stdout, of stderr, and of a file in memory with the command
	messageTerm    = 'T' // SIGTERM to the command's process group
	messageKill    = 'K' // SIGKILL to everything that descends from the command
	messageClose   = 'Q' // the same, and end
)

// report is a message from the shim: either started, exited, left, or failed alone. The shim ends by closing the
// channel.
type report struct {
	Kind byte

	PID      int32  // of reportStarted
	At       stage  // of reportFailed
	Errno    uint32 // of reportFailed
	Status   uint32 // of reportExited
	UserTime int64  // of reportExited, in nanoseconds, as SystemTime
	SysTime  int64
	MaxRSS   int64  // of reportExited, in bytes
	Left     uint32 // of reportLeft: how many processes could not be killed
}

const (
	reportStarted = 'S'
	reportFailed  = 'F'
	reportExited  = 'X'
	reportLeft    = 'L'
)

// send sends r in one write: reports of several goroutines do not mix. It does not block, as the socket's buffer has
// room for all reports of a shim. A server that is gone needs no report.
func (r report) send(control io.Writer) { _ = binary.Write(control, binary.LittleEndian, r) }

// exited returns the report of the command's end.
func exited(status syscall.WaitStatus, usage *syscall.Rusage) report {
	return report{
		Kind: reportExited, Status: uint32(status), UserTime: usage.Utime.Nano(), SysTime: usage.Stime.Nano(),
		MaxRSS: usage.Maxrss << 10, // getrusage(2) counts in KiB
	}
}

// exit is the inverse of exited.
func (r report) exit() Exit {
	status := syscall.WaitStatus(r.Status)
	e := Exit{
		Code: status.ExitStatus(), UserTime: time.Duration(r.UserTime), SystemTime: time.Duration(r.SysTime),
		MaxRSS: r.MaxRSS,
	}
	if status.Signaled() {
		e.Signal = status.Signal()
		e.Code = 128 + int(e.Signal)
	}
	return e
}

// channelPair returns the server's end of a channel and the shim's. Processes do not inherit either by default.
func channelPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make its control socket: %w", err)
	}
	_ = unix.SetNonblock(fds[0], true) // so that Close wakes a Read; never fails for a socket
	return os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "shim"), nil
}

// sendCommand sends a messageCommand. It must be the first message, which always finds room.
func sendCommand(control *os.File, c *Command, stdout, stderr *os.File) error {
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("keep the command in memory: %w", err)
	}
	memory := os.NewFile(uintptr(fd), "command")
	defer memory.Close()
	if _, err := memory.WriteAt(encodeCommand(c), 0); err != nil {
		return err
	}
	raw, err := control.SyscallConn()
	if err != nil {
		return err
	}
	rights := unix.UnixRights(int(stdout.Fd()), int(stderr.Fd()), fd)
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), []byte{messageCommand}, rights, nil, 0)
		return true
	})
	if err != nil || sendErr != nil {
		return errShim // only a shim that has gone takes no message
	}
	return nil
}

// receiveCommand receives a messageCommand, with the stdout and stderr of the command. The error of any other message,
// and of the end, is errMessage.
func receiveCommand(control *os.File) (c *Command, output []int, err error) {
	var kind [1]byte
	oob := make([]byte, unix.CmsgSpace(3*4))
	_, oobn, _, _, err := unix.Recvmsg(int(control.Fd()), kind[:], oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || kind[0] != messageCommand || len(messages) != 1 {
		return nil, nil, errMessage
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 3 {
		return nil, nil, errMessage
	}
	memory := os.NewFile(uintptr(fds[2]), "command")
	defer memory.Close()
	text, err := io.ReadAll(memory)
	if err != nil {
		return nil, nil, err
	}
	c, err = decodeCommand(text)
	return c, fds[:2], err
}

// errMessage is the error of a malformed message.
var errMessage = errors.New("malformed message")

// encodeCommand returns the command as strings that end at NUL bytes: the two directories, the number of arguments, the
// arguments and the environment. No string of a command that was checked has a NUL byte.
func encodeCommand(c *Command) []byte {
	head := []string{c.Dir, c.OrphanDir, strconv.Itoa(len(c.Argv))}
	return []byte(strings.Join(slices.Concat(head, c.Argv, LastOfEachKey(c.Env)), "\x00"))
}

// decodeCommand is the inverse of encodeCommand.
func decodeCommand(b []byte) (*Command, error) {
	fields := strings.Split(string(b), "\x00")
	if len(fields) < 4 {
		return nil, errMessage
	}
	list := fields[3:]
	n, err := strconv.Atoi(fields[2])
	if err != nil || n < 1 || n > len(list) {
		return nil, errMessage
	}
	return &Command{Dir: fields[0], OrphanDir: fields[1], Argv: list[:n], Env: list[n:]}, nil
}
