package bench

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// describe prints the circumstances that the figures depend on, as lines of their own that benchstat understands.
func describe(w io.Writer) {
	load, _ := os.ReadFile("/proc/loadavg") // what cannot be read is left out
	one, _, _ := strings.Cut(string(load), " ")
	fmt.Fprintf(w, "load: %s at the start\n", one)
	fmt.Fprintf(w, "processors: %d\n", runtime.NumCPU())
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		fmt.Fprintf(w, "kernel: %s %s\n", unix.ByteSliceToString(name.Sysname[:]), unix.ByteSliceToString(name.Release[:]))
	}
	fmt.Fprintf(w, "benchtime: %s\n", flag.Lookup("test.benchtime").Value)
	fmt.Fprintf(w, "versions: %s\n", strings.Join(versions(), ", "))
	if out, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		fmt.Fprintf(w, "commit: %s\n", strings.TrimSpace(string(out)))
	}
}

// versions returns the versions of the compared programs and of the libraries.
func versions() []string {
	all := []string{runtime.Version()}
	if out, err := exec.Command("ssh", "-V").CombinedOutput(); err == nil {
		all = append(all, strings.TrimSpace(string(out)))
	}
	modules := []string{"golang.org/x/crypto", "google.golang.org/grpc"}
	if out, err := exec.Command("go", append([]string{"list", "-m"}, modules...)...).Output(); err == nil {
		all = append(all, strings.Split(strings.TrimSpace(string(out)), "\n")...)
	}
	return all
}

// disturbance is the share of the processors that other work took since a moment.
type disturbance struct {
	begin      time.Time
	busy, ours time.Duration
}

// watchDisturbance begins now.
func watchDisturbance() disturbance {
	return disturbance{time.Now(), busyCPU(), familyCPU()}
}

// share returns which part of all processors others have had, as far as it can be told.
func (d disturbance) share() float64 {
	others := busyCPU() - d.busy - (familyCPU() - d.ours)
	all := time.Since(d.begin).Seconds() * float64(runtime.NumCPU())
	return max(0, others.Seconds()/all)
}

// busyCPU returns the time that the machine's processors have been busy, or taken from it, so far (proc_stat(5)), 0 if
// that cannot be read.
func busyCPU() time.Duration {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	var user, nice, system, idle, iowait, irq, softirq, steal int64
	if _, err := fmt.Sscanf(string(stat), "cpu %d %d %d %d %d %d %d %d",
		&user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return 0
	}
	return time.Duration(user+nice+system+irq+softirq+steal) * tick
}

// familyCPU returns the processor time that this process, and those it has started and waited for, have used so far.
func familyCPU() time.Duration {
	var children unix.Rusage
	own, err := ownCPU()
	if err != nil || unix.Getrusage(unix.RUSAGE_CHILDREN, &children) != nil {
		return 0
	}
	return own + time.Duration(children.Utime.Nano()+children.Stime.Nano())
}
