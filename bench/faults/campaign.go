package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// roundBound is how long a round may take. A longer round is not counted.
const roundBound = 10 * time.Minute

// Campaign is a run of many rounds.
type Campaign struct {
	Seed    uint64
	Filter  Filter
	Faults  int // how many there are to be
	Jobs    int // rounds at once
	Options Options
	Journal *Journal[Result]
	Out     io.Writer // gets progress and findings
}

// Run runs rounds until there were enough faults or ctx ends; the end of ctx is not an error. Rounds that are in the
// journal are not run again. It returns all results. The error names rounds that failed because of the rig itself;
// they are not counted.
func (c *Campaign) Run(ctx context.Context) ([]Result, error) {
	s := &campaign{Campaign: c, done: map[int]Result{}}
	for _, r := range c.Journal.All() {
		s.done[r.Round] = r
	}
	var jobs sync.WaitGroup
	for range max(c.Jobs, 1) {
		jobs.Go(func() { s.work(ctx) })
	}
	jobs.Wait()
	return s.results, s.err
}

// campaign is a Campaign at work.
type campaign struct {
	*Campaign
	done map[int]Result // by the number of the round, when the run began

	mu      sync.Mutex // guards the following
	next    int
	faults  int
	results []Result
	err     error
}

// work runs one round after the other.
func (c *campaign) work(ctx context.Context) {
	for ctx.Err() == nil {
		plan, ok := c.take()
		if !ok {
			return
		}
		c.count(RunOne(ctx, plan, c.Options, c.Out))
	}
}

// take returns the next round to be run.
func (c *campaign) take() (Plan, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.faults < c.Faults {
		plan := c.Filter.Draw(c.Seed, c.next)
		c.next++
		if !c.Filter.Wants(plan) {
			continue
		}
		if r, done := c.done[plan.Round]; done {
			c.addLocked(r)
			continue
		}
		return plan, true
	}
	return Plan{}, false
}

func (c *campaign) addLocked(r Result) {
	c.results = append(c.results, r)
	c.faults += r.Faults
}

func (c *campaign) count(r Result, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	if err == nil {
		err = c.Journal.Add(r)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.err = errors.Join(c.err, err)
		return
	}
	c.addLocked(r)
	if len(c.results)%50 == 0 {
		fmt.Fprintf(c.Out, "%d rounds, %d faults of %d\n", len(c.results), c.faults, c.Faults)
	}
}

// RunOne runs a round. If the round finds a fault of the product, out receives the finding, the command that repeats
// the round, and the round's log. The error is ctx's if ctx ended, otherwise the reason why the round is not counted.
func RunOne(ctx context.Context, plan Plan, opts Options, out io.Writer) (Result, error) {
	bounded, cancel := context.WithTimeout(ctx, roundBound)
	defer cancel()
	r, talk, err := StartRound(bounded, plan, opts)
	if ctx.Err() != nil {
		return r, context.Canceled
	}
	for _, f := range r.Findings {
		if f.What == Broken && err == nil {
			err = fmt.Errorf("round %d (%s, %s): %s", plan.Round, plan.Kind, plan.Route, f.Text)
		}
	}
	if len(r.Findings) == 0 && err == nil {
		return r, nil
	}
	var text string
	if err != nil {
		text = err.Error() + "\n"
	}
	for _, f := range r.Findings {
		text += fmt.Sprintf("round %d (%s, %s): %s: build %s: %s\n", plan.Round, plan.Kind, plan.Route, f.What, f.Build,
			f.Text)
	}
	fmt.Fprintf(out, "%srepeat it with: make prove WHAT=faults SEED=%d ROUND=%d\n%s\n", text, plan.Seed, plan.Round,
		tail(talk))
	return r, err
}

// maxTalk bounds how much of a round's log is shown, in bytes.
const maxTalk = 256 << 10

func tail(text string) string {
	return text[max(len(text)-maxTalk, 0):]
}
