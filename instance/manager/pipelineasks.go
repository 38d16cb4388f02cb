package manager

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/instance/manager/state"
)

// What the jobs of a pipeline ask the manager for while the pipeline runs.

// ID returns the ID of the pipeline.
func (p *PipelineRun) ID() string { return p.id }

// Canceled reports whether the pipeline was cancelled: its builds that have not begun do not begin.
func (p *PipelineRun) Canceled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec.Canceled
}

// Replaced says why a newer pipeline has cancelled this one, or is empty.
func (p *PipelineRun) Replaced() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec.Replaced
}

// Began reports whether a job had begun before Carry, and, if not, whether the pipeline was cancelled before it has.
// The names of its builds begin with that of the job.
func (p *PipelineRun) Began(job string) (began, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	began = slices.ContainsFunc(p.begun, func(build string) bool {
		rest, ok := strings.CutPrefix(build, job)
		return ok && (rest == "" || rest[0] == ' ')
	})
	return began, !began && p.rec.Canceled
}

// Play calls play for each manual job that somebody has started or starts, until Carry returns.
func (p *PipelineRun) Play(play func(job string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.play = play
	for _, job := range p.rec.Played {
		play(job)
	}
}

// Slots bounds the builds of the pipeline that are queued or run: twice as many as the VMs have slots, so that other
// builds wait for these only.
func (p *PipelineRun) Slots() int {
	n := 0
	for _, in := range p.m.cfg.Group.Instances() {
		n += 2 * in.Capacity
	}
	n = min(max(n, 2), maxJobsAtOnce)
	if wanted := int(p.asked.GetSlots()); wanted > 0 {
		n = min(n, wanted)
	}
	return n
}

// Due returns the end of the delay of a job, which begins now unless it has begun before.
func (p *PipelineRun) Due(job string, delay time.Duration) time.Time {
	p.mu.Lock()
	at, known := p.rec.Due[job]
	p.mu.Unlock()
	if known {
		return at
	}
	at = time.Now().Add(delay)
	_ = p.change(func(r *state.Pipeline) { // else it begins again with another manager
		if r.Due == nil {
			r.Due = map[string]time.Time{}
		}
		r.Due[job] = at
	})
	return at
}

// Dues returns the ends of delays that have begun, by job.
func (p *PipelineRun) Dues() map[string]time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.rec.Due)
}

// Dir returns a new directory for files of the run. The caller removes it. The next manager removes the directories of
// one that was killed.
func (p *PipelineRun) Dir() (string, error) {
	dir := filepath.Join(p.m.cfg.Dir, pipelinesDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return os.MkdirTemp(dir, p.id+"-")
}

// attempt returns how often the pipeline was run again by a retry, as far as that ran some job again.
func (p *PipelineRun) attempt() (n int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, times := range p.rec.Rounds {
		n += int32(times) // each is a retry
	}
	return n
}

// round returns how often a job was run again by a retry.
func (p *PipelineRun) round(job string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec.Rounds[job]
}
