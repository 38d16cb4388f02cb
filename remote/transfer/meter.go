package transfer

import (
	"fmt"
	"io"
	"time"
)

// meter writes a line about a transfer at intervals, while bytes move.
type meter struct {
	log   Log
	label string
	every time.Duration
	total int64 // -1 if it is not known

	begin, last time.Time
	bytes       int64
}

func newMeter(log Log, label string, every time.Duration, total int64) *meter {
	now := time.Now()
	return &meter{log: log, label: label, every: every, total: total, begin: now, last: now}
}

// moved counts n more bytes.
func (m *meter) moved(n int) {
	m.bytes += int64(n)
	now := time.Now()
	if m.label == "" || m.every <= 0 || now.Sub(m.last) < m.every {
		return
	}
	m.last = now
	of := ""
	if m.total > 0 {
		of = " of " + Size(m.total)
	}
	rate := float64(m.bytes) / now.Sub(m.begin).Seconds()
	m.log.Info(fmt.Sprintf("%s: %s%s, %s/s", m.label, Size(m.bytes), of, Size(int64(rate))))
}

// meteredReader counts the bytes of a reader.
type meteredReader struct {
	io.ReadCloser
	meter *meter
}

func (r meteredReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.meter.moved(n)
	return n, err
}

// Size returns a number of bytes in a readable form: "1.5 MiB".
func Size(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	value, unit := float64(n)/(1<<10), "KiB"
	for _, larger := range []string{"MiB", "GiB", "TiB"} {
		if value < 1<<10 {
			break
		}
		value, unit = value/(1<<10), larger
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}
