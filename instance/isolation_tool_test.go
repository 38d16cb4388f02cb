package instance_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// toolVerbs are parts of attacks that no common program has. A tool is this test binary, called with a verb. It prints
// LOOT if it succeeds.
var toolVerbs = map[string]func(arg string) error{
	"ptrace":     withPID(attachTo),
	"vm-read":    withPID(readMemory),
	"pidfd":      withPID(takeDescriptor),
	"dial":       dialUnix,
	"queue-hold": holdQueue,
	"queue-open": openQueue,
	"key-add":    addKey,
	"key-find":   findKey,
	"daemon":     daemonize,
	"inotify":    awaitFile,
	"fill":       fillProcesses,
	"exchange":   exchange,
	"zip":        zipStep,
}

const loot = "LOOT"

// tool runs a verb and returns the exit code.
func tool(args []string) int {
	run := toolVerbs[args[0]]
	if err := run(args[1]); err != nil {
		fmt.Fprintln(os.Stdout, args[0], err)
		return 1
	}
	return 0
}

func withPID(verb func(int) error) func(string) error {
	return func(arg string) error {
		pid, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		if err := verb(pid); err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, loot)
		return nil
	}
}

// exchange exchanges a file and the one of the same name with .other, again and again.
func exchange(name string) error {
	for {
		if err := unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, name+".other", unix.RENAME_EXCHANGE); err != nil {
			return err
		}
	}
}

// zipStep writes a file as the only step of an archive.
func zipStep(archive string) error {
	text, err := os.ReadFile("step/step.yml")
	if err != nil {
		return err
	}
	var data bytes.Buffer
	w := zip.NewWriter(&data)
	entry, err := w.Create("step.yml")
	if err == nil {
		_, err = entry.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return err
	}
	return os.WriteFile(archive, data.Bytes(), 0o600)
}

func attachTo(pid int) error { return unix.PtraceSeize(pid) }

// readMemory reads the beginning of the first mapping of a process.
func readMemory(pid int) error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	var at uintptr
	if _, err := fmt.Sscanf(string(maps), "%x-", &at); err != nil {
		return err
	}
	one := make([]byte, 1)
	_, err = unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &one[0], Len: 1}}, []unix.RemoteIovec{{Base: at, Len: 1}}, 0)
	return err
}

// takeDescriptor copies the descriptor 3 of a process.
func takeDescriptor(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	_, err = unix.PidfdGetfd(fd, 3, 0)
	return err
}

func dialUnix(path string) error {
	nc, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, loot)
	return nc.Close()
}

// toolName is the name by which this test binary is a tool.
const toolName = "attack-tool"

// openMQ calls mq_open(2).
func openMQ(name string, flags int) error {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), uintptr(flags), 0o600, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// holdQueue makes a message queue, and removes it when it is told to end.
func holdQueue(name string) error {
	err := openMQ(name, unix.O_CREAT|unix.O_RDWR)
	if errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGTERM)
	<-ended
	p, _ := unix.BytePtrFromString(name)
	_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(p)), 0, 0)
	return nil
}

func openQueue(name string) error {
	if err := openMQ(name, unix.O_RDWR); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, loot)
	return nil
}

// addKey puts a key into the keyring of the user for a minute.
func addKey(name string) error {
	id, err := unix.AddKey("user", name, []byte("secret"), unix.KEY_SPEC_USER_KEYRING)
	if err == nil {
		_, err = unix.KeyctlInt(unix.KEYCTL_SET_TIMEOUT, id, 60, 0, 0)
	}
	return err
}

func findKey(name string) error {
	for _, ring := range []int{unix.KEY_SPEC_SESSION_KEYRING, unix.KEY_SPEC_USER_KEYRING} {
		if _, err := unix.KeyctlSearch(ring, "user", name, 0); err == nil {
			fmt.Fprintln(os.Stdout, loot)
		}
	}
	return nil
}

// daemonize leaves a process that has a session, a parent and an environment of its own, and a name to know it by.
func daemonize(name string) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	const script = "trap '' TERM HUP INT; (while :; do sleep 7; done) & wait"
	sleep, err := os.StartProcess("/bin/sh", []string{"sh", "-c", script, name},
		&os.ProcAttr{Dir: "/", Env: []string{}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return err
	}
	return sleep.Release()
}

// awaitFile waits until a file is made in the directory.
func awaitFile(dir string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "watching")
	_, err = unix.Read(fd, make([]byte, 4096))
	return err
}

// fillProcesses starts processes until there can be no more, at most n, and waits for its end.
func fillProcesses(n string) error {
	most, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	for range most {
		_, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{})
		if errors.Is(err, unix.EAGAIN) {
			fmt.Fprintln(os.Stdout, "full")
			return unix.Pause() // not select {}: without cgo that is a deadlock, which ends the program
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("%d processes could be started", most)
}
