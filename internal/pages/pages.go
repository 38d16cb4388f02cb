// Package pages unmaps the pages of a program that only its start has used, so that a program that waits has little
// memory mapped.
package pages

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// delay is for a start that is followed by work: the work finds the program's pages mapped.
const delay = time.Second

// timer calls unmap after the last UnmapAfterStart. It is nil before the first one.
var timer struct {
	sync.Mutex // guards the following
	*time.Timer
}

// UnmapAfterStart unmaps the pages of the program's file in a second, once. A program that stays calls it at the end of
// its start; a call within that second begins the second again. It returns at once. The goroutine that it causes ends
// with the unmapping, and waits for nothing.
//
// The kernel maps 16 pages around each page that is touched, so a start leaves nearly all of the program mapped. The
// pages stay in the page cache, but the kernel frees a program's pages late while they are mapped, and early otherwise.
// A page that is touched again is mapped again, without a read of the disk.
func UnmapAfterStart() {
	timer.Lock()
	defer timer.Unlock()
	if timer.Timer == nil {
		timer.Timer = time.AfterFunc(delay, unmap)
		return
	}
	timer.Reset(delay)
}

// unmap unmaps the pages of files in memory that this process cannot write and has never written: a dynamic linker
// changes some before it protects them. If /proc is not there, they stay mapped.
func unmap() {
	maps, _ := os.ReadFile("/proc/self/smaps") // see proc_pid_smaps(5)
	var begin, size uint64                     // of the mapping whose lines follow; no size: it stays
	for line := range strings.Lines(string(maps)) {
		switch fields := strings.Fields(line); {
		case len(fields) < 2:
		case len(fields) > 5: // 00400000-0084e000 r-xp 00000000 fe:00 9978111   /home/ci/.cache/stepmux/stepmux-vm
			first, last, _ := strings.Cut(fields[0], "-")
			begin, _ = strconv.ParseUint(first, 16, 64)
			end, err := strconv.ParseUint(last, 16, 64)
			size = end - begin
			if err != nil || !strings.HasPrefix(fields[1], "r-") || !strings.HasPrefix(fields[5], "/") {
				size = 0
			}
		case fields[0] == "Anonymous:" && fields[1] == "0" && size > 0:
			_, _, _ = syscall.RawSyscall(syscall.SYS_MADVISE, uintptr(begin), uintptr(size), syscall.MADV_DONTNEED)
		}
	}
}
