package program

// Isolation is how far a build was separated from the rest of its VM.
type Isolation struct {
	// Level is off, processes or private. It is empty before the end of the job, and if the VM did not report it.
	Level string `json:"isolation,omitempty"`
	// Reason is why Level is off although the best level was requested. It is untrusted text.
	Reason string `json:"isolation_reason,omitempty"`
}
