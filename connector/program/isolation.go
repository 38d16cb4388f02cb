package program

import "github.com/stepmux/stepmux/remote/api/vmconfig"

// Isolation is how far a build was separated from the rest of its VM.
type Isolation struct {
	// Level is Off, Processes or Private. It is empty before the end of the job, and if the VM did not report it.
	Level vmconfig.Level `json:"isolation,omitempty"`
	// Reason is why Level is off although the best level was requested. It is untrusted text.
	Reason string `json:"isolation_reason,omitempty"`
}
