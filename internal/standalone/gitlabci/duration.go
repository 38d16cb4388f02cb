package gitlabci

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// maxDuration bounds a time in a file: a year.
const maxDuration = 365 * 24 * time.Hour

// units are the units of durations, and the beginnings of longer words for them.
var units = map[string]time.Duration{
	"s": time.Second, "sec": time.Second, "secs": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "mins": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hrs": time.Hour, "hour": time.Hour, "hours": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour, "days": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "wk": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour, "weeks": 7 * 24 * time.Hour,
	"mo": 30 * 24 * time.Hour, "month": 30 * 24 * time.Hour, "months": 30 * 24 * time.Hour,
	"y": 365 * 24 * time.Hour, "year": 365 * 24 * time.Hour, "years": 365 * 24 * time.Hour,
}

var errDuration = errors.New("write a time such as 90 minutes, 1h 30m or 2 days, at most a year")

// parseDuration returns a time in GitLab's form: numbers with units, such as 1h 30m. The default unit is a second.
func parseDuration(text string) (total time.Duration, err error) {
	rest := strings.NewReplacer(",", " ", " and ", " ").Replace(strings.ToLower(text))
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		count, err := strconv.ParseFloat(rest[:digits], 64)
		if err != nil {
			return 0, errDuration
		}
		rest = strings.TrimSpace(rest[digits:])
		letters := len(rest) - len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz"))
		unit, known := units[rest[:letters]]
		if letters == 0 {
			unit, known = time.Second, true
		}
		// The comparison is with a number that fits: the product may not.
		if !known || count*float64(unit) > float64(maxDuration-total) {
			return 0, errDuration
		}
		total += time.Duration(count * float64(unit))
		rest = rest[letters:]
	}
	if total <= 0 {
		return 0, errDuration
	}
	return total, nil
}

// duration returns the time in n.
func (d *draft) duration(label string, n *yaml.Node) time.Duration {
	took, err := parseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		d.file.tree.failf(n, "%s: %v", label, errDuration)
	}
	return took
}
