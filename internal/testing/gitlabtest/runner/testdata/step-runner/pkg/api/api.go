// Package api stands for the step runner's interface.
package api

// DefaultSocketPath returns an empty path.
func DefaultSocketPath() string { return "" }
