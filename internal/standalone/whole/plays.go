package whole

import "sync"

// Plays starts manual jobs of a run. The zero value is ready. It is safe for concurrent use.
type Plays struct {
	mu   sync.Mutex // guards the following
	all  map[string]bool
	runs map[*carrier]chan int // of the pipelines that run
}

// Play starts a job as soon as it waits for that: at once, or later. It does not wait.
func (p *Plays) Play(job string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[job] {
		return
	}
	if p.all == nil {
		p.all = map[string]bool{}
	}
	p.all[job] = true
	for c, to := range p.runs {
		for node := range c.pipeline.Jobs {
			if c.name(node) == job {
				to <- node // there is room
			}
		}
	}
}

// has reports whether a job was started.
func (p *Plays) has(job string) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[job]
}

// join returns the channel for the jobs of a pipeline that runs until leave is called. Each job is sent at most twice:
// by Play, and when it begins to wait for that.
func (p *Plays) join(c *carrier) (play <-chan int, leave func()) {
	if p == nil {
		return nil, func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs == nil {
		p.runs = map[*carrier]chan int{}
	}
	to := make(chan int, 2*len(c.pipeline.Jobs))
	p.runs[c] = to
	return to, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.runs, c)
	}
}

// again sends a job that begins to wait, and was started before.
func (p *Plays) again(c *carrier, node int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[c.name(node)] {
		p.runs[c] <- node // there is room
	}
}
