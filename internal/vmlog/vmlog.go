// Package vmlog bounds the part of a manager's log that a VM can cause: the length of a text, and how often a message
// comes. [Limiter.Logger] wraps a logger.
package vmlog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// MaxText bounds each text and each error of a record.
	MaxText = 2 << 10
	// burst is how many records of one message may come at once. refill is the time after which one more may come.
	burst, refill = 20, 10 * time.Second
)

// Limiter bounds the records about one VM, separately for each message, so that a flood of one does not hide another.
// The zero value is ready. It is safe for concurrent use.
type Limiter struct {
	mu       sync.Mutex          // guards the following
	accounts map[string]*account // by message; messages are constants of this program
}

// account counts the records of one message.
type account struct {
	paid    time.Time // refill after the last record, or later: each record adds refill
	dropped int       // since the last logged record
}

// Logger returns a Logger that passes the records that l allows on to to. A record that follows dropped ones has their
// number, as "dropped".
func (l *Limiter) Logger(to *slog.Logger) *slog.Logger { return slog.New(handler{to.Handler(), l}) }

// take counts a record. It reports whether the record may be logged, and how many before it were dropped.
func (l *Limiter) take(message string) (ok bool, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[message]
	if a == nil {
		if l.accounts == nil {
			l.accounts = make(map[string]*account)
		}
		a = &account{}
		l.accounts[message] = a
	}
	now := time.Now()
	if a.paid.Before(now) {
		a.paid = now
	}
	if a.paid.Sub(now) > (burst-1)*refill {
		a.dropped++
		return false, 0
	}
	a.paid = a.paid.Add(refill)
	dropped, a.dropped = a.dropped, 0
	return true, dropped
}

type handler struct {
	slog.Handler
	limiter *Limiter
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	ok, dropped := h.limiter.take(r.Message)
	if !ok {
		return nil
	}
	short := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		short.AddAttrs(slog.Attr{Key: a.Key, Value: shorten(a.Value)})
		return true
	})
	if dropped > 0 {
		short.AddAttrs(slog.Int("dropped", dropped))
	}
	return h.Handler.Handle(ctx, short)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.limiter}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.limiter}
}

// shorten returns v, or the start of its text if that is too long.
func shorten(v slog.Value) slog.Value {
	text := ""
	switch v = v.Resolve(); v.Kind() {
	case slog.KindString:
		text = v.String()
	case slog.KindAny:
		if err, ok := v.Any().(error); ok {
			text = err.Error()
		}
	default: // not text
	}
	if len(text) <= MaxText {
		return v
	}
	return slog.StringValue(termtext.Cut(text, MaxText))
}
