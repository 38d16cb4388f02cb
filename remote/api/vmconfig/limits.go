package vmconfig

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Limits bound the processes of a build, all of them together. A zero field is no limit. Package remote/cgroup enforces
// them.
type Limits struct {
	Memory int64   // bytes
	PIDs   int64   // processes and threads
	CPUs   float64 // processors; 0.5 is half of one
}

// The smallest limits. The init of the build needs some memory and threads for itself, and the kernel accepts no
// smaller share of a processor.
const (
	minMemory = 32 << 20
	minPIDs   = 16
	minCPUs   = 0.01
	maxCPUs   = 1 << 16
)

// The flags of Limits.
const (
	MemoryFlag = "build-memory"
	PIDsFlag   = "build-pids"
	CPUsFlag   = "build-cpus"
)

// Flags returns the flags that set l, in a fixed order.
func (l *Limits) Flags() []Flag {
	const missing = "the step runner knows no limits of a build (--" + MemoryFlag + ", --" + PIDsFlag +
		", --" + CPUsFlag + ")"
	return []Flag{
		{
			Name: MemoryFlag, Usage: "limit of each build's memory, a `SIZE` such as 512M or 2G, without swap; without an " +
				"image, limits need a delegated cgroup of version 2 on the VM, otherwise the build is refused (see doctor)",
			InPods: true, missing: missing, get: func() string { return number(l.Memory) }, set: l.setMemory,
		},
		{
			Name: PIDsFlag, Usage: "limit of each build's processes and threads, `N`; not in a pod",
			missing: missing, get: func() string { return number(l.PIDs) }, set: l.setPIDs,
		},
		{
			Name: CPUsFlag, Usage: "limit of each build's processors, `N` such as 2 or 0.5",
			InPods: true, missing: missing, get: func() string { return number(l.CPUs) }, set: l.setCPUs,
		},
	}
}

// number returns a limit as text, or "" for 0, which is no limit.
func number[T int64 | float64](n T) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func (l *Limits) setMemory(text string) (err error) {
	l.Memory, err = parseSize(text)
	return err
}

func (l *Limits) setPIDs(text string) (err error) {
	if l.PIDs, err = strconv.ParseInt(text, 10, 32); err != nil || l.PIDs < minPIDs {
		return fmt.Errorf("%.40q: use a whole number from %d", text, minPIDs)
	}
	return nil
}

func (l *Limits) setCPUs(text string) (err error) {
	if l.CPUs, err = strconv.ParseFloat(text, 64); err != nil || !(l.CPUs >= minCPUs && l.CPUs <= maxCPUs) {
		return fmt.Errorf("%.40q: use a number of processors from %v, such as 2 or 0.5", text, minCPUs)
	}
	return nil
}

// parseSize parses a number of bytes as people write it, also with K, M, G or T in large or small letters (powers of
// 1024).
func parseSize(text string) (int64, error) {
	number, unit := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(text), "B"), "I"), 1.0
	if n := len(number); n > 0 {
		if i := strings.IndexByte("KMGT", number[n-1]); i >= 0 {
			number, unit = number[:n-1], float64(int64(1)<<(10*(i+1)))
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	n *= unit
	if err != nil || strings.Trim(number, "0123456789.") != "" || n < minMemory || n >= math.MaxInt64 {
		return 0, fmt.Errorf("%.40q: use a size from %s, such as 512M or 2G", text, FormatSize(minMemory))
	}
	return int64(n), nil
}

// FormatSize returns a number of bytes for people: "512 MiB".
func FormatSize(n int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(n), 0
	for value >= 1<<10 && unit < len(units)-1 {
		value, unit = value/(1<<10), unit+1
	}
	return strconv.FormatFloat(math.Round(value*10)/10, 'f', -1, 64) + " " + units[unit]
}
