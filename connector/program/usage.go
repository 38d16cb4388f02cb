package program

import (
	"fmt"
	"math"
	"strings"
)

// Usage is the processor time and memory of a build's processes. It is zero before the end of the job, and if the VM
// did not report it.
type Usage struct {
	// CPU is the processor time, user and system, in seconds.
	CPU float64 `json:"cpu_seconds,omitempty"`
	// PeakMemory is the most memory that they used together, in bytes. It is known only with a memory limit.
	PeakMemory int64 `json:"peak_memory_bytes,omitempty"`
	// LargestProcess is the largest resident memory of one process that has ended, in bytes.
	LargestProcess int64 `json:"largest_process_bytes,omitempty"`
}

// Plus returns the usage of two builds together: the sum of the times, and the larger of each memory figure.
func (u Usage) Plus(v Usage) Usage {
	return Usage{u.CPU + v.CPU, max(u.PeakMemory, v.PeakMemory), max(u.LargestProcess, v.LargestProcess)}
}

// String returns the usage for people: "12.5 s of processor time, largest process 90 MiB".
func (u Usage) String() string {
	parts := []string{fmt.Sprintf("%.1f s of processor time", u.CPU)}
	if u.PeakMemory > 0 {
		parts = append(parts, "peak memory "+mib(u.PeakMemory))
	}
	if u.LargestProcess > 0 {
		parts = append(parts, "largest process "+mib(u.LargestProcess))
	}
	return strings.Join(parts, ", ")
}

func mib(n int64) string { return fmt.Sprintf("%.0f MiB", math.Ceil(float64(n)/(1<<20))) }
