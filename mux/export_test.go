package mux

// HasExited reports whether the server has told how the process ended, which it does before the rest of
// its output.
func (p *Process) HasExited() bool { return p.impl.(*sessionProcess).bye.Load() }
