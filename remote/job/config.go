package job

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"time"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// Config says where a Store keeps its jobs, and its limits.
type Config struct {
	// Dir is a private directory that exists. The store makes the directory jobs in it, and removes an old one first:
	// jobs do not survive their store.
	Dir string
	// WorkBase is the base of relative work directories. If empty, the process's directory.
	WorkBase string
	// Init starts the processes of jobs. Its owner closes it after the store. If nil, each has one of its own.
	Init *proc.Init
	// Fetcher gets the steps that are not local. If nil, jobs cannot have such steps. The store does not close it.
	Fetcher engine.Fetcher

	// Keep is how long a job that has ended is kept. If zero, 30 min.
	Keep time.Duration
	// Linger is how long at most the followers of a removed job can still read its output. If zero, 60 s.
	Linger time.Duration
	// MaxJobs is the most jobs that run or are kept. A new job replaces the one that ended first. If zero, 1,000.
	MaxJobs int
	// OutputLimit is the most bytes of each stream that are kept. Beyond it, bytes that a follower has read make room for
	// later ones; where there are too few, later ones are dropped. If zero, 256 MiB. If negative, there is no limit.
	OutputLimit int64
	// KeepBytes is the most bytes of output that all jobs that have ended keep together. The jobs that ended first are
	// removed, but never the last one. If zero, 10 GiB. If negative, there is no limit.
	KeepBytes int64
	// MaxRunTime is the most time any job may take. If zero, 24 h.
	MaxRunTime time.Duration
	// Grace is the time between SIGTERM and SIGKILL for jobs without a Spec.Grace. If zero, 10 s.
	Grace time.Duration
	// PassEnv and UnsafeExports replace those of all jobs. May be nil.
	PassEnv       *engine.PassEnv
	UnsafeExports *engine.UnsafeExports
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
	// Timeout is zero or more than Config.MaxRunTime of the store, MaxRunTime counts; if Grace is zero, the store's
	// Grace. The store sets Fetcher, Secrets, Start, Observe and Events itself.
	engine.Config

	// Secrets are texts that are masked like the values of masked variables.
	Secrets []string
	// Notices are lines for the log Merged, about the job's text.
	Notices []string
	// Merged gives the job a log of both streams together, the stream Merged.
	Merged bool
	// WorkDir is the directory in which the steps run. It is made if it is missing. If empty, a fresh directory that is
	// removed when the job ends.
	WorkDir string
	// Trace asks for a trace of the job. May be nil.
	Trace *TraceSpec
}
