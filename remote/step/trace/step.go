package trace

import (
	"encoding/json"

	"github.com/stepmux/stepmux/remote/step/annotation"
	"github.com/stepmux/stepmux/remote/step/mask"
)

// Step is a step and its results.
type Step struct {
	// Path has the index of each step that leads to this one in its list, from 0, its own index last: "0.1" is the
	// second step of the job's first.
	Path string `json:"path"`
	Name string `json:"name"`
	// Kind is exec, script or steps. It is empty if the step never ran, or could not be found.
	Kind string `json:"kind,omitempty"`
	// Status is success, failure, cancelled or skipped.
	Status   string `json:"status"`
	ExitCode *int   `json:"exit_code,omitempty"`
	// When is on_success, on_failure or always.
	When string `json:"when,omitempty"`
	// Condition is the if of the step; zero without one.
	Condition struct {
		Expr mask.Text `json:"expr"`
		// Value is nil if the expression could not be evaluated.
		Value *bool `json:"value,omitempty"`
	} `json:"condition,omitzero"`
	// Reference is the reference to the step. It is zero for an inline definition.
	Reference struct {
		// Text is the reference as it was written, with its expressions; a long form is JSON.
		Text mask.Text `json:"text"`
		// Dynamic says that it has expressions.
		Dynamic bool `json:"dynamic,omitempty"`
	} `json:"reference,omitzero"`
	// Component is the place where the definition was found. It is nil if it was not looked for or not found.
	Component *Component `json:"component,omitempty"`
	// Definition is the compiled definition of Component, with its expressions. See [DecodeDefinition]. Inline steps do
	// not have it, because it is part of the definition around them, and built-in steps do not have it either.
	Definition json.RawMessage `json:"definition,omitempty"`
	// Inputs are the final values, with defaults.
	Inputs mask.Values `json:"inputs"`
	// EnvSet is the env of the step's reference and definition. Env is the whole environment of its process.
	EnvSet mask.Texts `json:"env_set"`
	Env    mask.Texts `json:"env"`
	// Exec is the command of the step; nil if it ran no command.
	Exec *Exec `json:"exec,omitempty"`
	// Outputs and Exports are also set if the step failed after it wrote them.
	Outputs mask.Values `json:"outputs"`
	Exports mask.Values `json:"exports"`
	// Logs are the output of a command, with secrets masked; zero for other steps.
	Logs struct {
		Stdout Log `json:"stdout"`
		Stderr Log `json:"stderr"`
	} `json:"logs,omitzero"`
	// Summary is a text in Markdown, and Annotations are remarks about files. Only actions have them.
	Summary     mask.Text               `json:"summary,omitzero"`
	Annotations []annotation.Annotation `json:"annotations,omitempty"`
	// Truncated says that large data of this step was left out, because the trace became too large.
	Truncated bool   `json:"truncated,omitempty"`
	Steps     []Step `json:"steps,omitempty"`
}

// The values of Step.Kind.
const (
	KindExec   = "exec"
	KindScript = "script"
	KindSteps  = "steps"
)

// Component is the place where a step was found.
type Component struct {
	// Kind is local, git, zip, oci, builtin or inline.
	Kind string `json:"kind"`
	// Location is a URL without credentials, or registry/repository; for a local component the path of its directory;
	// for a built-in step its name.
	Location string `json:"location,omitempty"`
	// Version is the requested branch, tag, commit or digest.
	Version string `json:"version,omitempty"`
	// ResolvedRef is the ref to which Version led, such as refs/tags/v1.
	ResolvedRef string `json:"resolved_ref,omitempty"`
	// Digest has, for a fetched component, always sha256tree of its files; gitCommit and gitTree; sha256 of the archive
	// or of the image's manifest. For a local step it always has sha256 of its definition file, and sha256tree of its
	// directory if that is small enough.
	Digest Digest `json:"digest,omitempty"`
	// Dir is the directory of the step in the component, "." for its root. File is the file there that defines the
	// step.
	Dir  string `json:"dir,omitempty"`
	File string `json:"file,omitempty"`
}

// The values of Component.Kind.
const (
	Local   = "local"
	Git     = "git"
	Zip     = "zip"
	OCI     = "oci"
	Builtin = "builtin"
	Inline  = "inline"
)

// Exec is the command of a step.
type Exec struct {
	Argv    []mask.Text `json:"argv"`
	WorkDir mask.Text   `json:"work_dir"`
	// Program is the file of argv[0]. Interpreter is the program that runs it, or the shell of a script.
	Program     *Program `json:"program,omitempty"`
	Interpreter *Program `json:"interpreter,omitempty"`
	// NotStarted says that there was no process: the program is missing, or the machine failed.
	NotStarted bool `json:"not_started,omitempty"`
	// ExitCode is nil if the process did not end, or did not start for a reason for which a shell has no code.
	ExitCode *int `json:"exit_code,omitempty"`
	// Signal is the signal that ended the process, such as SIGKILL.
	Signal string `json:"signal,omitempty"`
	// Timeout says that a time limit ended it.
	Timeout bool `json:"timeout,omitempty"`
}

// Program is a file that can be executed.
type Program struct {
	Path   mask.Text `json:"path"`
	Digest Digest    `json:"digest,omitempty"`
}

// Log is a part of a stream, with markers in place of paths: so output that names a temporary directory is the same
// each time. If the end of a step's output may be the beginning of a secret, it can count for the next step: that
// during which masking decides.
type Log struct {
	Bytes int64 `json:"bytes"`
	// SHA256 is the digest of all bytes, even if some were not kept.
	SHA256 string `json:"sha256"`
	// Truncated says that some bytes were not kept.
	Truncated bool `json:"truncated,omitempty"`
}
