package component

// SystemError says that a step was not fetched because this machine, the network or a server failed. The reference may
// be right: the same fetch may succeed later, or on another machine.
type SystemError struct {
	// Err is the cause.
	Err error
	// Server says that a server or the network path to it failed: other machines may find the same.
	Server bool
}

func (e *SystemError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *SystemError) Unwrap() error { return e.Err }
