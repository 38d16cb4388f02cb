package program

// Isolation says how far a build was held apart from the rest of its VM.
type Isolation struct {
	// Level is off, processes or private. It is empty before the end of the job, and if the VM did not tell.
	Level string `json:"isolation,omitempty"`
	// Reason says why Level is off although the best was wanted. It is foreign text.
	Reason string `json:"isolation_reason,omitempty"`
}
