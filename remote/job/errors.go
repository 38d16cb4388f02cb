package job

import "errors"

var (
	// ErrExists says that another job has this id.
	ErrExists = errors.New("there is another job with this id")
	// ErrNotFound says that the store has no such job, or has removed it.
	ErrNotFound = errors.New("there is no such job; it may have been removed")
	// ErrNotMerged says that the job has no log of both streams together.
	ErrNotMerged = errors.New("the job has no log of both streams together; follow each of them")
	// ErrNoTrace says that the job has no trace.
	ErrNoTrace = errors.New("the job has no trace; ask for one when it is created")
	// ErrFull says that MaxJobs jobs run.
	ErrFull = errors.New("too many jobs are running")
	// ErrShutdown says that the store takes no more jobs.
	ErrShutdown = errors.New("the step runner is shutting down")
)
