package carry

import "github.com/stepmux/stepmux/internal/standalone"

// Prepared is a job that can run.
type Prepared struct {
	*standalone.Job
	// Artifacts describes the files that the job gives to others, and Caches those for later runs, too.
	Artifacts Artifacts
	Caches    []Cache
	// Tests are patterns of reports of tests, in the form of JUnit. They are read whatever the outcome of the job.
	Tests []string
	// ValueFiles are patterns of the files that Values reads.
	ValueFiles []string
	// Outputs says that Values needs the outputs of the job's step.
	Outputs bool
	// Services says that the job has actions, which may need services for artifacts and caches.
	Services bool
	// Values returns the values that the job gives to others, whatever its outcome. dir has the files of the job, or only
	// those that match ValueFiles. An error is shown, and does not change the outcome. May be nil.
	Values func(dir string, report *standalone.Report) (map[string]string, error)
	// RunsOn is the machine on which the job wants to run.
	RunsOn RunsOn
}

// Artifacts describes files that a job gives to others. The zero value is no files.
type Artifacts struct {
	// Paths and Exclude are patterns of paths, from the directory of the job.
	Paths, Exclude []string
	// Untracked adds the files that are not files of the project.
	Untracked bool
	// When is the outcome after which the files are taken.
	When When
}

// wanted reports whether files are taken after a job.
func (a *Artifacts) wanted(r *standalone.Report) bool {
	return (len(a.Paths) > 0 || a.Untracked) && a.When.holds(r)
}

// When is an outcome after which files of a job are kept.
type When string

// The outcomes. A job that timed out has no outcome of these.
const (
	OnSuccess When = "on_success"
	OnFailure When = "on_failure"
	Always    When = "always"
)

// holds reports whether files are kept after a job.
func (w When) holds(r *standalone.Report) bool {
	return r.Reason != standalone.TimedOut && w.after(r.Status == success)
}

// after reports whether files are kept after a job that did not time out.
func (w When) after(succeeded bool) bool { return w == Always || succeeded == (w != OnFailure) }

// Cache describes files that a job keeps for later jobs, also for those of other runs.
type Cache struct {
	// Key is the name of the cache. If Files is not empty, it is the beginning of the name.
	Key string
	// Files are patterns of files of the project. A digest of their contents is the end of the name. If there is no such
	// file, it is "default".
	Files []string
	// Fallback are names of caches to restore if there is no cache of its own name, in order.
	Fallback []string
	// Paths are patterns of paths, from the directory of the job. Untracked adds the files that are not files of the
	// project.
	Paths     []string
	Untracked bool
	// When is the outcome after which the cache is saved.
	When When
	// Pull says that the job restores the cache, and Push that it saves it.
	Pull, Push bool
}

// success is the status of a report.
const success = "success"
