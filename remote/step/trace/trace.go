package trace

import (
	"encoding/json"
	"time"

	"github.com/stepmux/stepmux/remote/step/mask"
)

// The versions of the format. The second one adds [Job.Text].
const (
	Schema   = "steptrace/v2" // of new traces
	SchemaV1 = "steptrace/v1" // is still read
)

// The markers that replace paths in an identity.
const (
	// WorkDir is the directory in which the job runs.
	WorkDir = "@work"
	// CacheDir is the directory of fetched components: @cache/<sha256tree> is the root of one.
	CacheDir = "@cache"
	// TempDir has files that the job needs itself, such as the text of a script.
	TempDir = "@tmp"
	// StepDir has the files that a step reads and writes: @step/output is its output file.
	StepDir = "@step"
)

// Trace records a job.
type Trace struct {
	// Schema is [Schema] or [SchemaV1].
	Schema string `json:"schema"`
	// ID is the SHA-256, in hexadecimal, of the canonical form of Identity.
	ID       string   `json:"id"`
	Identity Identity `json:"identity"`
	Volatile Volatile `json:"volatile"`
	// Secrets says how the HMACs of masked values were computed. It is missing if no value is masked.
	Secrets *mask.Salt `json:"secrets,omitempty"`
}

// Identity is a job and its results. It does not depend on the time and the place of the run.
type Identity struct {
	Job     Job     `json:"job"`
	Runtime Runtime `json:"runtime"`
	// Steps are all steps of the job in their order, even if they did not run.
	Steps []Step `json:"steps"`
	// Status is success, failure or cancelled.
	Status string `json:"status"`
	// Reason says why the job failed or was cancelled: script, invalid, timeout, cancelled or system. After a success
	// it is empty.
	Reason string `json:"reason,omitempty"`
	// ExitCode is 0 after a success, otherwise that of the step that failed the job. See the function ExitCode.
	ExitCode *int        `json:"exit_code,omitempty"`
	Outputs  mask.Values `json:"outputs"`
	// Exports are all variables that steps have exported to later ones.
	Exports mask.Values `json:"exports"`
}

// The values of Identity.Status and Step.Status.
const (
	Success   = "success"
	Failure   = "failure"
	Cancelled = "cancelled"
	Skipped   = "skipped" // only for a step: it never ran
)

// ExitCode returns the exit code of a job or a step. It is nil if the job or step failed and no process of it ended
// with a code. Zero always means success. Older traces also have zero if no process ended.
func ExitCode(status string, code int) *int {
	if code == 0 && status != Success {
		return nil
	}
	return &code
}

// Job is a job as it was requested.
type Job struct {
	Source Source `json:"source"`
	// Text is the text that compiles to Definition; zero if the job has no such text. If a secret is anywhere in it, or
	// in Definition, all of it is masked.
	Text mask.Text `json:"text,omitzero"`
	// Definition is the whole compiled job, with its expressions. See [DecodeDefinition]. It is missing if the source
	// could not be read.
	Definition json.RawMessage `json:"definition,omitempty"`
	// Inputs are the values that the caller gave for inputs of the definition, without defaults.
	Inputs mask.Values `json:"inputs"`
	// Vars are the job variables that expressions read.
	Vars map[string]Variable `json:"vars_used"`
	// Env is the environment that the caller gave for all steps.
	Env mask.Texts `json:"run_env"`
	// OSEnv is the part of the runner's own environment that steps get.
	OSEnv mask.Texts `json:"os_env"`
	// MayFail names the steps whose failure does not fail the job.
	MayFail []string `json:"may_fail,omitempty"`
	// Dialect is the dialect of the job's text: v0 or v1.
	Dialect string `json:"dialect,omitempty"`
}

// The values of Source.Kind.
const (
	FromFile     = "file"
	FromEnv      = "env" // the environment variable STEPS
	FromJSON     = "json"
	FromGitLabCI = "gitlab-ci"
	FromGitHub   = "github" // a workflow of GitHub Actions
	FromGRPC     = "grpc"
)

// Source is the origin of a job's text.
type Source struct {
	// Kind is file, env, json, gitlab-ci, github or grpc.
	Kind string `json:"kind"`
	// JobName is the job of a .gitlab-ci.yml or a workflow.
	JobName string `json:"job_name,omitempty"`
	// Digest is the digest of the text. It is left out if the text contains a secret.
	Digest Digest `json:"digest,omitempty"`
}

// Digest has digests in hexadecimal, by in-toto's names of their kinds: sha256 of a file, gitCommit, gitTree; and
// sha256tree of a directory, as [github.com/stepmux/stepmux/remote/step/fetch.Source] describes it.
type Digest map[string]string

// The kinds of digests.
const (
	SHA256     = "sha256"
	SHA256Tree = "sha256tree"
	GitCommit  = "gitCommit"
	GitTree    = "gitTree"
)

// Variable is a job variable.
type Variable struct {
	Value mask.Text `json:"value"`
	// File says that steps got the path of a file with the value.
	File bool `json:"file,omitempty"`
	// Masked says that the variable was given as a secret.
	Masked bool `json:"masked,omitempty"`
}

// Runtime is the machine and the program that ran the job.
type Runtime struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	// Image is the image of the container in which the job ran, by its digest: NAME@sha256:... if it came from a
	// registry, otherwise sha256:... It is empty if the job ran in no container, or if that is not known.
	Image string `json:"image,omitempty"`
	// Runner is the program that ran the job.
	Runner struct {
		Version string `json:"version"`
		Digest  Digest `json:"digest,omitempty"`
	} `json:"runner"`
}

// Volatile has the data that differs from run to run.
type Volatile struct {
	// TraceID is a random UUID.
	TraceID string    `json:"trace_id"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Host    string    `json:"host,omitempty"`
	PID     int       `json:"pid,omitempty"`
	// Message says why the job failed or was cancelled.
	Message string `json:"message,omitempty"`
	// Paths are the absolute paths for the markers: the keys are "@work" and so on.
	Paths map[string]string `json:"paths,omitempty"`
	// Versions are the versions of interpreters, by the sha256 of their file: bash's from its file, and that of an
	// action's node from "node --version".
	Versions map[string]string `json:"versions,omitempty"`
	// CPU is the processor time, user and system, of all processes, in seconds. Like the next two, it counts from the
	// start of the step runner and includes other jobs. All three are 0 if they are not known.
	CPU float64 `json:"cpu_seconds,omitempty"`
	// PeakMemory is the largest memory of all processes together, in bytes. It is known only with a limit of memory.
	PeakMemory int64 `json:"peak_memory_bytes,omitempty"`
	// LargestProcess is the largest resident memory of one of them, in bytes.
	LargestProcess int64 `json:"largest_process_bytes,omitempty"`
	// Steps has an entry for each step that ran, in the order in which they began.
	Steps []StepRun `json:"steps"`
	// Warnings say which parts of the trace itself are missing.
	Warnings []string `json:"warnings,omitempty"`
}

// StepRun is one run of a step.
type StepRun struct {
	// Path is the path of the step, as in Step.
	Path    string    `json:"path"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	PID     int       `json:"pid,omitempty"`
	// MaxRSS is the largest resident memory of a process of the step, in bytes.
	MaxRSS   int64   `json:"max_rss_bytes,omitempty"`
	UserMS   float64 `json:"user_ms,omitempty"`
	SystemMS float64 `json:"sys_ms,omitempty"`
	// Cache is hit or fetched. It is empty for a local component.
	Cache string `json:"cache,omitempty"`
	// Message says why the step failed. Warnings are problems that did not fail it.
	Message  string   `json:"message,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Stdout and Stderr are the places of a command's output. Other steps have nil.
	Stdout *Range `json:"stdout,omitempty"`
	Stderr *Range `json:"stderr,omitempty"`
}

// Range is a part of one of the job's streams, as it was written, with secrets masked.
type Range struct {
	// Offset is the beginning, and Bytes the length. Both count bytes that were not kept, too.
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}
