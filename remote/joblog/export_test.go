package joblog

import (
	"os"
	"testing"
)

// BreakFile makes every further write fail, as a full disk does: the file is /dev/full from now on.
func (l *Log) BreakFile(t testing.TB) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Cleanup(func() { full.Close() })
	l.file = full
}
