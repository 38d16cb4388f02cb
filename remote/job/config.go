package job

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"time"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// Config says where a Store keeps its jobs, and its limits.
type Config struct {
	// Dir is a private directory that exists. The store makes the directory jobs in it, and empties it
	// of what another left: jobs do not survive their store.
	Dir string
	// WorkBase is what relative work directories are relative to. If empty, the process's directory.
	WorkBase string
	// OrphanDir is removed if this process dies while jobs run and nobody holds a lock on it. May be
	// empty.
	OrphanDir string
	// Starter starts the processes of jobs; whoever made it closes it after the store. If nil, [proc.Start].
	Starter *proc.Starter
	// Fetcher gets the steps that are not local. If nil, there are none. The store does not close it.
	Fetcher engine.Fetcher

	// Keep is how long a job that has ended is remembered. If zero, 30 min.
	Keep time.Duration
	// Linger is how much longer at most the output stays readable to those who follow a job when it is
	// removed. If zero, 60 s.
	Linger time.Duration
	// MaxJobs is the most jobs that run or are remembered; the one that ended first goes for a new one.
	// If zero, 1,000.
	MaxJobs int
	// OutputLimit is the most bytes of each stream that are kept. If zero, 256 MiB. If negative, all.
	OutputLimit int64
	// KeepBytes is the most bytes of output that jobs which have ended keep, all together: those that ended
	// first go, but never the last. If zero, 10 GiB. If negative, there is no such limit.
	KeepBytes int64
	// MaxRunTime is the most time any job may take. If zero, 24 h.
	MaxRunTime time.Duration
	// Grace is the time between SIGTERM and SIGKILL for jobs that name none. If zero, 10 s.
	Grace time.Duration
	// Version is that of this program, for traces.
	Version string
}

// withDefaults returns c with its zero values replaced.
func (c Config) withDefaults() (Config, error) {
	var err error
	if c.WorkBase == "" {
		c.WorkBase = "."
	}
	if c.WorkBase, err = filepath.Abs(c.WorkBase); err != nil {
		return c, fmt.Errorf("find working directory: %w", err)
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
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

	Definition *pb.Definition
	// Inputs and MayFail are those of [engine.Config].
	Inputs  map[string]expr.Value
	MayFail []string
	// Vars are the job's variables. Values of masked ones, if they have at least 4 bytes, are in no log
	// and no message.
	Vars []engine.Variable
	// Secrets are texts that are masked as the values of masked variables are.
	Secrets []string
	// Env is the environment of all steps, below what the definition says.
	Env map[string]string
	// RunnerEnv takes the place of this process's environment, of which few variables reach a step. If nil, that.
	RunnerEnv []string
	// Merged lets the job have a log of both streams together, the stream Merged.
	Merged bool
	// WorkDir is where the steps run, made if missing. If empty, a fresh directory that goes with the
	// job's end.
	WorkDir string
	// Timeout is the time the job has. If zero, or more than that, Config.MaxRunTime.
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL when the job is stopped. If zero, Config.Grace.
	Grace time.Duration
	// Trace asks for a trace of the job. May be nil.
	Trace *TraceSpec
}
