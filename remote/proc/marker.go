package proc

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// markerVar is the environment variable that marks the processes of a server, so that they are found when the server is
// dead. Its value is the server's identity. A process can remove it from its environment; only a namespace holds such a
// process.
const markerVar = "STEPMUX_SERVER"

// Marker returns the environment entry that marks the processes of this program, for [KillOrphans]. It returns nothing
// if /proc does not show this program: then another process could not find out whether it lives.
func Marker() []string {
	if self().pid == 0 {
		return nil
	}
	return []string{markerVar + "=" + self().String()}
}

// commandVar is the environment variable with the number of a command among those of one [Init].
const commandVar = "STEPMUX_COMMAND"

// lookup returns a variable of the environment that process pid was started with. It is empty if there is no such
// variable, or if we may not read it.
func lookup(pid int, name string) string {
	environ, err := readFile(pid, "environ")
	if err != nil {
		return ""
	}
	defer environ.release()
	for rest := environ.data; len(rest) > 0; {
		var entry []byte
		entry, rest, _ = bytes.Cut(rest, []byte{0})
		if len(entry) > len(name) && entry[len(name)] == '=' && string(entry[:len(name)]) == name {
			return string(entry[len(name)+1:])
		}
	}
	return ""
}

// identity names a process as long as its machine is up: no two processes have the same number and the same start time.
type identity struct {
	space string // the namespaces in which pid and start count
	pid   int
	start uint64 // in clock ticks since boot
}

// String is the inverse of parseIdentity.
func (i identity) String() string {
	return i.space + ":" + strconv.Itoa(i.pid) + ":" + strconv.FormatUint(i.start, 10)
}

func parseIdentity(text string) (identity, bool) {
	fields := strings.Split(text, ":")
	if len(fields) != 3 {
		return identity{}, false
	}
	start, err := strconv.ParseUint(fields[2], 10, 64)
	id := identity{space: fields[0], pid: atoi(fields[1]), start: start}
	return id, err == nil && id.space != "" && id.pid > 1
}

// self is the identity of this process. It is zero if /proc does not show it.
var self = sync.OnceValue(func() identity {
	pid := os.Getpid()
	if name, err := os.Readlink("/proc/self"); err != nil || name != strconv.Itoa(pid) {
		return identity{} // /proc is that of another namespace
	}
	us, err := ReadInfo(pid)
	var space, clock unix.Stat_t
	if err == nil {
		err = unix.Stat("/proc/self/ns/pid", &space)
	}
	if err != nil || pid == 1 {
		return identity{}
	}
	_ = unix.Stat("/proc/self/ns/time", &clock) // fails before Linux 5.6
	name := strconv.FormatUint(space.Ino, 10) + "." + strconv.FormatUint(clock.Ino, 10)
	return identity{space: name, pid: pid, start: us.start}
})

// dead reports whether the process has certainly ended.
func (i identity) dead() bool {
	if i.space != self().space {
		return false // unknown
	}
	if errors.Is(unix.Kill(i.pid, 0), unix.ESRCH) {
		return true
	}
	now, err := ReadInfo(i.pid)
	return err == nil && (now.start != i.start || now.Ended) // with an error it is unknown (hidepid)
}

// Info is the part of /proc about a process that every user can read.
type Info struct {
	PID, Parent int
	Name        string // its program, at most 15 bytes; a process can change it
	Stopped     bool   // by a signal
	Ended       bool   // but not reaped

	start uint64 // in clock ticks since boot
}

// ReadInfo returns the Info of process pid.
func ReadInfo(pid int) (Info, error) {
	file, err := readFile(pid, "stat")
	if err != nil {
		return Info{}, err
	}
	defer file.release()
	// pid (any name) state parent ...: see proc_pid_stat(5).
	stat := file.data
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return Info{}, errMessage
	}
	var fields [20][]byte
	n := 0
	for field := range bytes.FieldsSeq(stat[end+1:]) {
		fields[n] = field
		if n++; n == len(fields) {
			break
		}
	}
	if n < len(fields) {
		return Info{}, errMessage
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	state := fields[0][0]
	return Info{
		PID: pid, Parent: atoi(string(fields[1])), Name: string(stat[open+1 : end]), start: start,
		Stopped: state == 'T', Ended: state == 'Z' || state == 'X',
	}, err
}

// Gone reports whether the process has certainly ended since ReadInfo.
func (i Info) Gone() bool { return identity{self().space, i.PID, i.start}.dead() }

// List returns the processes of this machine.
func List() ([]Info, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []Info
	for _, name := range names {
		if pid := atoi(name); pid > 0 {
			if info, err := ReadInfo(pid); err == nil { // an error means that it has just ended
				all = append(all, info)
			}
		}
	}
	return all, nil
}

// Arguments returns the first 64 KiB of the command line of process pid, or nil if it has none or has ended.
func Arguments(pid int) []string {
	line, err := readFile(pid, "cmdline")
	if err != nil {
		return nil
	}
	defer line.release()
	if len(line.data) == 0 {
		return nil
	}
	text := string(line.data[:min(len(line.data), maxKept)]) // each NUL byte of a hostile process would take 16 bytes
	return strings.Split(strings.TrimSuffix(text, "\x00"), "\x00")
}
