package job

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// Config says where a Store keeps its jobs, and its limits.
type Config struct {
	// Dir is a private directory that exists. The store makes the directory jobs in it. It removes an old one first:
	// jobs do not survive their store.
	Dir string
	// WorkBase is the base of relative work directories. If empty, the process's directory.
	WorkBase string
	// Init starts the processes of jobs. Its owner closes it after the store. If nil, each job has an init of its own.
	Init *proc.Init
	// Fetcher gets the steps that are not local. If nil, jobs cannot have such steps. The store does not close it.
	Fetcher component.Getter
	// Language makes the runner of a job's actions. If nil, jobs cannot have actions.
	Language func() engine.Language

	// Keep is how long a job is kept after its end. If zero, 30 min.
	Keep time.Duration
	// Linger bounds how long the followers of a removed job can still read its output. If zero, 60 s.
	Linger time.Duration
	// MaxJobs bounds the number of jobs that run or are kept. A new job replaces the one that ended first. If zero,
	// 1,000.
	MaxJobs int
	// OutputLimit bounds the bytes that are kept of each stream. Beyond it, bytes that a follower has read make room
	// for later ones; without enough of them, later ones are dropped. If zero, 256 MiB. If negative, there is no limit.
	OutputLimit int64
	// KeepBytes bounds the output that all ended jobs keep together, in bytes. The jobs that ended first are removed,
	// but never the last one. If zero, 10 GiB. If negative, there is no limit.
	KeepBytes int64
	// MaxRunTime bounds the time of each job. If zero, 24 h.
	MaxRunTime time.Duration
	// Grace is the time between SIGTERM and SIGKILL for jobs without a Spec.Grace. If zero, 10 s.
	Grace time.Duration
	// Policy has settings that replace those of all jobs.
	Policy engine.Policy
	// Version is the version of this program, for traces.
	Version string
}

// withDefaults returns c with its zero values replaced.
func (c Config) withDefaults() (Config, error) {
	var err error
	if c.WorkBase, err = filepath.Abs(cmp.Or(c.WorkBase, ".")); err == nil {
		c.Dir, err = filepath.Abs(c.Dir)
	}
	if err != nil {
		return c, fmt.Errorf("find working directory: %w", err)
	}
	c.Keep = cmp.Or(c.Keep, 30*time.Minute)
	c.Linger = cmp.Or(c.Linger, time.Minute)
	c.MaxJobs = cmp.Or(c.MaxJobs, 1000)
	c.OutputLimit = max(cmp.Or(c.OutputLimit, 256<<20), 0)
	c.KeepBytes = cmp.Or(c.KeepBytes, 10<<30)
	c.MaxRunTime = cmp.Or(c.MaxRunTime, 24*time.Hour)
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	return c, nil
}

// Spec is a job to run.
type Spec struct {
	// ID names the job. Two Specs with the same ID are the same job if their Digests are equal.
	ID     string
	Digest [sha256.Size]byte

	// Config is the job for the engine. Values of masked Vars with at least 4 bytes appear in no log and no message. If
	// Timeout is zero or more than MaxRunTime, it is MaxRunTime; if Grace is zero, it is the store's Grace. The store
	// sets Fetcher, Language, Secrets, Start, Observe and Events itself.
	engine.Config

	// Secrets are texts to mask, like the values of masked variables.
	Secrets []string
	// Notices are remarks about the job's text. Each becomes a line of the stream Merged.
	Notices []string
	// Merged gives the job the stream Merged, a log of both streams together.
	Merged bool
	// WorkDir is the directory in which the steps run. It is made if it is missing. If empty, it is a fresh directory,
	// which is removed when the job ends.
	WorkDir string
	// Trace asks for a trace of the job. May be nil.
	Trace *TraceSpec
	// Outputs says that callers want the outputs of the last step.
	Outputs bool
}
