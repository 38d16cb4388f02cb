package proc

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// event is an action of a stopper and its time.
type event struct {
	name string
	at   time.Duration
}

func TestStopperTakesItsCourse(t *testing.T) {
	type call struct {
		at, grace time.Duration // a negative grace of -1h stands for end
	}
	const end = -time.Hour
	const timeout = 10 * time.Second
	tests := map[string]struct {
		calls []call
		want  []event
	}{
		"term, grace, kill, timeout, abandon": {
			[]call{{0, 5 * time.Second}},
			[]event{{"term", 0}, {"kill", 5 * time.Second}, {"abandon", 15 * time.Second}},
		},
		"at once": {
			[]call{{0, 0}},
			[]event{{"kill", 0}, {"abandon", timeout}},
		},
		"a shorter grace brings the kill forward": {
			[]call{{0, time.Minute}, {time.Second, 2 * time.Second}},
			[]event{{"term", 0}, {"kill", 3 * time.Second}, {"abandon", 13 * time.Second}},
		},
		"a longer one does not put it off": {
			[]call{{0, 5 * time.Second}, {time.Second, time.Minute}, {6 * time.Second, time.Minute}},
			[]event{{"term", 0}, {"kill", 5 * time.Second}, {"abandon", 15 * time.Second}},
		},
		"a second kill does not restart the timeout": {
			[]call{{0, time.Second}, {2 * time.Second, 0}, {3 * time.Second, 0}},
			[]event{{"term", 0}, {"kill", time.Second}, {"abandon", 11 * time.Second}},
		},
		"a kill in the moment the grace ends is one": {
			[]call{{0, time.Second}, {time.Second, 0}},
			[]event{{"term", 0}, {"kill", time.Second}, {"abandon", 11 * time.Second}},
		},
		"the end within the grace": {
			[]call{{0, time.Second}, {500 * time.Millisecond, end}, {time.Second, 0}},
			[]event{{"term", 0}},
		},
		"the end after the kill": {
			[]call{{0, 0}, {time.Second, end}},
			[]event{{"kill", 0}},
		},
		"the end before all": {
			[]call{{0, end}, {time.Second, time.Second}},
			nil,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var mu sync.Mutex
				var got []event
				note := func(name string) func() {
					return func() {
						mu.Lock()
						defer mu.Unlock()
						got = append(got, event{name, time.Since(begin)})
					}
				}
				s := stopper{term: note("term"), kill: note("kill"), abandon: note("abandon"), timeout: timeout}
				for _, c := range test.calls {
					time.Sleep(c.at - time.Since(begin)) //nolint:forbidigo // the bubble's time
					if c.grace == end {
						s.end()
					} else {
						s.stop(c.grace)
					}
				}
				time.Sleep(2 * time.Minute) //nolint:forbidigo // the bubble's time
				mu.Lock()
				defer mu.Unlock()
				require.Equal(t, test.want, slices.Clip(got))
			})
		})
	}
}
