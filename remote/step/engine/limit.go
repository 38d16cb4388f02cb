package engine

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// limit is a deadline inside outer deadlines.
type limit struct {
	outer *limit
	at    time.Time
	why   error
}

// limited returns a limit of d from now on within outer, or outer if d is nil. Errors name the limited step by label.
func limited(outer *limit, d *durationpb.Duration, label string) *limit {
	if d == nil {
		return outer
	}
	return &limit{
		outer: outer,
		at:    time.Now().Add(d.AsDuration()),
		why:   fmt.Errorf("timeout: %s ran for longer than %v", label, d.AsDuration()),
	}
}

// next returns the limit that is reached first, or nil if there is no limit.
func (l *limit) next() *limit {
	first := l
	for ; l != nil; l = l.outer {
		if l.at.Before(first.at) {
			first = l
		}
	}
	return first
}

// extend sets the limit to d from now, as time for the clean-up after it was reached.
func (l *limit) extend(d time.Duration) { l.at = time.Now().Add(d) }
