package state

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// serverLog passes the messages of the embedded server on. The server tells of a failure by them alone.
type serverLog struct {
	to *slog.Logger

	mu       sync.Mutex // guards the following
	died     error
	latest   string          // error
	opened   bool            // the start has ended
	repaired map[string]bool // the streams whose indexes were rebuilt at the start
}

// repairs begin the warnings of the server about an index of a stream that is missing, outdated or damaged, as after
// each kill. The server then rebuilds it from the messages, which have checksums of their own.
var repairs = []string{
	"Stream state ", "Could not read stream state file", "Recovering stream state from index errored",
	"TTL state is outdated", "Recovering TTL state from index errored", "Error decoding TTL state",
}

// repair notes a warning about an index at the start, and reports whether it is one.
func (l *serverLog) repair(format string) bool {
	in, text, found := strings.Cut(strings.TrimPrefix(format, "Filestore ["), "] ")
	if !found || !slices.ContainsFunc(repairs, func(begin string) bool { return strings.HasPrefix(text, begin) }) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opened {
		return false
	}
	if l.repaired == nil {
		l.repaired = map[string]bool{}
	}
	l.repaired[strings.ToLower(strings.TrimPrefix(strings.TrimPrefix(in, "KV_"), "STEPMUX_"))] = true
	return true
}

// open ends the start, and logs the streams that were repaired in it.
func (l *serverLog) open() {
	l.mu.Lock()
	l.opened = true
	names := slices.Sorted(maps.Keys(l.repaired))
	l.mu.Unlock()
	if len(names) > 0 {
		l.to.Warn("the manager before was killed, or its machine has crashed: the store has rebuilt its "+
			"indexes from the messages", "of", strings.Join(names, ", "))
	}
}

// Noticef implements server.Logger, and so do the following.
func (l *serverLog) Noticef(format string, v ...any) {
	l.to.Debug("store: " + fmt.Sprintf(format, v...))
}

// Warnf logs a warning.
func (l *serverLog) Warnf(format string, v ...any) {
	if l.repair(format) {
		l.Noticef(format, v...)
		return
	}
	l.to.Warn("store: " + fmt.Sprintf(format, v...))
}

// Errorf logs an error. After one of a write a stream takes nothing any more, also when the disk has room again.
func (l *serverLog) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.to.Error("store: " + text)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest = text
	if strings.Contains(strings.ToLower(text), "critical write error") {
		l.died = errors.New("the state cannot be written any more: " + text)
	}
}

// Fatalf keeps an error after which the server is of no use.
func (l *serverLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.died = fmt.Errorf("start the store: "+format, v...)
}

// Debugf is not called.
func (l *serverLog) Debugf(string, ...any) {}

// Tracef is not called.
func (l *serverLog) Tracef(string, ...any) {}

func (l *serverLog) fatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.died
}

func (l *serverLog) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latest
}
