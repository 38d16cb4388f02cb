package wire

import (
	"crypto/rand"
	"time"
)

const (
	// MaxLinger is the longest time for which a serve waits for its manager. No job runs longer.
	MaxLinger = 24 * time.Hour
	// ManagerKey is the metadata of a call by which a manager names itself to a serve that lingers.
	ManagerKey = "stepmux-manager"

	// ProxyNotFound is the exit code of a proxy that found nobody listening on its socket.
	ProxyNotFound = 4

	maxManager = 64 // bytes of a manager's name
)

// NewManager returns a name for a manager that no other one has.
func NewManager() string { return rand.Text() }

// ValidManager reports whether name can be that of a manager: 1 to 64 printable characters of ASCII.
func ValidManager(name string) bool {
	for i := range len(name) {
		if name[i] <= ' ' || name[i] > '~' {
			return false
		}
	}
	return name != "" && len(name) <= maxManager
}
