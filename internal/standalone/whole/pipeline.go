package whole

import (
	"time"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/pipeline"
)

// Pipeline is a pipeline of any language: its jobs and their graph.
type Pipeline struct {
	// Name is the title of the pipeline. It may be empty.
	Name string
	// Jobs are the jobs. Graph has a node for each, in the same order.
	Jobs  []*Job
	Graph pipeline.Graph
	// Left are the jobs of the text that the pipeline does not have.
	Left []Left
	// Out names the part of the text by which there is no pipeline: then it has no jobs. Otherwise it is empty.
	Out string
	// Group is a group of which one run on this machine runs and one waits. A newer run replaces the one that waits and,
	// with CancelInProgress, the one that runs. It is empty if other runs do not matter.
	Group            string
	CancelInProgress bool
	// Series names the runs on this machine of which a newer one with another Version makes an older one redundant. Newer
	// is the part of this run that it ends. Without a Series the run neither ends others nor is ended.
	Series, Version string
	Newer           Newer
	// GitDepth is the depth of the history that the text asks for its jobs, as for checkout.ParseDepth.
	GitDepth string

	original string // the digest of the pipeline before a choice
}

// Job is a job of a pipeline.
type Job struct {
	// Name is the name of the job or of one of its parallel builds, and Base that of the job.
	Name, Base string
	// Stage is the name of the job's stage. When is the language's word for the condition under which the job runs. Both
	// are for people; the graph decides.
	Stage, When string
	// Lock, if not empty, is the name of a lock: of all jobs of the project on this machine that have it, one runs at a
	// time.
	Lock string
	// Timeout bounds an attempt of the job. Zero if the job is not bounded.
	Timeout time.Duration
	// LateIsCancelled says that the job counts as cancelled if it takes too long, unless it may fail. Otherwise it
	// counts as failed.
	LateIsCancelled bool
	// Notices are about parts of the job that have no effect, and Warnings about scripts and values that may not mean
	// what their author expects.
	Notices  []string
	Warnings []standalone.Problem
	// Prepare compiles an attempt of the job. before describes the jobs from which it gets values. Several goroutines may
	// call it at once.
	Prepare func(before []Before) (*carry.Prepared, error)
	// Trigger is the pipeline that the job starts. It is nil for a job with steps.
	Trigger *Trigger
	// Open decides, once all that the job needs has ended, whether the job runs and which builds it has. If it is not
	// nil, Prepare and Trigger are, and the node of the job is Free and Asked.
	// before are the jobs that it needs; cancelled says that the run was cancelled. say shows a line about the job; it may
	// be called after Open, and by several goroutines at once.
	Open func(before []Before, cancelled bool, say func(line string)) (*Opened, error)
	// Interruptible says that a newer run may end the job while it runs.
	Interruptible bool
	// Builds are the names of the builds of a job that opens, as far as they are known before. They are for people.
	Builds []string
	// Below returns the jobs of the workflow that the job calls, or nil. They are for people. It is nil for other jobs.
	Below func() *Pipeline
	// Group is a group of which one job on this machine runs and one waits, as that of a Pipeline. It is empty if other
	// jobs may run at the same time.
	Group            string
	CancelInProgress bool
}

// Left is a job that a pipeline does not have.
type Left struct {
	Name, Base, Stage string
	// Why names the part of the text that leaves the job out.
	Why string
}

// Before describes a job that has ended to one that gets its values.
type Before struct {
	Name, Base string
	State      pipeline.State
	// Values are the values that the job has given.
	Values map[string]string
}

// Trigger is the pipeline that a job starts.
type Trigger struct {
	// Child is the pipeline. It is nil if Read reads it, or if it cannot run here.
	Child *Pipeline
	// Read, if not nil, reads the pipeline when the job starts. before is as for Prepare.
	Read func(before []Before, artifact ReadArtifact) (*Pipeline, error)
	// Other describes a pipeline that cannot run here.
	Other string
	// Depend says that the job has the outcome of the pipeline. Without it, the job succeeds once that has begun.
	Depend bool
	// Values returns the values that the job gives to others, from those of the pipeline's jobs. The job then is cancelled
	// if the pipeline was. May be nil.
	Values func(jobs []Before) (map[string]string, error)

	choice *Choice // of the jobs of the pipeline that Read reads; nil for all
}

// ReadArtifact reads a file of the artifacts of a job that has ended, and that the job which reads it waits for.
type ReadArtifact func(job, path string) ([]byte, error)
