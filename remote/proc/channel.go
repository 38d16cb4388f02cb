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

	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
)

// message is a message to the init: one packet. The first one is messageRoom. If the channel ends without a
// messageClose for the init, the init takes the server for dead.
type message struct {
	kind byte
	id   uint32 // of the command; 0 for the init itself
}

const (
	messageRoom    = 'W' // has a file in memory with the text of encodeRoom
	messageCommand = 'C' // has a file in memory with the text of encodeCommand, and the command's stdin, stdout and stderr
	messageShow    = 'V' // has a file in memory with the path of a directory, which must be visible from now on
	messageInt     = 'I' // SIGINT to the command's process group
	messageTerm    = 'T' // SIGTERM to the command's process group
	messageKill    = 'K' // SIGKILL to the command and all its descendants
	messageGroup   = 'G' // asks whether the command's process group is empty
	messageClose   = 'Q' // SIGKILL to all descendants of the command or of the init, and the end of either
)

// messageSize is the length of a message.
const messageSize = 5

// report is a message from the init. Of a command it sends started, exited, group and closed, or only failed. To
// messageShow it answers shown or failed. Of the init itself, whose number is 0, it sends ready or failed, and closed.
type report struct {
	Kind byte
	ID   uint32

	PID    int32  // of reportStarted, in the init's namespace
	At     stage  // of reportFailed
	Errno  uint32 // of reportFailed
	Status uint32 // of reportExited
	// UserTime and SysTime, in nanoseconds, and MaxRSS, in bytes, are those of the command in reportExited, and those
	// of all processes that the init has reaped in reportClosed.
	UserTime int64
	SysTime  int64
	MaxRSS   int64
	Left     uint32 // of reportClosed: how many processes could not be killed; of reportGroup: 1 if there is a member
	text     string // of reportFailed: the error's text; may be empty
}

const (
	reportReady   = 'R'
	reportStarted = 'S'
	reportFailed  = 'F'
	reportShown   = 'V'
	reportExited  = 'X'
	reportGroup   = 'G'
	reportClosed  = 'L'
)

const (
	// maxReport is the length of the longest report, in bytes.
	maxReport = 1 << 10
	// reportNumbers is how many numbers a report has. Each takes 8 bytes, after the two bytes of Kind and At.
	reportNumbers = 8
	reportHead    = 2 + 8*reportNumbers
	// maxReportText is the length of the longest text in a report.
	maxReportText = maxReport - reportHead
)

// send sends r in one packet. It ignores errors: if the server is gone, the report is not needed.
func (r report) send(control io.Writer) {
	b := append(make([]byte, 0, maxReport), r.Kind, byte(r.At))
	// Not binary.Write: the VM's end would be larger by 30 KB.
	for _, n := range [reportNumbers]uint64{
		uint64(r.ID), uint64(r.PID), uint64(r.Errno), uint64(r.Status), uint64(r.UserTime), uint64(r.SysTime),
		uint64(r.MaxRSS), uint64(r.Left),
	} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	_, _ = control.Write(append(b, r.text[:min(len(r.text), maxReportText)]...))
}

// parseReport is the inverse of send.
func parseReport(packet []byte) (r report, err error) {
	if len(packet) < reportHead {
		return r, errMessage
	}
	var n [reportNumbers]uint64
	for i := range n {
		n[i] = binary.LittleEndian.Uint64(packet[2+8*i:])
	}
	return report{
		Kind: packet[0], At: stage(packet[1]), ID: uint32(n[0]), PID: int32(n[1]), Errno: uint32(n[2]), Status: uint32(n[3]),
		UserTime: int64(n[4]), SysTime: int64(n[5]), MaxRSS: int64(n[6]), Left: uint32(n[7]),
		text: string(packet[reportHead:]),
	}, nil
}

// exited returns the report of the end of command id.
func exited(id uint32, status syscall.WaitStatus, usage *syscall.Rusage) report {
	return report{
		Kind: reportExited, ID: id, Status: uint32(status), UserTime: usage.Utime.Nano(), SysTime: usage.Stime.Nano(),
		MaxRSS: usage.Maxrss << 10, // getrusage(2) counts in KiB
	}
}

// closedReport reports that command id has ended with all its descendants, except for left processes that could not be
// killed.
func closedReport(id uint32, left int) report {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage) // never fails
	r := exited(id, 0, &usage)
	r.Kind, r.Left = reportClosed, uint32(left)
	return r
}

// usage returns the usage of all processes, from a report of closedReport.
func (r report) usage() Usage {
	return Usage{CPU: time.Duration(r.UserTime + r.SysTime), LargestProcess: r.MaxRSS}
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

// channelPair returns the server's end of a channel and the init's. Child processes inherit neither by default.
func channelPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make its control socket: %w", err)
	}
	_ = unix.SetNonblock(fds[0], true) // so that Close wakes a Read; never fails for a socket
	return os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "init"), nil
}

// sendFiles sends a message with files. If text is not nil, a file in memory with the text comes before them. It does
// not block: the socket's buffer has room for the messages of some hundred commands.
func sendFiles(control *os.File, m message, text []byte, files ...*os.File) error {
	var fds []int
	if text != nil {
		fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
		if err != nil {
			return fmt.Errorf("keep the command in memory: %w", err)
		}
		memory := os.NewFile(uintptr(fd), "command")
		defer memory.Close()
		if _, err := memory.WriteAt(text, 0); err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	for _, file := range files {
		raw, err := file.SyscallConn() // not Fd, which may change the mode
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
		if err != nil {
			return err
		}
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	raw, err := control.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		packet := binary.LittleEndian.AppendUint32([]byte{m.kind}, m.id)
		sendErr = unix.Sendmsg(int(fd), packet, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
	if err = errors.Join(err, sendErr); err != nil {
		// The socket is closed or full, or the user has too many files in sockets. Auto must not take that for a refusal.
		return fmt.Errorf("%w: %s", errUnreachable, err.Error())
	}
	return nil
}

// channel is the init's end of a channel, by its descriptor. An os.File of it would take memory and a goroutine, and
// each build has an init.
type channel int

// Write sends a packet.
func (c channel) Write(packet []byte) (int, error) {
	return retry(func() (int, error) { return unix.Write(int(c), packet) })
}

// received is a message with its text and files.
type received struct {
	message
	text  []byte
	files []int // of messageCommand: stdin, stdout, stderr
}

// receive receives a message. At the channel's end the error is io.EOF.
func receive(control int) (r received, err error) {
	var packet [messageSize]byte
	n, fds, err := receivePacket(control, packet[:], 4)
	if err == nil && n != messageSize {
		err = errMessage
	}
	if err != nil {
		return r, err
	}
	r.message = message{packet[0], binary.LittleEndian.Uint32(packet[1:])}
	if len(fds) == 0 {
		return r, nil
	}
	r.files = fds[1:]
	r.text, err = readMemory(fds[0])
	_ = unix.Close(fds[0])
	return r, err
}

// readMemory returns the text of a file in memory, at most 2*maxCommand bytes.
func readMemory(fd int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	text := make([]byte, min(st.Size, 2*maxCommand))
	n, err := retry(func() (int, error) { return unix.Pread(fd, text, 0) })
	return text[:max(n, 0)], err
}

// receivePacket receives a packet with at most most files. At the channel's end the error is io.EOF.
func receivePacket(control int, packet []byte, most int) (n int, fds []int, err error) {
	oob, oobn := make([]byte, unix.CmsgSpace(4*most)), 0
	n, err = retry(func() (n int, err error) {
		// Not unix.Recvmsg, which decodes the addresses of all networks: the VM's end would be larger by 25 KB.
		n, oobn, _, _, err = syscall.Recvmsg(control, packet, oob, unix.MSG_CMSG_CLOEXEC)
		return n, err
	})
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil || oobn == 0 {
		return n, nil, err
	}
	parts, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(parts) != 1 {
		return n, nil, errMessage
	}
	if fds, err = unix.ParseUnixRights(&parts[0]); err != nil || len(fds) == 0 || len(fds) > most {
		return n, nil, errMessage
	}
	return n, fds, nil
}

// errMessage is the error of a malformed message.
var errMessage = errors.New("malformed message")

// encodeCommand returns the command as strings that end with NUL bytes: the two directories, the number of arguments,
// the arguments and the environment. Command.check has made sure that no string has a NUL byte.
func encodeCommand(c *Command) []byte {
	head := []string{c.Dir, c.Visible, strconv.Itoa(len(c.Argv))}
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
	return &Command{Dir: fields[0], Visible: fields[1], Argv: list[:n], Env: list[n:]}, nil
}

// encodeRoom returns a room and the orphan directory in the form of encodeCommand.
func encodeRoom(room isolate.Spec, orphan string) []byte {
	head := []string{string(room.Level), room.Dir, room.Base, room.Home, room.Shell, orphan}
	return []byte(strings.Join(append(head, room.ReadOnly...), "\x00"))
}

// decodeRoom is the inverse of encodeRoom.
func decodeRoom(b []byte) (room isolate.Spec, orphan string, err error) {
	f := strings.Split(string(b), "\x00")
	if len(f) < 6 {
		return room, "", errMessage
	}
	room = isolate.Spec{Level: vmconfig.Level(f[0]), Dir: f[1], Base: f[2], Home: f[3], Shell: f[4], ReadOnly: f[6:]}
	return room, f[5], nil
}
