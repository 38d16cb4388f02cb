// Package limits has the limits of a build for both ends: the type [Build], its flags, and their form as text. Package
// remote/cgroup enforces them.
package limits

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Build has the limits of the processes of a build, for all of them together. A zero field is no limit.
type Build struct {
	Memory int64   // bytes
	PIDs   int64   // processes and threads
	CPUs   float64 // processors; 0.5 is half of one
}

// The flags of serve, script and isolation for a Build, without the dashes.
const (
	MemoryFlag = "build-memory"
	PIDsFlag   = "build-pids"
	CPUsFlag   = "build-cpus"
)

// The smallest limits. The init of the build needs some memory and threads for itself, and the kernel accepts no
// smaller share of a processor.
const (
	minMemory = 32 << 20
	minPIDs   = 16
	minCPUs   = 0.01
	maxCPUs   = 1 << 16
)

// Set sets the limit of a flag. text has the form in which people write it: a number of bytes, also with K, M, G or T
// in large or small letters (powers of 1024), a number of processes, or a number of processors.
func (l *Build) Set(flag, text string) (err error) {
	switch flag {
	case MemoryFlag:
		l.Memory, err = parseSize(text)
	case PIDsFlag:
		if l.PIDs, err = strconv.ParseInt(text, 10, 32); err != nil || l.PIDs < minPIDs {
			return fmt.Errorf("%.40q: use a whole number from %d", text, minPIDs)
		}
	case CPUsFlag:
		if l.CPUs, err = strconv.ParseFloat(text, 64); err != nil || !(l.CPUs >= minCPUs && l.CPUs <= maxCPUs) {
			return fmt.Errorf("%.40q: use a number of processors from %v, such as 2 or 0.5", text, minCPUs)
		}
	default:
		panic("limits: no limit " + flag)
	}
	return err
}

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

// Args returns the flags for l.
func (l Build) Args() (argv []string) {
	for _, f := range []struct{ name, value string }{
		{MemoryFlag, strconv.FormatInt(l.Memory, 10)},
		{PIDsFlag, strconv.FormatInt(l.PIDs, 10)},
		{CPUsFlag, strconv.FormatFloat(l.CPUs, 'g', -1, 64)},
	} {
		if f.value != "0" {
			argv = append(argv, "--"+f.name, f.value)
		}
	}
	return argv
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
