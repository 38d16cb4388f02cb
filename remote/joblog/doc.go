// Package joblog keeps what a process writes: an append-only stream of bytes on disk that can be read
// from any offset while it grows.
package joblog
