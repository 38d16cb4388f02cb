package proc

import (
	"encoding/binary"
	"errors"
	"math"
	"syscall"
	"time"
)

// errMessage is the error of a malformed message.
var errMessage = errors.New("malformed message")

// order is the payload of a frameCommand.
type order struct {
	dir, orphanDir string
	argv, env      []string
}

// encodeCommand returns the payload of a frameCommand: the two directories, the arguments and the
// environment, each list after its length, each string after its length.
func encodeCommand(c *Command) []byte {
	env := c.environ()
	b := appendString(nil, c.Dir)
	b = appendString(b, c.OrphanDir)
	b = appendStrings(b, c.Argv)
	return appendStrings(b, env)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendStrings(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = appendString(b, s)
	}
	return b
}

// decodeCommand is the inverse of encodeCommand.
func decodeCommand(b []byte) (*order, error) {
	d := decoder{b: b}
	o := &order{dir: d.string(), orphanDir: d.string(), argv: d.strings(), env: d.strings()}
	if d.bad || len(d.b) > 0 || len(o.argv) == 0 {
		return nil, errMessage
	}
	return o, nil
}

// decoder takes values off the front of b. bad says that a value was missing.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

// length takes the length of a list whose elements take at least a byte each.
func (d *decoder) length() int {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) string() string {
	n := d.length()
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *decoder) strings() []string {
	list := make([]string, d.length())
	for i := range list {
		list[i] = d.string()
	}
	return list
}

// numbers takes exactly the given number of values off b.
func numbers(b []byte, n int) ([]uint64, error) {
	d := decoder{b: b}
	list := make([]uint64, n)
	for i := range list {
		list[i] = d.uint()
	}
	if d.bad || len(d.b) > 0 {
		return nil, errMessage
	}
	return list, nil
}

func encodeNumbers(list ...uint64) []byte {
	var b []byte
	for _, v := range list {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

// decodeStarted returns the pid of a frameStarted.
func decodeStarted(b []byte) (pid int, err error) {
	v, err := numbers(b, 1)
	if err != nil {
		return 0, err
	}
	if v[0] <= 1 || v[0] > math.MaxInt32 { // a signal to "-1" goes to every process
		return 0, errMessage
	}
	return int(v[0]), nil
}

// encodeExited returns the payload of a frameExited.
func encodeExited(status syscall.WaitStatus, usage *syscall.Rusage) []byte {
	return encodeNumbers(uint64(status), uint64(usage.Utime.Nano()), uint64(usage.Stime.Nano()),
		uint64(usage.Maxrss)<<10) // getrusage(2) counts in KiB
}

// decodeExited is the inverse of encodeExited.
func decodeExited(b []byte) (Exit, error) {
	v, err := numbers(b, 4)
	if err != nil {
		return Exit{}, err
	}
	status := syscall.WaitStatus(v[0])
	e := Exit{
		Code:       status.ExitStatus(),
		UserTime:   time.Duration(v[1]),
		SystemTime: time.Duration(v[2]),
		MaxRSS:     int64(v[3]),
	}
	if status.Signaled() {
		e.Signal = status.Signal()
		e.Code = 128 + int(e.Signal)
	}
	return e, nil
}
