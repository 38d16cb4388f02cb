package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pss returns the memory of a process in KiB, with its share of the pages that it has in common with others
// (/proc/PID/smaps_rollup, proc_pid_smaps(5)). For a process that has gone it returns 0.
func pss(pid int) (float64, error) { return smaps(pid, "Pss:") }

// smaps returns a line of the file as pss does.
func smaps(pid int, line string) (float64, error) {
	name := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	data, err := os.ReadFile(name)
	if err != nil {
		return 0, nil //nolint:nilerr // it has gone
	}
	if len(data) == 0 {
		return 0, nil // it is about to
	}
	for text := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(text, line); ok {
			return strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
		}
	}
	return 0, fmt.Errorf("%s has no line %s", name, line)
}

// memory returns the memory of processes together, in KiB.
func memory(of []process) (sum float64, err error) {
	for _, p := range of {
		one, err := pss(p.pid)
		if err != nil {
			return 0, err
		}
		sum += one
	}
	return sum, nil
}

// serving returns those of processes that are a step runner.
func serving(of []process) []process {
	var found []process
	for _, p := range of {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid)) // one that has gone is none
		if bytes.Contains(line, []byte("\x00steps\x00serve\x00")) {
			found = append(found, p)
		}
	}
	return found
}

// rss returns the resident memory of a process, in MB.
func rss(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0, fmt.Errorf("read /proc/%d/statm: %q", pid, data)
	}
	pages, err := strconv.Atoi(fields[1])
	return float64(pages*os.Getpagesize()) / mega, err
}

// usage is this process's use of memory and goroutines.
type usage struct {
	heap, stack float64 // bytes of the system's memory
	goroutines  float64
}

func readUsage() usage {
	runtime.GC()
	runtime.GC() // what was in a sync.Pool goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{
		heap: float64(m.HeapInuse), stack: float64(m.StackInuse),
		goroutines: float64(runtime.NumGoroutine()),
	}
}

// A heapWatch looks, again and again, at what the last collection of garbage found in use of this process's heap. The
// garbage itself says nothing: how much of it there is depends on when the collections come.
type heapWatch struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu   sync.Mutex // guards the following
	peak uint64     // since the last call of take
}

// watchHeap returns a heapWatch; the caller calls close.
func watchHeap() *heapWatch {
	w := &heapWatch{stop: make(chan struct{})}
	w.wg.Go(w.run)
	return w
}

func (w *heapWatch) run() {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		w.look()
		select {
		case <-ticker.C:
		case <-w.stop:
			return
		}
	}
}

func (w *heapWatch) look() {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.peak = max(w.peak, sample[0].Value.Uint64())
}

// take returns the most there was since the last call, in bytes.
func (w *heapWatch) take() float64 {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.peak = 0 }()
	return float64(w.peak)
}

func (w *heapWatch) close() {
	close(w.stop)
	w.wg.Wait()
}
