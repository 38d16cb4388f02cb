package manager

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// serverLog passes the messages of the embedded server on. The server tells of a failure by them alone.
type serverLog struct {
	to *slog.Logger

	mu     sync.Mutex // guards the following
	died   error
	latest string // error
}

// Noticef implements server.Logger, and so do the following.
func (l *serverLog) Noticef(format string, v ...any) {
	l.to.Debug("store: " + fmt.Sprintf(format, v...))
}

// Warnf logs a warning.
func (l *serverLog) Warnf(format string, v ...any) {
	if strings.Contains(format, "TTL state is outdated") { // after each kill; the server reads the times anew
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
