package manager

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/peer"

	"github.com/stepmux/stepmux/instance/control"
)

// holder is a process with whose end a lease ends. Its start tells it from a later process with the same number.
type holder struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // in clock ticks after boot, as /proc says
}

// parentOf returns the parent of the process with which ctx's call came by a unix socket.
func parentOf(ctx context.Context) (*holder, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return nil, fmt.Errorf("the caller is not known")
	}
	info, ok := from.AuthInfo.(control.Peer)
	if !ok || info.PID <= 0 {
		return nil, fmt.Errorf("the caller did not come by a unix socket, or from another namespace of processes")
	}
	parent, _, err := statOf(info.PID)
	if err != nil {
		return nil, err
	}
	_, start, err := statOf(parent)
	if err != nil {
		return nil, err
	}
	return &holder{parent, start}, nil
}

// statOf reads a process's parent and start from /proc/PID/stat (proc_pid_stat(5)). Its second field may hold any
// character.
func statOf(pid int) (parent int, start string, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return 0, "", fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	if _, err := fmt.Sscan(fields[1], &parent); err != nil {
		return 0, "", err
	}
	return parent, fields[19], nil
}

// watch returns a channel that is closed when the process has ended. The caller calls stop, after which the channel may
// stay open.
func (h *holder) watch() (gone <-chan struct{}, stop func()) {
	ended := make(chan struct{})
	fd, err := unix.PidfdOpen(h.PID, unix.PIDFD_NONBLOCK)
	if err == nil {
		if _, start, statErr := statOf(h.PID); statErr != nil || start != h.Start {
			_ = unix.Close(fd) // of another process
			err = unix.ESRCH
		}
	}
	if err != nil {
		if _, start, statErr := statOf(h.PID); statErr == nil && start == h.Start {
			return nil, func() {} // a kernel without pidfds: the limit counts alone
		}
		close(ended)
		return ended, func() {}
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	var waiting sync.WaitGroup
	waiting.Go(func() {
		raw, err := file.SyscallConn()
		if err != nil {
			return
		}
		over := false
		_ = raw.Read(func(fd uintptr) bool { // it waits until the descriptor can be read, or stop
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} // a descriptor
			n, err := unix.Poll(fds, 0)
			over = err == nil && n > 0
			return over
		})
		if over {
			close(ended)
		}
	})
	return ended, func() {
		_ = file.SetReadDeadline(time.Unix(1, 0)) // wakes it
		waiting.Wait()
		_ = file.Close()
	}
}
