// Package healthcheck examines a VM that is reached. [Command] measures, [Parse] reads its output, and [Limits.Check]
// judges.
package healthcheck

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
)

// MaxOutput bounds the output of Command, in bytes.
const MaxOutput = 4 << 10

// Limits are the needs of builds. Zero is no limit.
type Limits struct {
	// FreeSpace is the free space in bytes that a user other than root has, in the directory for temporary files and in
	// the home of the login. FreeInodes are the files that can be made there.
	FreeSpace, FreeInodes int64
	// FreeMemory is the memory in bytes that processes can have without swapping: MemAvailable of /proc/meminfo.
	FreeMemory int64
	// Load is the most load for each processor: the average of five minutes in /proc/loadavg.
	Load float64
	// ClockSkew is the most that the clocks of the VM and of this machine may differ.
	ClockSkew time.Duration
}

// Default are the limits below which hardly any build can begin.
var Default = Limits{FreeSpace: 16 << 20, FreeInodes: 256}

// Reading has the measurements; nil is one that the VM could not make.
type Reading struct {
	At time.Time `json:"at"`
	// FreeSpace and FreeInodes are those of the directory that has the least.
	FreeSpace  *int64   `json:"free_space_bytes,omitempty"`
	FreeInodes *int64   `json:"free_inodes,omitempty"`
	FreeMemory *int64   `json:"free_memory_bytes,omitempty"`
	Load       *float64 `json:"load,omitempty"`       // for each processor
	ClockSkew  *float64 `json:"clock_skew,omitempty"` // in seconds: how far the VM's clock is ahead
}

// script prints a line for each measurement. A measurement that the VM cannot make has no line.
const script = `exec 2>/dev/null
echo stepmux-health
echo "clock $(date +%s)"
for dir in "$1" "$HOME"; do stat -f -c "disk %a %S %d %c" -- "$dir"; done
read -r _ five _ </proc/loadavg && echo "load $five $(grep -c ^processor /proc/cpuinfo)"
while read -r key kib _; do [ "$key" = MemAvailable: ] && echo "memory $kib"; done </proc/meminfo
true`

// Command returns the command that measures. dir is the directory for temporary files.
func Command(dir string) []string {
	return []string{"sh", "-c", script, "sh", dir}
}

// Parse reads the output of Command, which ran between two times of this machine's clock.
func Parse(output string, began, ended time.Time) (Reading, error) {
	_, lines, found := strings.Cut("\n"+output, "\nstepmux-health\n")
	if !found || len(output) > MaxOutput {
		return Reading{}, errors.New("the VM does not run the commands of a health check")
	}
	r := Reading{At: ended}
	for line := range strings.Lines(lines) {
		name, values, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, ok := numbers(values); ok {
			r.note(name, n, began, ended)
		}
	}
	return r, nil
}

// numbers reads numbers that are not negative.
func numbers(text string) (all []float64, ok bool) {
	for word := range strings.FieldsSeq(text) {
		n, err := strconv.ParseFloat(word, 64)
		if err != nil || !(n >= 0 && n <= 1<<62) {
			return nil, false
		}
		all = append(all, n)
	}
	return all, true
}

func (r *Reading) note(name string, n []float64, began, ended time.Time) {
	switch {
	case name == "clock" && len(n) == 1:
		// The VM read its clock, in whole seconds, between the two times.
		ahead, behind := n[0]-seconds(ended), seconds(began)-(n[0]+1)
		skew := max(ahead, 0)
		if behind > 0 {
			skew = -behind
		}
		r.ClockSkew = &skew
	case name == "disk" && len(n) == 4:
		r.FreeSpace = least(r.FreeSpace, n[0]*n[1])
		if n[3] > 0 { // else the file system makes inodes as it needs them
			r.FreeInodes = least(r.FreeInodes, n[2])
		}
	case name == "load" && len(n) == 2 && n[1] > 0:
		load := n[0] / n[1]
		r.Load = &load
	case name == "memory" && len(n) == 1:
		r.FreeMemory = least(nil, n[0]*1024)
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func least(before *int64, value float64) *int64 {
	n := int64(min(value, 1<<62))
	if before != nil {
		n = min(n, *before)
	}
	return &n
}

// Check returns an error that names the first limit that a reading does not keep. What was not measured is not judged.
func (l Limits) Check(r Reading) error {
	size := func(n int64) string { return units.BytesSize(float64(n)) }
	switch {
	case r.FreeSpace != nil && *r.FreeSpace < l.FreeSpace:
		return fmt.Errorf("its free space is %s, and the limit free_space is %s", size(*r.FreeSpace), size(l.FreeSpace))
	case r.FreeInodes != nil && *r.FreeInodes < l.FreeInodes:
		return fmt.Errorf("%d more files can be made, and the limit free_inodes is %d", *r.FreeInodes, l.FreeInodes)
	case r.FreeMemory != nil && *r.FreeMemory < l.FreeMemory:
		return fmt.Errorf("its free memory is %s, and the limit free_memory is %s", size(*r.FreeMemory), size(l.FreeMemory))
	case r.Load != nil && l.Load > 0 && *r.Load > l.Load:
		return fmt.Errorf("its load is %.2f for each processor, and the limit load is %v", *r.Load, l.Load)
	case r.ClockSkew != nil && l.ClockSkew > 0 && math.Abs(*r.ClockSkew) > l.ClockSkew.Seconds():
		off := time.Duration(math.Abs(*r.ClockSkew) * float64(time.Second)).Round(time.Second)
		return fmt.Errorf("its clock is %v off, and the limit clock_skew is %v", off, l.ClockSkew)
	}
	return nil
}
