package engine

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// limit is a time that something has, within the limits of what is around it.
type limit struct {
	outer *limit
	at    time.Time
	why   error
}

// limited returns the limits of what has d, from now on, within outer. what names it.
func limited(outer *limit, d *durationpb.Duration, what string) *limit {
	if d == nil {
		return outer
	}
	return &limit{
		outer: outer,
		at:    time.Now().Add(d.AsDuration()),
		why:   fmt.Errorf("timeout: %s ran for longer than %v", what, d.AsDuration()),
	}
}

// next returns the limit that is reached first; nil if there is none.
func (l *limit) next() *limit {
	first := l
	for ; l != nil; l = l.outer {
		if l.at.Before(first.at) {
			first = l
		}
	}
	return first
}

// extend gives what is still to run after the limit was reached, to clean up, another d.
func (l *limit) extend(d time.Duration) { l.at = time.Now().Add(d) }
