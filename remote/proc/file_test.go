package proc

import (
	"encoding/binary"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Symptom: a job said that its environment was as large as its memory (PR_SET_MM_MAP, prctl(2)). The sweep of a relay
// or of another build's serve read all of that, until the machine had no memory left.
func TestAProcessCannotHaveAnEndlessEnvironment(t *testing.T) {
	const size = 64 << 20
	region, err := unix.Mmap(-1, 0, size, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	start := uint64(uintptr(unsafe.Pointer(&region[0])))
	set := func(begin, end uint64) error {
		// code, data, brk, stack, arguments, environment, and no auxiliary vector: see prctl(2).
		fields := []uint64{start, start + 1, start, start + 1, start, start, start, start, start + 1, begin, end, 0}
		raw := binary.LittleEndian.AppendUint32(nil, 0)
		raw = binary.LittleEndian.AppendUint32(raw, ^uint32(0))
		fields = append(fields, binary.LittleEndian.Uint64(raw))
		_, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_MM, unix.PR_SET_MM_MAP,
			uintptr(unsafe.Pointer(&fields[0])), uintptr(8*len(fields)), 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
	if err := set(start, start+size); err != nil {
		t.Skip("part missing: PR_SET_MM_MAP: ", err)
	}
	defer func() { require.NoError(t, set(start, start)) }()
	file, err := readFile(os.Getpid(), "environ")
	require.NoError(t, err)
	defer file.release()
	require.Less(t, len(file.data), 2*maxRead)
}
