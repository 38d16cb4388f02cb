package component

// SystemError says that a step was not fetched because this machine, the network or a server failed. The reference may
// be right: the same fetch may succeed later, or on another machine.
type SystemError struct {
	// Err is the cause.
	Err error
}

func (e *SystemError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *SystemError) Unwrap() error { return e.Err }
